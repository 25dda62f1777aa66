"""Metrics that trackers get by default, and the charts of a dashboard. The file `metrics.jsonl` has all metrics."""

from __future__ import annotations

import re
from typing import NamedTuple

from adadepth.config import ExperimentConfig
from adadepth.config.experiment import LoggedMetrics
from adadepth.metrics.unit_costs import TIME, UNIT_MACS


class Chart(NamedTuple):
    """Chart of a dashboard: section, title, and the metrics to plot."""

    section: str
    title: str
    metrics: tuple[str, ...]


_OF_TASKS = ("eval/score", "eval/accuracy", "eval/token_accuracy", "eval/mlm_accuracy", "eval/perplexity")
_MEANS = ("halting/all/mean", "halting/expected_steps", "halting/layers/expected_depth", "search/expected_blocks")
_BUDGET = ("halting/ponder_cost", "halting/kl", "budget/measured", "budget/target")
_SPEEDS = ("cost/speedup_over_dense", "train/tokens_per_second", "eval/tokens_per_second")
PANELS = (
    Chart("Quality", "Loss", ("train/loss", "eval/loss")),
    Chart("Quality", "Task", _OF_TASKS),
    Chart("Depth", "Mean depth", _MEANS),
    Chart("Depth", "Does depth adapt?", ("halting/effective_depths", "halting/effective_depths_within")),
    Chart("Depth", "Depth and difficulty", ("halting/spearman_depth_loss", "halting/spearman_depth_difficulty")),
    Chart("Depth", "Depth penalty and budget", _BUDGET),
    Chart("Compute", "Compute without predictions (share of full depth)", ("cost/adaptive_over_full",)),
    Chart("Compute", "Compute of a token or sequence without predictions (MACs)", UNIT_MACS),
    Chart("Compute", "Time of a token in the evaluation (ms)", (TIME,)),
    Chart("Compute", "Executed compute of the evaluation (share of full depth)", ("cost/executed_over_full",)),
    Chart("Compute", "Measured speed", _SPEEDS),
)
CHARTED = frozenset(metric for panel in PANELS for metric in panel.metrics)

_CLOCKS = ("runtime", "samples_per_second", "steps_per_second")
_OF_OTHER_SETS = ("loss", "score", "accuracy", "token_accuracy", "perplexity")
_OF_STEPS = re.compile(r"(^|_|/)step_\d+(/|$)")


def is_logged(name: str, config: ExperimentConfig) -> bool:
    """Return whether trackers get a scalar: the main ones by default, or all with `logger.metrics=all`."""
    optimised, selecting = config.optimise, config.trainer.metric_for_best_model
    is_selecting = selecting is not None and name == f"eval/{selecting.removeprefix('eval_')}"
    if config.logger.metrics is LoggedMetrics.all or name == optimised or is_selecting:
        return True
    prefix, _, metric = name.partition("/")
    if prefix == "train":
        return metric not in _CLOCKS
    if prefix == "eval":
        of_first_set = "/" not in metric and metric not in _CLOCKS
        return (of_first_set or metric.rpartition("/")[2] in _OF_OTHER_SETS) and not _OF_STEPS.search(metric)
    return name in CHARTED if prefix in ("halting", "cost", "search") else True


def is_histogram_logged(name: str, config: ExperimentConfig) -> bool:
    """Return whether trackers get a histogram. By default, of all classes only that of all units is logged."""
    of_class = name.endswith("/histogram") and name != "halting/all/histogram"
    return config.logger.metrics is LoggedMetrics.all or not of_class


def is_summarised(name: str) -> bool:
    """Return whether a table of runs has a column for a metric: quality on the first set, and what charts show."""
    is_quality = name.startswith("eval/") and name.count("/") == 1 and not _OF_STEPS.search(name.removeprefix("eval/"))
    return name in CHARTED or is_quality
