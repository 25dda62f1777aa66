"""Metrics over several seeds as tables and text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadepth.analysis.layers.distribution import weights_over_seeds
from adadepth.analysis.measure.seeds import headline_metrics
from adadepth.analysis.render.formats import rounded
from adadepth.analysis.render.table import Column, Table, as_text, text


def seed_table(summary: Mapping[str, Any]) -> Table:
    """The headline metrics: mean, sample standard deviation, and the values in the order of seeds."""
    return _table("seeds", "metric", headline_metrics(summary), summary)


def layer_seed_table(summary: Mapping[str, Any]) -> Table | None:
    """The weight of every state; None where the runs learned none."""
    weights = weights_over_seeds(summary.get("metrics", {}))
    found = {str(state): metric for state, metric in weights.items()}
    return _table("layer_weights_over_seeds", "state n", found, summary) if found else None


def _table(name: str, key: str, metrics: Mapping[str, Mapping[str, Any]], summary: Mapping[str, Any]) -> Table:
    seeds = [str(seed) for seed in summary["seeds"]]
    columns = [
        Column("name", key, text, "text"), Column("mean", "mean", rounded(4)), Column("std", "sd", rounded(4)),
        Column("n"), *(Column(f"seed_{seed}", f"seed {seed}", rounded(4)) for seed in seeds),
    ]  # fmt: skip
    rows = [
        {"name": of, **found, **{f"seed_{seed}": found["values"].get(seed) for seed in seeds}}
        for of, found in metrics.items()
    ]
    return Table(name, columns, rows)


def seeds_text(summary: Mapping[str, Any]) -> str:
    """The headline metrics of several seeds as text.

    Args:
        summary: From `summarise_seeds`.
    """
    seeds = [str(seed) for seed in summary["seeds"]]
    lines = [f"{len(seeds)} seed{'s' * (len(seeds) != 1)}: {', '.join(seeds)}", "", as_text(seed_table(summary))]
    if distance := summary.get("layer_distance"):
        spread = f"mean {distance['mean']:.4f}, max {distance['max']:.4f}"
        lines.append(f"layer distributions of two seeds: total variation {spread}, {distance['pairs']} pairs")
    if agreement := summary.get("architecture_agreement"):
        lines += [f"architecture of seed {seed}: {string}" for seed, string in agreement["strings"].items()]
        spread = f"mean {agreement['mean']:.3f}, min {agreement['min']:.3f}"
        lines.append(f"blocks on which two seeds agree: {spread} of 1, {agreement['pairs']} pairs")
    return "\n".join(lines)
