"""Table of a bench with the quality of every exit rule at given shares of saved compute, beside that of full depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adadepth.contrib.bench.measures import HaltingMethod, collect_points
from adadepth.contrib.bench.recommendations import Results
from adadepth.metrics.saved_compute import SAVED_SHARES, compute_perplexity, interpolate_saved
from adadepth.metrics.significance import average_over_seeds
from adadepth.report.table import Column, Table, make_number_format, percent, text

_FIXED = "fixed"


def build_saved_table(task: str, set_name: str, runs: Results) -> list[Table]:
    """Build the table of score or perplexity at every share of `SAVED_SHARES` for networks with exit rules.

    Full depth is the deepest fixed exit of the same trained network. A row exists for every rule of such a network
    whose measured points enclose a share with every seed. Interpolated scores, and those of full depth, are averaged
    over seeds before the perplexity is computed. The list is empty without such a row.
    """
    points = collect_points(runs, set_name)
    scores = [point["score"] for by_seed in points.values() for of_seed in by_seed.values() for point in of_seed]
    is_text = bool(scores) and max(scores) < 0.0
    rows = []
    for method, by_seed in points.items():
        full = points.get(HaltingMethod(method.name, _FIXED), {})
        if not by_seed.keys() <= full.keys():
            continue
        values = [_interpolate(of_seed, full[seed][-1]) for seed, of_seed in by_seed.items()]
        row: dict[str, Any] = {"method": method.name, "exit_rule": method.rule, "seeds": len(by_seed)}
        for share, shares in zip((0.0, *SAVED_SHARES), zip(*values, strict=True), strict=True):
            measured = [score for score in shares if score is not None]
            if len(measured) == len(shares):
                mean = average_over_seeds(measured).mean
                row[f"saved_{share:g}"] = compute_perplexity(mean) if is_text else mean
        if any(f"saved_{share:g}" in row for share in SAVED_SHARES):
            rows.append(row)
    write = make_number_format(3 if is_text else 4)
    measure = "perplexity" if is_text else "score"
    columns = [
        Column("method", "method", text, "text"),
        Column("exit_rule", "exit rule", text, "text"),
        Column("saved_0", f"{measure} at full depth", write),
        *(Column(f"saved_{share:g}", f"{percent(share)} saved", write) for share in SAVED_SHARES),
        Column("seeds"),
    ]
    return [Table(f"{task}_{set_name}_saved_compute", columns, rows)] if rows else []


def _interpolate(points: Sequence[Mapping[str, Any]], full: Mapping[str, Any]) -> list[float | None]:
    """Return the score at full depth and at every share of saved compute, of one network with one seed.

    Points of separately trained networks have no line between them, and so no interpolated scores.
    """
    is_one_network = len({tuple(point["setting"]) for point in points}) == 1
    pairs = [(point["compute"], point["score"]) for point in points] if is_one_network else []
    return [full["score"], *interpolate_saved(pairs, full["compute"])]
