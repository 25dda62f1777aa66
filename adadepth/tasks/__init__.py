"""Tasks of a run, such as pretraining and fine-tuning. Each task combines data, model, trainer and report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from adadepth.config import ExperimentConfig, Mode, Task
from adadepth.config.kinds import get_kind, get_trained_head
from adadepth.config.modes import modes
from adadepth.errors import UnreachableError
from adadepth.models.registry import family
from adadepth.runtime.threads import limit_threads

if TYPE_CHECKING:
    from pathlib import Path


def run(config: ExperimentConfig) -> float | None:
    """Run an experiment from a validated configuration.

    Return the metric that `optimise` names, or None if the mode has no metrics.
    """
    mode = modes()[config.mode]
    try:
        if mode.needs_model:  # other modes start faster without these imports
            _prepare_model(config)
            limit_threads(config.runtime.threads)
        metric = _run_core_mode(config) if mode.run is None else mode.run()(config)
    except UnreachableError as error:
        if offline := family(config.model.name).offline:
            raise UnreachableError(f"{error}; {offline}") from error
        raise
    return metric


def _run_core_mode(config: ExperimentConfig) -> float | None:
    """Run a mode of the core. The mode `report` imports no torch."""
    if config.mode is Mode.report:
        from adadepth.tasks.report import rewrite

        rewrite(config)
    elif config.mode is Mode.predict:
        from adadepth.tasks.predict import predict

        predict(config)
    elif config.mode is Mode.export:
        from adadepth.tasks.export import export

        export(config)
    else:
        return train_or_evaluate(config)
    return None


def _prepare_model(config: ExperimentConfig) -> None:
    """Check that trackers and model family are installed, and silence the progress bars of transformers."""
    from transformers.utils.logging import disable_progress_bar

    from adadepth.models.validation import check_family
    from adadepth.training.tracking import check_trackers

    check_trackers(config)
    check_family(family(config.model.name))
    disable_progress_bar()  # bars for files; the bar of training stays


def train_or_evaluate(config: ExperimentConfig) -> float | None:
    """Train or evaluate a model as configured, and return the value of the metric that `optimise` names."""
    from adadepth.models.build import check_on_meta_device
    from adadepth.tasks import multi_seed, report, rivals

    if (importer := get_kind(config.dataset).evaluate) is not None:
        importer()(config)
        return None
    task = import_tasks()[config.task]
    if config.mode is Mode.train:
        check_on_meta_device(config.model, get_trained_head(config.task, config.dataset))
    if config.mode is Mode.evaluate:
        metrics = task.evaluate(config)
    elif config.rival_of is not None:
        metrics = rivals.train_rivals(config, task.train)
    elif config.seeds > 1:
        metrics = multi_seed.train_with_seeds(config, task.train)
    else:
        metrics, _ = task.train(config)
    return report.select_objective(config, metrics)


class TaskFunctions(NamedTuple):
    """Functions of a task: training returns metrics and the run directory, evaluation returns metrics."""

    train: Callable[[ExperimentConfig], tuple[dict[str, float], Path]]
    evaluate: Callable[[ExperimentConfig], dict[str, float]]


def import_tasks() -> Mapping[Task, TaskFunctions]:
    """Import and return the functions of every task."""
    from adadepth.tasks import architecture_search, finetune, language_model, pretrain

    return {
        Task.pretrain: TaskFunctions(pretrain.train, pretrain.evaluate),
        Task.finetune: TaskFunctions(finetune.train, finetune.evaluate),
        Task.language_model: TaskFunctions(language_model.train, language_model.evaluate),
        Task.architecture_search: TaskFunctions(architecture_search.train, architecture_search.evaluate),
    }
