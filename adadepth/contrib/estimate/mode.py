"""The mode `estimate`: its descriptor."""

from __future__ import annotations

from collections.abc import Callable

from adadepth.config import ExperimentConfig
from adadepth.config.modes import ModeSpec
from adadepth.contrib.estimate.settings import EstimateConfig, check_estimate


def _import_print_estimate() -> Callable[[ExperimentConfig], None]:
    from adadepth.contrib.estimate.estimate import print_estimate

    return print_estimate


def _import_advise_batch() -> Callable[[ExperimentConfig, int, str], str]:
    from adadepth.contrib.estimate.estimate import advise_batch

    return advise_batch


ESTIMATE = ModeSpec(
    _import_print_estimate,
    "memory, operations and duration of a training run, before data are prepared",
    "estimating",
    settings=EstimateConfig,
    always=("words",),
    checks=(check_estimate,),
    describes_training=True,
    batch_advice=_import_advise_batch,
)
