"""Depth by class as a table, and the statistics of an evaluation as text around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadepth.analysis.measure.class_definitions import CLASS_DEFINITIONS, definition
from adadepth.analysis.measure.depths import first_depth
from adadepth.analysis.measure.word_table import words_lines
from adadepth.analysis.render.formats import percent, rounded
from adadepth.analysis.render.table import SPARKLINES, Column, Table, Where, as_text, text
from adadepth.analysis.units import words


def class_table(summary: Mapping[str, Any]) -> Table:
    """The figures by class: what halting.json holds, a row a class."""
    first, last = first_depth(summary), summary["max_depth"]
    is_predicted = any("accuracy" in described for described in summary["classes"].values())
    accuracy: Where = "everywhere" if is_predicted else "file"
    columns = [
        Column("class", "class", text, "text", remark="definition"),
        Column("n"), Column("mean", "mean", rounded(2)), Column("std", "sd", rounded(2)), Column("p10"),
        Column("median", where="file"), Column("p90"), Column("at_cap", "at cap", percent),
        *(Column(key, where="file") for key in ("entropy", "remainder", "ponder_cost")),
        Column("loss", "loss", rounded(2)), Column("loss_n", where="file"),
        Column("accuracy", "accuracy", percent, where=accuracy), Column("accuracy_n", where="file"),
        Column("range", "p10–mean–p90", kind="range", axis=(first, last), where="page"),
        Column("shape", f"depths {first}…{last}", kind="shape", axis=(first, last), where="view"),
        *(Column(f"depth_{depth}", where="file") for depth in range(last + 1)),
    ]  # fmt: skip
    rows = [_row(name, described, summary.get("unit", "token")) for name, described in summary["classes"].items()]
    return Table("depth_by_class", columns, rows)


def _row(name: str, described: Mapping[str, Any], unit: str) -> dict[str, Any]:
    defined = definition(name) if unit == "sequence" else CLASS_DEFINITIONS.get(name, definition(name))
    if not described["n"]:
        return {"class": name, "definition": f"{defined}: no {unit} of this class in the evaluated set", "n": 0}
    histogram = described["histogram"]
    return {
        "class": name,
        "definition": defined,
        **described,
        "range": (described["p10"], described["mean"], described["p90"]),
        "shape": [count / described["n"] for count in histogram],
        **{f"depth_{depth}": count for depth, count in enumerate(histogram)},
    }


def halting_text(summary: Mapping[str, Any], step: int | None = None) -> str:
    """The summary of `HaltingStatistics` as text: a header, a line per class, and what is missing with the reason.

    Args:
        summary: From `HaltingStatistics.summary`.
        step: Optimiser steps done, for the header.

    Returns:
        Lines of ASCII without a trailing newline. A figure that is absent shows as `-`.
    """
    unit = summary["unit"]
    loss = f"loss: of {unit}s that have one, in nats" + (" (of values: squared error)" if unit == "sequence" else "")
    lines = [*_header(summary, step), "", as_text(class_table(summary))]
    lines += [f"{SPARKLINES}; {loss}", *not_available(summary)]
    lines += words_lines(summary.get("words", {}))
    told = summary.get("adaptation", {})
    if "warning" in told:
        lines.append(": ".join(["warning", told["warning"], *([told["advice"]] if "advice" in told else [])]))
    return "\n".join(lines)


def not_available(summary: Mapping[str, Any]) -> list[str]:
    """A line for everything that could not be computed, with the reason."""
    return [f"not available: {name}: {reason}" for name, reason in summary["missing"].items()]


def at_step(step: int | None) -> str:
    """When something was measured, for a header."""
    return "" if step is None else f" at step {step:,}"


def _header(summary: Mapping[str, Any], step: int | None) -> list[str]:
    everyone, cost = summary["classes"]["all"], summary["cost"]
    first = [f"halting{at_step(step)}: {summary['n']:,} {summary['unit']}s"]
    if "mean" in everyone:
        first.append(
            f"updates {everyone['mean']:.2f} +- {everyone['std']:.2f} (median {everyone['median']}) "
            f"of at most {summary['max_depth']}"
        )
    first += [f"{key.replace('_', ' ')} {everyone[key]:.3f}" for key in ("remainder", "ponder_cost") if key in everyone]
    second = cost_words(cost, summary["unit"])
    correlations = (("loss", summary["spearman"].get("all")),
                    ("difficulty", summary.get("difficulty", {}).get("spearman")))  # fmt: skip
    for other, found in correlations:
        if found:
            interval = f"[{found['low']:+.3f}, {found['high']:+.3f}]"
            second.append(f"Spearman(depth, {other}) {found['value']:+.3f} {interval}, n {found['n']:,}")
    return ["; ".join(part) for part in (first, second) if part]


def cost_words(cost: Mapping[str, Any], unit: str) -> list[str]:
    """What the model needs of full depth's work, and apart from it what the evaluation ran, as far as it is known."""
    if "adaptive_over_full" not in cost:
        return []
    ran = percent(cost["executed_over_full"])
    if "executed_over_dense" in cost and words(unit).halts:
        ran += f", {percent(cost['executed_over_dense'])} of dense"
    return [f"work needed {percent(cost['adaptive_over_full'])} of {words(unit).of_full} (this evaluation ran {ran})"]
