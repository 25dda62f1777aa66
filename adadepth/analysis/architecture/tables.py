"""Tables about architectures: operations, gates, evaluations, and networks compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adadepth.analysis.architecture.comparison import compared_rows, conditions_text, measured_qualities, set_title
from adadepth.analysis.architecture.search import EVALUATIONS, LETTERS, OPERATIONS, QUALITIES, is_fixed
from adadepth.analysis.measure.class_table import at_step, cost_words, not_available
from adadepth.analysis.render.formats import percent, rounded
from adadepth.analysis.render.table import Column, Table, as_text, text

OPERATION_TITLES = ("attention", "feed-forward", "identity")
NOT_MEASURED = "not measured"


def third_table(thirds: Sequence[Mapping[str, int]]) -> Table:
    """How often each operation occurs in every third of the depth, and in all."""
    operations = zip(OPERATIONS, OPERATION_TITLES, LETTERS, strict=True)
    columns = [
        Column("third", "third of the blocks", text, "text"),
        *(Column(key, f"{title} {letter}") for key, title, letter in operations),
    ]
    rows = [{"third": name, **counts} for name, counts in zip(("first", "middle", "last"), thirds, strict=True)]
    total = {key: sum(counts[key] for counts in thirds) for key in OPERATIONS}
    return Table("operations_by_third", columns, [*rows, {"third": "all", **total}])


def gate_table(described: Mapping[str, Any]) -> Table:
    """The probabilities of every block of a supernet."""
    columns = [
        Column("block"), Column("operation", "operation", text, "text"),
        *(Column(key, title, _percent_of_two) for key, title in zip(OPERATIONS, OPERATION_TITLES, strict=True)),
        Column("entropy", "entropy (nats)", rounded(3)),
    ]  # fmt: skip
    blocks = zip(described["string"], described["probabilities"], described["entropy"], strict=True)
    rows = [
        {"block": number, "operation": letter, **dict(zip(OPERATIONS, row, strict=True)), "entropy": entropy}
        for number, (letter, row, entropy) in enumerate(blocks, start=1)
    ]
    return Table("gates", columns, rows)


def _percent_of_two(share: float) -> str:
    return f"{rounded(2)(100 * share)}%"


def evaluation_table(evaluations: Mapping[str, Mapping[str, float]]) -> Table:
    """The quality of every evaluation, under the figures that any of them has."""
    names = measured_qualities([{"quality": found} for found in evaluations.values()])
    columns = [
        Column("evaluation", "evaluation", text, "text", remark="definition"),
        *(Column(name, QUALITIES[name], rounded(4)) for name in names),
    ]
    rows = [
        {"evaluation": name, "definition": EVALUATIONS.get(name, ""), **found} for name, found in evaluations.items()
    ]
    return Table("evaluations", columns, rows)


def history_table(rows: Sequence[Mapping[str, Any]], first: str) -> Table:
    """The architecture at every evaluation, with the perplexity of the first kind of them."""
    columns = [
        Column("step"), Column("string", "most probable operations", text, "code"),
        Column("expected_blocks", "blocks expected", rounded(2)),
        Column("mean_entropy", "mean entropy (nats)", rounded(3)), Column("temperature", "temperature", rounded(3)),
        Column("perplexity", f"perplexity, {first}" if first else "perplexity", rounded(2)),
    ]  # fmt: skip
    return Table("architecture_over_training", columns, rows)


def architecture_text(halting: Mapping[str, Any], step: int | None = None) -> str:
    """A search, or a fixed architecture, as text: a header, a line per gated block, the evaluations.

    A bar has a letter for every 4 % that an operation of the block has.

    Args:
        halting: What halting.json holds, of a task whose unit is `architecture`.
        step: Optimiser steps done, for the header.
    """
    found = halting["architecture"]
    header = [
        f"architecture{at_step(step)}: {found['string']}",
        f"{found['blocks'] - found['string'].count('-')} of {found['blocks']} blocks kept",
    ]
    if found["temperature"] is not None:
        header += [f"expected {found['expected_blocks']:.2f}", f"mean entropy {found['mean_entropy']:.3f} of ln 3 nats"]
        header.append(f"temperature {found['temperature']:.3f}")
    thirds = ", ".join("/".join(str(third[name]) for name in OPERATIONS) for third in found["thirds"])
    second = [f"{'/'.join(LETTERS)} by third of depth: {thirds}"]
    second += cost_words(halting["cost"], halting["unit"])
    lines = ["; ".join(header), "; ".join(second), *([] if is_fixed(found) else _gate_lines(found))]
    lines += ["", as_text(evaluation_table(halting["evaluations"]))] if halting["evaluations"] else []
    return "\n".join([*lines, *not_available(halting)])


def _gate_lines(found: Mapping[str, Any]) -> list[str]:
    """A line for every block of a supernet."""
    head, rule, *rows = as_text(gate_table(found)).splitlines()
    bars = [
        "".join(letter * round(25 * share) for letter, share in zip(LETTERS, row, strict=True))
        for row in found["probabilities"]
    ]
    return ["", head, rule, *(f"{row}  {bar}" for row, bar in zip(rows, bars, strict=True))]


# ---- networks compared


def quality_table(comparison: Mapping[str, Any]) -> Table:
    """Networks of several architectures, and how good they are."""
    rows = compared_rows(comparison)
    columns = [
        Column("label", "network", text, "text", remark="kind"), Column("architecture", "architecture", text, "code"),
        Column("counts", "s/f/-", text), Column("parameters"),
        *(Column(name, QUALITIES[name], rounded(4)) for name in measured_qualities(rows)),
        Column("set", "set", text, "text", absent=NOT_MEASURED),
    ]  # fmt: skip
    return Table("architectures", columns, [
        {**(row["quality"] or {}), "label": row["label"], "kind": f"{row['kind']}, {row['trained']}",
         "architecture": row["architecture"], "counts": "/".join(map(str, row["counts"])),
         "parameters": row["parameters"], "set": set_title(row["quality_set"]) if row["quality"] else None}
        for row in rows
    ])  # fmt: skip


def cost_table(comparison: Mapping[str, Any], shape: str) -> Table:
    """What networks of several architectures cost at a shape, and what share of the reference's that is."""
    rows = compared_rows(comparison)
    of = f"of {comparison['reference']}"
    has_blocks = any("blocks_median" in found for row in rows for found in row["costs"].values())
    blocks = [
        Column("blocks_median", "blocks alone, ms", _milliseconds, absent=NOT_MEASURED),
        Column("blocks_median_share", of, percent),
    ]
    columns = [
        Column("label", "network", text, "text"), Column("macs", "MACs (M)", _millions, absent=NOT_MEASURED),
        Column("macs_share", of, percent), Column("median", "median ms", _milliseconds, absent=NOT_MEASURED),
        Column("p10", "p10", _milliseconds), Column("p90", "p90", _milliseconds), Column("median_share", of, percent),
        *(blocks if has_blocks else []),
    ]  # fmt: skip
    return Table(f"cost_{shape}", columns, [{"label": row["label"], **row["costs"][shape]} for row in rows])


def _millions(macs: float) -> str:
    return rounded(2)(macs / 1e6)


def _milliseconds(seconds: float) -> str:
    return rounded(2)(1e3 * seconds)


def comparison_text(comparison: Mapping[str, Any]) -> str:
    """Networks of several architectures as text: quality, then multiply-accumulates and measured time by shape.

    Args:
        comparison: What architectures.json holds; see `comparison`.
    """
    lines = [as_text(quality_table(comparison))]
    for shape in (shape["name"] for shape in comparison["shapes"]):
        lines += ["", f"{shape}:", as_text(cost_table(comparison, shape))]
    lines += ["", f"shares of the cost of {comparison['reference']}: less is cheaper"]
    lines.append("MACs: of the blocks, per sequence; ms: median forward pass of the batch; perplexity: per token")
    return "\n".join([*lines, conditions_text(comparison)])
