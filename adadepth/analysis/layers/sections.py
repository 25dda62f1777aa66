"""The section of the report about a distribution over layers that is learned for a whole task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from adadepth.analysis.files import RunFiles
from adadepth.analysis.layers.distribution import layer_history, weights_over_seeds
from adadepth.analysis.render import charts
from adadepth.analysis.render.colors import ramp
from adadepth.analysis.render.sections import MAX_ROWS, steps_range

BLOCKS = "state n (after n blocks)"


def layer_section(files: RunFiles) -> dict[str, Any] | None:
    """What the page shows of the distribution: sentences, drawings, and their numbers; None without one."""
    layers = files.halting.get("layers")
    if layers is None:
        return None
    weights, history = layers["weights"], layer_history(files.metrics)
    return {
        **layers,
        "blocks": len(weights) - 1,
        "largest": max(range(len(weights)), key=weights.__getitem__),
        "needed": needed_blocks(layers["deepest"], len(weights) - 1),
        "charts": [("Weight of each state", _bars(weights)), *_history_charts(history)],
        "history": [{"step": step, **found} for step, found in charts.thin(history, MAX_ROWS)],
    }


def needed_blocks(deepest: int, blocks: int) -> str:
    """How much of the base a distribution needs, in words."""
    if deepest == blocks:
        return f"The deepest state with a weight is the last one, so all {blocks} blocks of the base must run."
    return (
        f"The deepest state with a weight is number {deepest}, so {deepest} of the {blocks} blocks of the base must "
        f"run; every prediction stays the same without the other {blocks - deepest}."
    )


def _bars(weights: Sequence[float]) -> Markup:
    last = len(weights) - 1
    frame = charts.Frame(
        (-0.5, last + 0.5), (0, 1.05 * max(weights)), BLOCKS, "weight",
        charts.depth_ticks(last, first=0), percent=True, height=charts.HEIGHT + 20,
    )  # fmt: skip
    return charts.bar_chart(frame, list(enumerate(weights)), ramp(0.75), f"Weight of each state, 0 to {last}")


def _history_charts(history: Sequence[tuple[int, Mapping[str, Any]]]) -> list[tuple[str, Markup]]:
    """Weights, entropy, and depths over the evaluations, on axes that depend on the base only."""
    if not history:
        return []
    shares = [(step, found["weights"]) for step, found in history]
    last = len(shares[0][1]) - 1
    steps = steps_range([step for step, _ in history])

    def lines(top: float, title: str, y_ticks: Sequence[float] | None, keys: Mapping[str, str]) -> Markup:
        frame = charts.Frame(steps, (0, top), "optimiser step", title, y_ticks=y_ticks)
        curves = [(name, [(step, found[key]) for step, found in history]) for name, key in keys.items()]
        return charts.line_chart(frame, curves, f"{title} over training")

    description = f"Weight of each state, 0 to {last}, at {len(shares)} evaluations"
    depth_ticks = charts.depth_ticks(last, first=0)
    return [
        ("Weights over training", charts.heat_map(shares, description, "weight", BLOCKS, first=0)),
        ("Entropy over training", lines(1.03 * math.log(last + 1), "entropy (nats)", None, {"entropy": "entropy"})),
        (
            "Depth over training",
            lines(1.03 * last, "blocks", depth_ticks, {"expected depth": "expected_depth", "deepest state": "deepest"}),
        ),
    ]


def layer_seeds(seeds: Mapping[str, Any]) -> dict[str, Any] | None:
    """The weight of every state over several seeds, and how far apart the distributions are."""
    weights = weights_over_seeds(seeds.get("metrics", {}))
    return {"weights": weights, "distance": seeds.get("layer_distance")} if weights else None
