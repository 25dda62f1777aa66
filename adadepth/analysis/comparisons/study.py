"""A search by Optuna: how much each parameter mattered, and which values the good trials had."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adadepth.analysis.comparisons.groups import Comparison, written
from adadepth.analysis.render.figure import Axis, Bars, Figure, Lines, Panel, Points
from adadepth.analysis.render.formats import percent
from adadepth.analysis.render.section import Section, fill
from adadepth.analysis.render.table import Column, Table, text

_FEWEST = 4  # trials, below which a picture of them says nothing


@dataclass(frozen=True)
class Parameter:
    """One dimension of what was searched.

    Attributes:
        key: Of the configuration.
        low: The lowest value, or the first choice.
        high: The highest value, or the last choice.
        is_log: Whether it was drawn evenly in the logarithm.
        choices: All values, of one that has no order.
    """

    key: str
    low: Any
    high: Any
    is_log: bool = False
    choices: Sequence[Any] = ()

    def place(self, value: Any) -> float:
        """Where a value lies between lowest (0) and highest (1)."""
        if self.choices:
            return self.choices.index(value) / max(len(self.choices) - 1, 1)
        low, high, at = (math.log(each) if self.is_log else float(each) for each in (self.low, self.high, value))
        return (at - low) / (high - low) if high > low else 0.5

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition(".")[2]


@dataclass(frozen=True)
class Search:
    """Finished trials of a study.

    Attributes:
        metric: What was optimised.
        less_is_better: Whether it was minimised.
        parameters: What was searched.
        trials: The values of the parameters, and the metric, of every trial that has one.
        importances: By key the share of the metric's variance that the parameter explains (fANOVA, Hutter et al. 2014);
            empty where the trials do not tell.
    """

    metric: str
    less_is_better: bool
    parameters: Sequence[Parameter]
    trials: Sequence[tuple[Mapping[str, Any], float]]
    importances: Mapping[str, float]

    @property
    def best_first(self) -> list[tuple[Mapping[str, Any], float]]:
        """The trials by what they reached."""
        return sorted(self.trials, key=lambda trial: trial[1] if self.less_is_better else -trial[1])


def searched(comparison: Comparison, folder: object) -> Section | None:
    """Importances and parallel coordinates of a search with enough trials."""
    search = comparison.search
    if search is None or len(search.trials) < _FEWEST:
        return None
    table = _table(search)
    figures = [*_importances(search), _coordinates(search)]
    html = fill("compared_search", table=table, figures=figures, search=search)
    return Section("What mattered", "search", html, figures, [table], of=f"n = {len(search.trials)} trials")


def _table(search: Search) -> Table:
    columns = [
        Column("parameter", "parameter", text, "text"), Column("low", "lowest", written),
        Column("high", "highest", written), Column("best", "in the best trial", written),
        Column("importance", "importance", percent),
    ]  # fmt: skip
    values, _ = search.best_first[0]
    rows = [
        {"parameter": each.key, "low": each.low, "high": each.high, "best": values[each.key],
         "importance": search.importances.get(each.key)}
        for each in search.parameters
    ]  # fmt: skip
    return Table("search", columns, rows)


def _importances(search: Search) -> list[Figure]:
    if not search.importances:
        return []
    names = [next(each.name for each in search.parameters if each.key == key) for key in search.importances]
    x = Axis("", (-0.5, len(names) - 0.5), range(len(names)), names)
    bars = Bars([(place, share) for place, share in enumerate(search.importances.values())])
    title = f"Share of the variance of {search.metric}"
    return [Figure("importances", [Panel(title, bars, x, Axis("explained", (0.0, 1.0), percent=True))], 1)]


def _coordinates(search: Search) -> Figure:
    """A line a trial over the parameters, and the metric at the right: the best quarter in a colour of its own."""
    values = [value for _, value in search.trials]
    result = Parameter(search.metric, min(values), max(values))
    axes = [*search.parameters, result]
    lines = [
        [(place, axis.place({**given, search.metric: value}[axis.key])) for place, axis in enumerate(axes)]
        for given, value in search.best_first
    ]
    quarter = max(1, len(lines) // 4)
    good, others = lines[:quarter], lines[quarter:]
    curves: list[tuple[str, Points]] = [("best trial", good[0]), ("middle trial", lines[len(lines) // 2])]
    x = Axis("", (-0.2, len(axes) - 0.8), range(len(axes)), [axis.name for axis in axes])
    y = Axis("place in its range", (-0.05, 1.05), (0.0, 1.0), ("lowest", "highest"))
    return Figure("parallel_coordinates", [Panel("Trials", Lines(curves, [good, others]), x, y)], 1)
