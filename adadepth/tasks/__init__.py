"""Tasks: what a run does, composed of data, model, trainer and report."""

from __future__ import annotations

from importlib import import_module

from adadepth.errors import UnreachableError
from adadepth.families.registry import family
from adadepth.settings import ExperimentConfig, Mode
from adadepth.settings.kinds import kind_of, trained_head
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
    from adadepth.tasks import report

    if config.mode is Mode.report:  # needs no model, so it does not wait for what models need
        report.rewrite(config)
        return None
    from transformers.utils.logging import disable_progress_bar

    from adadepth.families.build import rehearse
    from adadepth.families.members import check_family
    from adadepth.tasks import estimate, predict, probe, rivals, seeds, serve
    from adadepth.training.tracking import check_trackers

    check_trackers(config)
    check_family(family(config.model.name))
    disable_progress_bar()  # transformers' bars for reading and writing files; the training bar is another
    if config.mode is Mode.estimate:
        estimate.say_estimate(config)
        return None
    if config.mode is Mode.probe:
        probe.probe(config)
        return None
    if config.mode is Mode.predict:
        predict.predict(config)
        return None
    if config.mode is Mode.serve:
        serve.serve(config)
        return None
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
        metrics = task.train(config).metrics
    return report.optimised(config, metrics)
