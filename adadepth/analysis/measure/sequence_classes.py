"""The classes of labelled units whose depths are compared: by label, by correctness, by length and by difficulty.

The units are whole sequences, or the tokens of sequences that are tagged.

The names are fixed when an evaluation begins, from values of the whole set, so every batch and process has the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from adadepth.analysis.measure.scoring import is_right

LENGTH_BUCKETS, DIFFICULTY_BUCKETS = 4, 8


def bucket_edges(values: Tensor, buckets: int) -> tuple[int, ...]:
    """Inner borders that cut whole numbers into at most `buckets` parts of similar size.

    Args:
        values: (M,) int64.
        buckets: 4 for quartiles. Few distinct values get a bucket each.

    Returns:
        Increasing; a value belongs below a border if it does not exceed it. Empty if all values are equal.
    """
    distinct = values.unique()
    if len(distinct) <= buckets:
        return tuple(distinct[:-1].tolist())
    levels = torch.arange(1, buckets, dtype=torch.float64) / buckets
    borders = values.double().quantile(levels, interpolation="lower").long().unique()
    inner = tuple(border for border in borders.tolist() if border < int(distinct[-1]))
    return inner or (int(distinct[-2]),)[: buckets - 1]  # the largest value may be most of the set


@dataclass(frozen=True)
class SequenceClasses:
    """Sorts sequences, or their tokens, into (overlapping) classes with fixed names.

    Attributes:
        labels: Class names of a classification in order; empty for a regression, which has no `correct` either.
        length_edges: From `bucket_edges`.
        difficulty_edges: Likewise; empty where the data set knows no difficulty.
        difficulties: How many difficulties there are, from 0 to the largest; 0 where the data set knows none.
        has_unlabelled: Whether there are tokens without a label among those with one.
        has_cells: Whether they are puzzles, right where all of their cells are.
    """

    labels: tuple[str, ...]
    length_edges: tuple[int, ...] = ()
    difficulty_edges: tuple[int, ...] = ()
    difficulties: int = 0
    has_unlabelled: bool = False
    has_cells: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of tables."""
        judged = ("correct", "wrong") if self.labels or self.has_cells else ()
        by_label = (*judged, *(f"label: {label}" for label in self.labels))
        unlabelled = ("unlabelled",) if self.has_unlabelled else ()
        lengths = _bucket_names("length", self.length_edges)
        return ("all", *by_label, *unlabelled, *lengths, *_bucket_names("difficulty", self.difficulty_edges))

    def masks(
        self,
        logits: Tensor,
        labels: Tensor | None,
        lengths: Tensor,
        difficulty: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Which units of a batch are in which class.

        Args:
            logits: (B, C), or (B, T, C) where tokens are labelled, or the cells of puzzles.
            labels: (B,), or (B, T) with a negative one where there is none; None puts no unit into a class that needs
                one.
            lengths: (B,) real tokens.
            difficulty: (B,) or (B, T), likewise.
            valid: The mask of a trace, (B,) or (B, T). With (B, T) what is said of a sequence is said of its real
                tokens.

        Returns:
            Name to boolean mask, (B,) or the shape of `valid`, with the names of `names`.
        """
        everyone = torch.ones_like(lengths, dtype=torch.bool)
        found = {"all": everyone}
        if self.labels:
            predictions = logits.argmax(dim=-1)
            found |= self._by_label(predictions, torch.full_like(predictions, -1) if labels is None else labels)
        elif self.has_cells and labels is not None:
            right = is_right(logits, labels)
            found |= {"correct": right, "wrong": ~right}
        found |= _by_bucket("length", lengths, self.length_edges)
        if difficulty is not None:
            found |= _by_bucket("difficulty", difficulty, self.difficulty_edges)
        found = {name: found.get(name, ~everyone) for name in self.names}
        return found if valid is None else {name: like_units(mask, valid) & valid for name, mask in found.items()}

    def _by_label(self, predictions: Tensor, labels: Tensor) -> dict[str, Tensor]:
        labelled, right = labels >= 0, predictions == labels
        by_label = {f"label: {name}": labels == number for number, name in enumerate(self.labels)}
        return {"correct": labelled & right, "wrong": labelled & ~right, **by_label, "unlabelled": ~labelled}


def classes_of(
    labels: Sequence[str],
    lengths: Tensor,
    difficulty: Tensor | None,
    has_unlabelled: bool = False,
    *,
    has_cells: bool = False,
) -> SequenceClasses:
    """The classes of a whole set: its labels, quartiles of its lengths, up to eight parts of its difficulty.

    Args:
        labels: Class names in order; empty for a regression.
        lengths: Real tokens of every sequence, (M,) int64.
        difficulty: Of every unit that has one, (U,) int64, where the data set knows it.
        has_unlabelled: See `SequenceClasses`.
        has_cells: See there.
    """
    found = SequenceClasses(
        tuple(labels), bucket_edges(lengths, LENGTH_BUCKETS), has_unlabelled=has_unlabelled, has_cells=has_cells
    )
    if difficulty is None or not len(difficulty):
        return found
    edges = bucket_edges(difficulty, DIFFICULTY_BUCKETS)
    return replace(found, difficulty_edges=edges, difficulties=int(difficulty.max()) + 1)


def like_units(values: Tensor, units: Tensor) -> Tensor:
    """Values of sequences, (B,), or of units already, such that they broadcast to units (B,) or (B, T)."""
    return values.reshape(*values.shape, *(1,) * (units.dim() - values.dim()))


def _bucket_names(kind: str, edges: Sequence[int]) -> list[str]:
    if not edges:
        return []
    middle = [f"{low + 1}-{high}" if high > low + 1 else f"{high}" for low, high in pairwise(edges)]
    return [f"{kind} {bucket}" for bucket in (f"<= {edges[0]}", *middle, f"> {edges[-1]}")]


def _by_bucket(kind: str, values: Tensor, edges: Sequence[int]) -> dict[str, Tensor]:
    if not edges:
        return {}
    bucket = torch.bucketize(values, torch.tensor(edges, device=values.device))
    # A negative value says that there is none.
    return {name: (bucket == number) & (values >= 0) for number, name in enumerate(_bucket_names(kind, edges))}
