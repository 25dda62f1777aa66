"""The answer of a sweep: which runs are best by what they optimise, where they are, and what repeats them."""

from __future__ import annotations

from pathlib import Path

from adadepth.analysis.comparisons.groups import Comparison, Group, final
from adadepth.analysis.comparisons.measure import Quality, shared_figures
from adadepth.analysis.comparisons.tables import spread_text
from adadepth.analysis.files import RunFiles
from adadepth.analysis.render.formats import is_number
from adadepth.analysis.render.section import Section, fill
from adadepth.analysis.render.table import Column, Table, text
from adadepth.analysis.verdict.comparison import is_loss

_MOST = 5


def best(comparison: Comparison, folder: Path) -> Section | None:
    """The best groups by `optimise`; of each the run that is best among its seeds."""
    if (chosen := optimised(comparison)) is None:
        return None
    table = best_table(comparison, chosen)
    html = fill("compared_best", table=table, chosen=chosen, count=len(chosen.best_first(comparison.groups)))
    return Section(f"Best by {chosen.name}", "best", html, tables=[table])


def best_line(comparison: Comparison) -> str | None:
    """The best group in a line, with the folder of its best run; None where nothing is better than another."""
    if (chosen := optimised(comparison)) is None:
        return None
    first = chosen.best_first(comparison.groups)[0]
    return f"best by {chosen.name}: {chosen.of(first):.4f}, {first.label}: {_best_run(first, chosen).directory}"


def optimised(comparison: Comparison) -> Quality | None:
    """What all runs optimise, if it says which is better: not between seeds, nor on other data.

    The name of a metric of an evaluated set says whether less is better; of others, such as a depth, a search does.
    """
    names = {run.config.get("optimise") for run in comparison.runs}
    if len(names) != 1 or len(comparison.groups) < 2 or comparison.other_data:
        return None
    (name,) = names
    if name not in shared_figures(comparison.groups):
        return None
    if comparison.search is not None:
        return Quality(name, comparison.search.less_is_better)
    return Quality(name, is_loss(name)) if name.startswith("eval") else None


def best_table(comparison: Comparison, chosen: Quality) -> Table:
    """A row a group, the best first."""
    columns = [
        Column("run", "run", text, "text"), Column("value", chosen.name, text), Column("n", "runs"),
        Column("folder", "folder", text, "code"), Column("command", "command", text, "code"),
    ]  # fmt: skip
    rows = []
    for group in chosen.best_first(comparison.groups)[:_MOST]:
        run = _best_run(group, chosen)
        told = {"run": group.label, "value": spread_text(group.figure(chosen.name) or {}), "n": len(group.runs)}
        rows.append({**told, "folder": str(run.directory), "command": run.run.get("command")})
    return Table("best", columns, rows)


def _best_run(group: Group, chosen: Quality) -> RunFiles:
    found = [run for run in group.runs if is_number(final(run).get(chosen.name))]
    pick = min if chosen.less_is_better else max
    return pick(found, key=lambda run: final(run)[chosen.name])
