"""Tasks: what a run does, composed of data, model, trainer and report."""

from __future__ import annotations

from adadepth.config import ExperimentConfig, Mode, Task


def run(config: ExperimentConfig) -> float | None:
    """Run a validated experiment and return the metric named by `optimise`; None for a report."""
    from adadepth.tasks import pretrain, report

    if config.mode is Mode.report:
        report.rewrite(config)
        return None
    tasks = {Task.pretrain: {Mode.train: pretrain.train, Mode.evaluate: pretrain.evaluate}}
    metrics = tasks[config.task][config.mode](config)
    return report.optimised(config, metrics)
