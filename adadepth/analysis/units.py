"""What the report calls things, by what has a depth of its own: `unit` of halting.json."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """How one kind of unit is told of.

    Attributes:
        kind: Of report.
        terms: Template of what its words mean.
        needed: What needs the work `adaptive`, which is what the model costs.
        needing: The beginning of a sentence that says how much that is.
        full: What needs the work `full`.
        of_full: The same in short.
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
        "Layer", "layer_terms", "needed up to the deepest state that is read", "Up to the deepest state it needs",
        "all blocks for every example",
    ),
    "architecture": Words(
        "Architecture", "architecture_terms", "needed by the blocks that are expected to run",
        "The blocks that are expected to run need", "as many blocks, attention and feed-forward in turns",
        "as many alternating blocks", "multiply-accumulates per token",
    ),
}  # fmt: skip


def words(unit: str) -> Words:
    """How a unit is told of: a task or an architecture has one depth, of others each has its own."""
    own = Words(
        "Halting", "halting_terms", "needed at the depths decided", "At these depths it needs",
        f"full depth for every {unit}", halts=True,
    )  # fmt: skip
    return _ONE_FOR_ALL.get(unit, own)
