"""Networks of several architectures side by side: what architectures.json says, with costs as shares of a reference.

A row of the file has `name`; `kind`, searched or baseline; `trained`, where its weights come from; `architecture`;
`parameters`; `quality`, figures by name (see `architectures.QUALITIES`) or None, on the set `quality_set`; and by the
name of a shape `macs`, of the blocks for one sequence, and `seconds` of a forward pass of the whole batch: `median`,
`p10`, `p90` and `n` runs, and where it was measured `blocks_median`, without embeddings and output layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from adadepth.analysis.architecture.search import LETTERS, QUALITIES

NOT_RETRAINED = "not retrained"


def compared_rows(comparison: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows with a `label` of their own, `counts` of attention, feed-forward and identity, and `costs`.

    `costs` has for every shape, as far as there are numbers, `macs`, `median`, `p10`, `p90` and `blocks_median` in
    seconds, and under `macs_share`, `median_share` and `blocks_median_share` what these are of the reference's.
    """
    rows, names = comparison["rows"], Counter(row["name"] for row in comparison["rows"])
    reference = next((_costs(row, comparison) for row in rows if row["name"] == comparison["reference"]), {})
    return [
        {
            **row,
            "label": f"{row['name']} ({row['trained']})" if names[row["name"]] > 1 else row["name"],
            "counts": [row["architecture"].count(letter) for letter in LETTERS],
            "costs": {shape: _with_shares(found, reference.get(shape, {})) for shape, found in costs.items()},
        }
        for row, costs in ((row, _costs(row, comparison)) for row in rows)
    ]


def _costs(row: Mapping[str, Any], comparison: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """By shape the numbers that a row has."""
    found = {}
    for shape in (shape["name"] for shape in comparison["shapes"]):
        seconds = (row.get("seconds") or {}).get(shape, {})
        numbers = {"macs": (row.get("macs") or {}).get(shape)} | {key: seconds.get(key) for key in _SECONDS}
        found[shape] = {key: value for key, value in numbers.items() if value is not None}
    return found


_SECONDS = ("median", "p10", "p90", "blocks_median")


def _with_shares(costs: Mapping[str, float], reference: Mapping[str, float]) -> dict[str, float]:
    shares = {
        f"{key}_share": costs[key] / reference[key]
        for key in ("macs", "median", "blocks_median")
        if key in costs and reference.get(key)
    }
    return {**costs, **shares}


def measured_qualities(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the figures of quality that at least one of the rows has, in a fixed order."""
    return [name for name in QUALITIES if any((row["quality"] or {}).get(name) is not None for row in rows)]


def quality_points(comparison: Mapping[str, Any]) -> list[tuple[str, str, list[tuple[float, float, dict[str, Any]]]]]:
    """Title, axis title and points (cost, perplexity, row) of a drawing for every evaluated set and shape.

    The cost is the median time in milliseconds where one was measured, otherwise the multiply-accumulates. A network
    that was not retrained has no point: its perplexity says how good the supernet's weights are for it.
    """
    rows = [row for row in compared_rows(comparison) if (row["quality"] or {}).get("perplexity") is not None]
    rows = [row for row in rows if row["trained"] != NOT_RETRAINED]
    drawings = []
    for quality_set in dict.fromkeys(row["quality_set"] for row in rows):
        for shape in (shape["name"] for shape in comparison["shapes"]):
            of_set = [row for row in rows if row["quality_set"] == quality_set]
            timed = any("median" in row["costs"][shape] for row in of_set)
            key, scale = ("median", 1e3) if timed else ("macs", 1.0)
            points = [
                (scale * row["costs"][shape][key], row["quality"]["perplexity"], row)
                for row in of_set
                if key in row["costs"][shape]
            ]
            if points:
                axis = "median milliseconds of a forward pass" if timed else "multiply-accumulates per sequence"
                drawings.append((f"{set_title(quality_set)}, {shape}", axis, points))
    return drawings


def set_title(quality_set: str) -> str:
    """A set of texts in words."""
    return {"held_out": "held-out text", "test": "test text"}.get(quality_set, quality_set)


def conditions_text(comparison: Mapping[str, Any]) -> str:
    """Under which the times were measured, in a line."""
    if not any(row.get("seconds") for row in comparison["rows"]):
        return "time: not measured"
    found = ", ".join(f"{key} {value}" for key, value in comparison.get("conditions", {}).items())
    return f"time: {found or 'conditions not told'}"
