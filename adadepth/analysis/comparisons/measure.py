"""Figures of groups of runs: what stands for quality and for work, and curves over several seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from adadepth.analysis.comparisons.groups import Comparison, Group
from adadepth.analysis.exits.costs import pareto
from adadepth.analysis.files import RunFiles, series
from adadepth.analysis.measure.names import SPEEDUPS, WORK
from adadepth.analysis.measure.seeds import headline_metrics
from adadepth.analysis.render.figure import Points
from adadepth.analysis.verdict.comparison import is_loss

DEPTH = "halting/all/mean"
_QUALITIES = ("eval/score", "eval/mlm_loss", "eval/lm_loss", "eval/task_loss")
_TOTAL = "eval/loss"  # it holds penalties too, other ones in other families
# Final figures that are no metrics of the evaluated set itself.
_FURTHER = (WORK, *SPEEDUPS.values())


class Quality(NamedTuple):
    """The metric that stands for quality, and whether less of it is better."""

    name: str
    less_is_better: bool

    def best_first(self, entries: Sequence[Group]) -> list[Group]:
        """Those that have it, the best first."""
        sign = 1 if self.less_is_better else -1
        return sorted((entry for entry in entries if entry.figure(self.name)), key=lambda entry: sign * self.of(entry))

    def of(self, entry: Group) -> float:
        """Its mean in a group that has it."""
        found = entry.figure(self.name)
        assert found is not None
        return float(found["mean"])


def quality(comparison: Comparison) -> Quality | None:
    """What all runs have and were to be good at: what they optimise, else what selects their model, else a score."""
    optimised = _common(comparison, lambda run: run.config.get("optimise"))
    trainers = [run.config.get("trainer") or {} for run in comparison.runs]
    selecting = _common(comparison, lambda run: (run.config.get("trainer") or {}).get("metric_for_best_model"))
    if selecting is not None:
        selecting = "eval/" + selecting.removeprefix("eval_")
    names = [name for name in (optimised, selecting, *_QUALITIES) if name not in (None, _TOTAL)]
    name = next((name for name in (*names, _TOTAL) if name in shared_figures(comparison.groups)), None)
    if name is None:
        return None
    if name == selecting and trainers[0].get("greater_is_better") is not None:
        return Quality(name, not trainers[0]["greater_is_better"])
    return Quality(name, is_loss(name))


def _common(comparison: Comparison, read: Callable[[RunFiles], Any]) -> Any:
    """What is the same in all runs; None otherwise."""
    found = {read(run) for run in comparison.runs}
    return found.pop() if len(found) == 1 else None


def shared_figures(groups: Sequence[Group]) -> list[str]:
    """Final metrics that all groups with any final metrics have."""
    able = [group for group in groups if group.summary["metrics"]]
    return [name for name in _names(able) if all(group.figure(name) for group in able)]


def unshared_figures(groups: Sequence[Group]) -> list[str]:
    """Those worth a table that some of these groups have and others lack."""
    shared = set(shared_figures(groups))
    return [name for name in headlines(groups) if name not in shared]


def headlines(groups: Sequence[Group]) -> list[str]:
    """Final metrics worth a table, of any group."""
    wanted = [name for group in groups for name in headline_metrics(group.summary)]
    return list(dict.fromkeys([*wanted, *(name for name in _FURTHER if name in _names(groups))]))


def _names(groups: Sequence[Group]) -> dict[str, None]:
    return dict.fromkeys(name for group in groups for name in group.summary["metrics"])


def best_of_both(entries: Sequence[Group], cost: str, quality: Quality) -> list[bool]:
    """Which groups no other one beats in mean cost and mean quality at once."""
    sign = -1 if quality.less_is_better else 1
    points = [
        (found["mean"], sign * quality.of(entry))
        if (found := entry.figure(cost)) and entry.figure(quality.name)
        else None
        for entry in entries
    ]
    return pareto(points)


def curves(entry: Group, name: str) -> tuple[Points, list[Points]]:
    """The curve of a metric, of several runs their mean where all of them have a value, and the curves of the runs."""
    found: list[Points] = [points for run in entry.runs if (points := series(run.metrics, name))]
    if len(found) < 2:
        return (found or [[]])[0], []
    values = [dict(points) for points in found]
    steps = sorted(set(values[0]).intersection(*values[1:]))
    return [(step, fmean(of[step] for of in values)) for step in steps], found
