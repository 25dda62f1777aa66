"""A search by Optuna: how much each parameter mattered, and which values the good trials had."""

from __future__ import annotations

from pathlib import Path

from adadepth.analysis.comparisons.groups import Comparison, written
from adadepth.analysis.comparisons.trials import Parameter, Search
from adadepth.analysis.render.figure import Axis, Bars, Figure, Lines, Panel, Points
from adadepth.analysis.render.formats import percent
from adadepth.analysis.render.section import Section, fill
from adadepth.analysis.render.table import Column, Table, text

_FEWEST = 4  # trials, below which a picture of them says nothing


def searched(comparison: Comparison, folder: Path) -> Section | None:
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
