"""Classes of tokens and sequences for the comparison of depths: token type, label, correctness, length, difficulty."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adadepth.metrics.adaptation import spearman
from adadepth.metrics.depth_statistics import describe_histogram, set_accuracy
from adadepth.metrics.metric_names import CLASS_DEFINITIONS
from adadepth.metrics.scoring import is_right

TOKEN_CLASSES: tuple[str, ...] = tuple(CLASS_DEFINITIONS)


def token_classes(batch: Mapping[str, Tensor], *, cls_id: int, sep_id: int, mask_id: int) -> dict[str, Tensor]:
    """Return a mask of tokens per class, such as masked or special tokens. Classes overlap; padding has none.

    Args:
        batch: `input_ids` and `attention_mask`, (B, T) int64. If tokens were selected for prediction, also `mask_kind`,
            (B, T), not 0 at a selected position, and `labels`, (B, T), with the original ids there.
        cls_id: Id of [CLS].
        sep_id: Id of [SEP].
        mask_id: Id of [MASK].

    Returns:
        Boolean masks, (B, T), by name. The names are those of `TOKEN_CLASSES`. A random word that happens to be the
        original counts as `mask/original`, because the model cannot distinguish them.
    """
    ids = batch["input_ids"]
    real = batch["attention_mask"].bool()
    selected = real & (batch["mask_kind"] > 0) if "mask_kind" in batch else torch.zeros_like(real)
    unchanged = ids == batch["labels"] if "mask_kind" in batch else torch.zeros_like(real)
    is_cls, is_sep, is_mask = (real & (ids == special) for special in (cls_id, sep_id, mask_id))
    return {
        "all": real,
        "unmasked": real & ~is_mask,
        "plain": real & ~selected & ~(is_cls | is_sep | is_mask),
        "mask": is_mask,
        "mask/mask": selected & is_mask,
        "mask/random": selected & ~is_mask & ~unchanged,
        "mask/original": selected & ~is_mask & unchanged,
        "mask/random_reference": selected & ~unchanged,
        "cls": is_cls,
        "sep": is_sep,
    }


CHOICE_CLASSES = ("all", "correct", "wrong", "right", "other", "taken", "context", "ending", "cls", "sep")


def classify_choice_tokens(
    logits: Tensor, labels: Tensor, real: Tensor, context: Tensor, ending: Tensor
) -> dict[str, Tensor]:
    """Return a mask of tokens per class for multiple choice. Classes overlap; padding has none.

    Args:
        logits: Logit of each choice, (B, C).
        labels: Right choice of each example, (B,).
        real: Mask of the tokens that are not padding, boolean, (B, C, T).
        context: Mask of the tokens before the ending, boolean, (B, C, T).
        ending: Mask of the tokens of the ending, boolean, (B, C, T).

    Returns:
        Boolean masks, (B, C, T), by name. The names are those of `CHOICE_CLASSES`: the tokens of examples with a
        `correct` or a `wrong` prediction, and the tokens of the `right` choice, of an `other` choice, and of the
        predicted choice (`taken`).
    """
    guesses = logits.argmax(dim=1)
    number = torch.arange(logits.shape[1], device=logits.device)
    is_right = (number == labels[:, None])[:, :, None]
    is_taken = (number == guesses[:, None])[:, :, None]
    is_correct = (guesses == labels)[:, None, None]
    is_first = torch.arange(real.shape[2], device=real.device) == 0
    return {
        "all": real,
        "correct": real & is_correct,
        "wrong": real & ~is_correct,
        "right": real & is_right,
        "other": real & ~is_right,
        "taken": real & is_taken,
        "context": context,
        "ending": ending,
        "cls": real & is_first,
        "sep": real & ~context & ~ending & ~is_first,
    }


LENGTH_BUCKETS, DIFFICULTY_BUCKETS = 4, 8


def compute_bucket_edges(values: Tensor, buckets: int) -> tuple[int, ...]:
    """Return the borders that divide integers into at most `buckets` ranges of similar counts.

    Args:
        values: Whole numbers, (M,) int64.
        buckets: Number of parts, such as 4 for quartiles. If there are fewer distinct values, each has its own bucket.

    Returns:
        Increasing borders. Each border is the largest value of its part. Empty if all values are equal.
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
    """Classifier of sequences, or of their tokens, into overlapping classes with fixed names.

    Attributes:
        labels: Class names of a classification in order. Empty for a regression, which has no class `correct` either.
        length_edges: Borders of the lengths, see `compute_bucket_edges`.
        difficulty_edges: Borders of the difficulties, see `compute_bucket_edges`. Empty if the data set has none.
        difficulties: Number of difficulties, from 0 to the largest. 0 if the data set has none.
        has_unlabelled: Whether some tokens have no label while others do.
        has_cells: Whether sequences are puzzles. A puzzle is right if all of its cells are right.
    """

    labels: tuple[str, ...]
    length_edges: tuple[int, ...] = ()
    difficulty_edges: tuple[int, ...] = ()
    difficulties: int = 0
    has_unlabelled: bool = False
    has_cells: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes in the order of report tables."""
        correctness = ("correct", "wrong") if self.labels or self.has_cells else ()
        by_label = (*correctness, *(f"label: {label}" for label in self.labels))
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
        """Return the mask of each class over a batch, by class name.

        Args:
            logits: Logits of sequences, (B, C), or of tokens or cells, (B, T, C).
            labels: Labels, (B,) or (B, T), negative at units without one. With None, the classes of labels are empty.
            lengths: Number of real tokens, (B,).
            difficulty: Difficulty, (B,) or (B, T), negative at units without one.
            valid: Mask of a trace, (B,) or (B, T). With (B, T), the class of a sequence contains its real tokens.

        Returns:
            Boolean masks by name, (B,) or of the shape of `valid`. The names are those of `names`.
        """
        everyone = torch.ones_like(lengths, dtype=torch.bool)
        masks = {"all": everyone}
        if self.labels:
            predictions = logits.argmax(dim=-1)
            labels = torch.full_like(predictions, -1) if labels is None else labels
            labelled, right = labels >= 0, predictions == labels
            masks |= {"correct": labelled & right, "wrong": labelled & ~right, "unlabelled": ~labelled}
            masks |= {f"label: {name}": labels == number for number, name in enumerate(self.labels)}
        elif self.has_cells and labels is not None:
            right = is_right(logits, labels)
            masks |= {"correct": right, "wrong": ~right}
        masks |= _mask_buckets("length", lengths, self.length_edges)
        if difficulty is not None:
            masks |= _mask_buckets("difficulty", difficulty, self.difficulty_edges)
        masks = {name: masks.get(name, ~everyone) for name in self.names}
        return masks if valid is None else {name: expand_to_units(mask, valid) & valid for name, mask in masks.items()}


def build_sequence_classes(
    labels: Sequence[str],
    lengths: Tensor,
    difficulty: Tensor | None,
    has_unlabelled: bool = False,
    *,
    has_cells: bool = False,
) -> SequenceClasses:
    """Build the classes of an evaluated data set: labels, quartiles of length, and ranges of difficulty.

    Args:
        labels: Class names in order. Empty for a regression.
        lengths: Number of real tokens of every sequence, (M,) int64.
        difficulty: Difficulty of every unit that has one, (U,) int64. None if the data set has none.
        has_unlabelled: See `SequenceClasses`.
        has_cells: See `SequenceClasses`.
    """
    classes = SequenceClasses(
        tuple(labels), compute_bucket_edges(lengths, LENGTH_BUCKETS), has_unlabelled=has_unlabelled, has_cells=has_cells
    )
    if difficulty is None or not len(difficulty):
        return classes
    edges = compute_bucket_edges(difficulty, DIFFICULTY_BUCKETS)
    return replace(classes, difficulty_edges=edges, difficulties=int(difficulty.max()) + 1)


def expand_to_units(values: Tensor, units: Tensor) -> Tensor:
    """Return values of sequences or tokens in a shape that broadcasts against depths, (B,) or (B, T)."""
    return values.reshape(*values.shape, *(1,) * (units.dim() - values.dim()))


def _bucket_names(kind: str, edges: Sequence[int]) -> list[str]:
    if not edges:
        return []
    middle = [f"{low + 1}-{high}" if high > low + 1 else f"{high}" for low, high in pairwise(edges)]
    return [f"{kind} {bucket}" for bucket in (f"<= {edges[0]}", *middle, f"> {edges[-1]}")]


def _mask_buckets(kind: str, values: Tensor, edges: Sequence[int]) -> dict[str, Tensor]:
    if not edges:
        return {}
    bucket = torch.bucketize(values, torch.tensor(edges, device=values.device))
    # A negative value means that the unit has none.
    return {name: (bucket == number) & (values >= 0) for number, name in enumerate(_bucket_names(kind, edges))}


PARTS = 16  # ranges of similar size, for attributes with more values than that
FEWEST_OF_A_PART = 10  # examples of a range; rarer values join their neighbours


def describe_attributes(
    attributes: Mapping[str, NDArray[np.int64]], depth: NDArray[np.int64], right: NDArray[np.bool_]
) -> dict[str, dict[str, Any]]:
    """Return depth statistics by value of each example attribute, or by ranges if values are many or rare.

    Args:
        attributes: Whole numbers from 0, (examples,), by name. An attribute with only one value is skipped.
        depth: Updates of each example, (examples,).
        right: Mask of the examples with a right answer, (examples,).

    Returns:
        For every attribute: `rows`, each with the range of values `from` and `to`, their mean `value`, the statistics
        of depth, `accuracy` and `accuracy_n`; and `spearman`, the correlation of depth with the attribute, if it
        exists.
    """
    described: dict[str, dict[str, Any]] = {}
    for name, values in attributes.items():
        if (values == values[0]).all():
            continue
        rows = [_describe_part(values[part], depth[part], right[part]) for part in _split_values(values)]
        described[name] = {"rows": rows}
        if (correlation := spearman(depth, values)) is not None:
            described[name]["spearman"] = correlation._asdict()
    return described


def _split_values(values: NDArray[np.int64]) -> Iterator[NDArray[np.bool_]]:
    """Yield the mask of the examples in each range of an attribute's values, in increasing order."""
    part = np.searchsorted(compute_bucket_edges(torch.from_numpy(values), PARTS), values)
    last = part.max()
    together = np.zeros(len(values), dtype=bool)
    for number in np.unique(part):
        together = together | (part == number)
        larger = (part > number).sum()
        if number == last or (together.sum() >= FEWEST_OF_A_PART and larger >= FEWEST_OF_A_PART):
            yield together
            together = np.zeros_like(together)


def _describe_part(values: NDArray[np.int64], depth: NDArray[np.int64], right: NDArray[np.bool_]) -> dict[str, Any]:
    row: dict[str, Any] = {"value": float(values.mean()), "from": int(values.min()), "to": int(values.max())}
    row |= describe_histogram(np.bincount(depth))
    set_accuracy(row, right.sum(), len(right))
    return row
