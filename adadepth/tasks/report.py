"""What is common to all tasks at their end: the report, and the metric that a sweep optimises."""

from __future__ import annotations

from collections.abc import Mapping

from adadepth.atomic import refuse_links
from adadepth.config import ExperimentConfig
from adadepth.console import say
from adadepth.errors import ConfigError, nearest
from adadepth.tasks.comparing import compare_runs
from adadepth.tasks.pages import draw_figures, write_report
from adadepth.training.run_directory import read_record, resolve_run


def rewrite(config: ExperimentConfig) -> None:
    """`mode=report`: draw figures and report of an earlier run again, from its files, or compare several.

    Raises:
        CheckpointError: If there is no such run, its record is damaged, or a link in it leads elsewhere.
    """
    if config.runs:
        compare_runs(config)
        return
    assert config.run is not None, "validated"
    directory = resolve_run(config.run, config)
    read_record(directory)  # of a folder that holds something else a report would say nothing
    refuse_links(directory)
    say(f"report: {write_report(directory)}")
    draw_figures(directory)  # most of the time: whoever waits for the page has it


def optimised(config: ExperimentConfig, metrics: Mapping[str, float]) -> float:
    """The metric named by `optimise`.

    Raises:
        ConfigError: If the run has no such metric, naming those it has.
    """
    if config.optimise not in metrics:
        kind = config.optimise.partition("/")[0]
        alike = [name for name in sorted(metrics) if name.startswith(kind)]
        hint = nearest(config.optimise, metrics)
        raise ConfigError(f"optimise={config.optimise}: not a metric of this run{hint}; it has {', '.join(alike)}")
    return float(metrics[config.optimise])
