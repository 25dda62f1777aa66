"""The dataset type `harness`: its descriptor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adadepth.config import ExperimentConfig, Task
from adadepth.config.kinds import Kind
from adadepth.contrib.harness.settings import HarnessConfig, check_harness
from adadepth.models.registry import ReportSection


def _import_load_harness_data() -> Callable[..., Any]:
    from adadepth.contrib.harness.evaluate import load_harness_data

    return load_harness_data


def _import_evaluate() -> Callable[[ExperimentConfig], dict[str, float]]:
    from adadepth.contrib.harness.evaluate import evaluate

    return evaluate


def _import_section() -> ReportSection:
    from adadepth.contrib.harness.report import SECTION

    return SECTION


HARNESS = Kind(
    HarnessConfig,
    loader=_import_load_harness_data,
    checks=(check_harness,),
    tasks=tuple(Task),
    evaluate=_import_evaluate,
    positions="max_length",
    sections=(_import_section,),
)
