"""Tasks: what a run does, composed of data, model, trainer and report."""

from __future__ import annotations

from importlib import import_module

from adadepth.errors import UnreachableError
from adadepth.families.registry import family
from adadepth.settings import ExperimentConfig, Mode
from adadepth.settings.kinds import kind_of, trained_head
from adadepth.settings.modes import modes
from adadepth.settings.plugins import load


def run(config: ExperimentConfig) -> float | None:
    """Run a validated experiment and return the metric named by `optimise`; None where no task is scored."""
    try:
        return _run(config)
    except UnreachableError as error:
        if offline := family(config.model.name).offline:
            raise UnreachableError(f"{error}; {offline}") from error
        raise


def _run(config: ExperimentConfig) -> float | None:
    mode = modes()[config.mode]
    if mode.needs_model:  # which others do not wait for
        _prepare(config)
    metric: float | None = load(mode.run)(config)
    return metric


def _prepare(config: ExperimentConfig) -> None:
    """Check what no configuration tells, and import what every model needs."""
    from transformers.utils.logging import disable_progress_bar

    from adadepth.families.members import check_family
    from adadepth.training.tracking import check_trackers

    check_trackers(config)
    check_family(family(config.model.name))
    disable_progress_bar()  # transformers' bars for reading and writing files; the training bar is another


def train_or_evaluate(config: ExperimentConfig) -> float | None:
    """Run the task of a validated experiment; see `run`."""
    from adadepth.families.build import rehearse
    from adadepth.tasks import report, rivals, seeds

    if (measure := kind_of(config.dataset).evaluate) is not None:
        load(measure)(config)
        return None
    task = import_module(f"{__name__}.{config.task}")
    if config.mode is Mode.train:
        rehearse(config.model, trained_head(config.task, config.dataset))
    if config.mode is Mode.evaluate:
        metrics = task.evaluate(config)
    elif config.seeds > 1:
        metrics = seeds.train_with_seeds(config, task.train)
    elif config.rival_of is not None:
        metrics = rivals.train_rival(config, task.train)
    else:
        metrics, _ = task.train(config)
    return report.optimised(config, metrics)
