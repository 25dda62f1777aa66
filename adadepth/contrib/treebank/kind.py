"""The dataset type `trees`: its descriptor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adadepth.config import ExperimentConfig, Task
from adadepth.config.kinds import Kind
from adadepth.contrib.treebank.settings import TreebankConfig, check_treebank
from adadepth.models.registry import ReportSection


def _import_load_treebank() -> Callable[..., Any]:
    from adadepth.contrib.treebank.data import load_treebank

    return load_treebank


def _import_evaluate() -> Callable[[ExperimentConfig], dict[str, float]]:
    from adadepth.contrib.treebank.evaluate import evaluate

    return evaluate


def _import_words_section() -> ReportSection:
    from adadepth.contrib.treebank.report import WORDS_SECTION

    return WORDS_SECTION


TREES = Kind(
    TreebankConfig,
    loader=_import_load_treebank,
    checks=(check_treebank,),
    tasks=tuple(Task),
    evaluate=_import_evaluate,
    sections=(_import_words_section,),
)
