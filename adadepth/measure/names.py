"""Names of metrics: those that every tracker takes, and what stands at their end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CLASS_SCALARS = ("mean", "std", "p10", "median", "p90", "n", "at_cap", "histogram", "loss", "accuracy")
LAYER_SCALARS = ("entropy", "effective_layers", "expected_depth", "deepest", "active")
ADAPTATION = ("effective_depths", "effective_depths_within", "commonest", "commonest_share")
# What a run costs, as verdict, tiles, comparisons and trackers tell it: the work that the model needs at the depths it
# decided, of that at full depth. How an evaluation happened to run (padding, every step measured, states from a cache)
# is `cost/executed_over_full`, and told as that only.
WORK = "cost/adaptive_over_full"
# Measured times without halted tokens, by what was timed.
SPEEDUPS = {"evaluation": "cost/speedup_over_dense", "training": "cost/training_speedup_over_dense"}
_WORDS = (("<=", "up to"), (">", "over"))


def metric_name(text: str) -> str:
    """A name of letters, digits and `_./-`, from one that data sets and classes have a part in.

    `halting/length <= 5/mean` becomes `halting/length_up_to_5/mean`, `label: no` `label_no`. Letters beyond ASCII
    become their numbers, so that names in other scripts stay apart.
    """
    for sign, word in _WORDS:
        text = text.replace(sign, word)
    text = re.sub(r"[^\x00-\x7f]", lambda letter: f"u{ord(letter[0]):x}", text)
    return re.sub(r"[^A-Za-z0-9_./-]+", "_", text)


def least_depth(histograms: Iterable[Sequence[float]]) -> int:
    """0 if a unit received no update at all, else 1.

    Args:
        histograms: Counts, or shares, of the depths from 0.
    """
    return 0 if any(histogram[0] for histogram in histograms) else 1


def first_depth(halting: Mapping[str, Any]) -> int:
    """`least_depth` of all classes of halting.json."""
    classes = halting.get("classes", {}).values()
    return least_depth(described["histogram"] for described in classes if described.get("histogram"))


@dataclass(frozen=True)
class Words:
    """How one kind of unit is told of.

    Attributes:
        kind: Of report.
        terms: Template of what its words mean.
        needed: What needs the work `adaptive`, which is what the model costs.
        needing: The beginning of a sentence that says how much that is.
        full: What needs the work `full`.
        of_full: What needs the work `full`, in short.
        macs: What work is counted in.
        halts: Whether units halt one by one, and some wait for the deepest.
    """

    kind: str
    terms: str
    needed: str
    needing: str
    full: str
    of_full: str = "full depth"
    macs: str = "multiply-accumulates"
    halts: bool = False


_ONE_FOR_ALL = {
    "task": Words(
        "Layer",
        "layer_terms",
        "needed up to the deepest state that is read",
        "Up to the deepest state it needs",
        "all blocks for every example",
    ),
    "architecture": Words(
        "Architecture",
        "architecture_terms",
        "needed by the blocks that are expected to run",
        "The blocks that are expected to run need",
        "as many blocks, attention and feed-forward in turns",
        "as many alternating blocks",
        "multiply-accumulates per token",
    ),
}


def words(unit: str) -> Words:
    """How a unit is told of: a task or an architecture has one depth, of others each has its own."""
    own = Words(
        "Halting",
        "halting_terms",
        "needed at the depths decided",
        "At these depths it needs",
        f"full depth for every {unit}",
        halts=True,
    )
    return _ONE_FOR_ALL.get(unit, own)
