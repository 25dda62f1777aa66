"""What a fine-tuning run reads, whatever kind of data set it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from adadepth.data.batches import PaddingCollator
from adadepth.errors import DataError, nearest
from adadepth.settings.kinds import Problem

if TYPE_CHECKING:
    from adadepth.settings import TableConfig

ExampleSet = Dataset[dict[str, Any]]
Picture = Literal["cells", "chains"]


class TaggedExamples(Protocol):
    """A set of sequences with a tag a word, or a labelled token."""

    def gold(self, index: int) -> list[int]:
        """Return the tags of all words of an example, also of those that its sequence has no room for."""

    def first_pieces(self, index: int) -> np.ndarray:
        """Return where in an example's sequence its words begin, those that it has no room for left out, (words,)."""

    def row_number(self, index: int) -> int:
        """Return the number of an example's row in the data."""


@dataclass(frozen=True)
class LabelledData:
    """Training, evaluation and test examples.

    Attributes:
        train: ``train[(epoch, index)]`` is an example, a pure function of (seed, epoch, index).
        evaluation: Split to its examples, ``[index]``, independent of the seed. The first one selects the model.
        test: Split to its examples, without labels.
        tokenizer: To be saved with the model; None where the input is a vector.
        collate: Makes a batch of examples: ``input_ids``, ``attention_mask``, ``token_type_ids`` (B, S) int64 and
            ``special_tokens_mask`` (B, S) uint8, or ``inputs`` (B, S) float32; ``index`` (B,) int64, ``labels`` (B,)
            int64 or float32, absent for a test, and ``difficulty`` (B,) int64 if the set has it. Of tagging, ``labels``
            are (B, S) int64, the tag at the first piece of each word and -100 elsewhere, and ``difficulty``, if there
            is one, (B, S) too, -1 where there is none. ``position_ids`` (B, S) int64 where they do not just count up.
            Of puzzles, ``labels`` are those of the cells, (B, S), -100 where none is asked for.
            What question answering and multiple choice have instead: `QuestionCollator`, `ChoiceCollator`.
        summary: What was read, for logs and reports.
        problem: What is predicted.
        labels: Names of classes, tags or choices in order; empty for a regression and for question answering.
        metrics: Names of the task's metrics.
        has_difficulty: Whether examples, or their tokens, say how hard they are.
        has_special_tokens: Whether [CLS] and [SEP] are around the texts.
        picture: How an example is drawn: as ``cells`` of a grid, with their row in ``position_ids`` and their column in
            ``token_type_ids``, or as ``chains`` of pointers; None: not at all.
        model_fields: What the data decide of a model's configuration.
        least_fields: The same of numbers of which a trained model may have more.
        class_weights: What an example of each class counts in the loss, where that is not 1.
    """

    train: ExampleSet
    evaluation: dict[str, ExampleSet]
    test: dict[str, ExampleSet]
    tokenizer: PreTrainedTokenizerFast | None
    collate: Callable[[Sequence[dict[str, Any]]], dict[str, Tensor]]
    summary: dict[str, Any]
    problem: Problem
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    has_difficulty: bool = False
    has_special_tokens: bool = True
    picture: Picture | None = None
    model_fields: Mapping[str, Any] = field(default_factory=dict)
    class_weights: tuple[float, ...] | None = None
    least_fields: Mapping[str, int] = field(default_factory=dict)


def spread_rows(rows: int, limit: int | None) -> np.ndarray:
    """Return the numbers of at most ``limit`` of ``rows`` rows, evenly spread: files are often sorted by label."""
    count = rows if limit is None else min(rows, limit)
    return np.arange(count) * rows // max(count, 1)


def data_of_tables(
    dataset: TableConfig,
    words: PreTrainedTokenizerFast,
    tokenizer_path: str | None,
    splits: tuple[Any, Mapping[str, Any], Mapping[str, Any]],
    describe: Callable[[Any], dict[str, Any]],
    collator: type[PaddingCollator],
    problem: Problem,
    labels: tuple[str, ...] = (),
) -> LabelledData:
    """Return what a run reads of tables: their `split_examples`, whose summary `describe` makes split by split."""
    train, evaluation, test = splits
    summary: dict[str, Any] = {
        "name": dataset.name,
        "source": str(dataset.source),
        "sequence_length": dataset.sequence_length,
        "train": describe(train),
        "evaluation": {split: describe(found) for split, found in evaluation.items()},
        "test": {split: describe(found) for split, found in test.items()},
        "tokenizer": {"path": tokenizer_path, "vocab_size": len(words)},
    }
    collate: Any = collator(words.pad_token_id, dataset.sequence_length, dataset.pad_to_length)
    wanted = getattr(dataset, "class_weights", None)
    sets, kind = (train, dict(evaluation), dict(test)), (problem, labels, tuple(dataset.metrics))
    weights = None if wanted is None else weights_of_classes(wanted, summary["train"]["labels"])
    return LabelledData(*sets, words, collate, summary, *kind, class_weights=weights)


def weights_of_classes(wanted: Any, counts: Mapping[str, int]) -> tuple[float, ...]:
    """Return the weight of every class.

    Args:
        wanted: `balanced`: examples / (classes · examples of the class), as scikit-learn has it, and 1 for a class that
            has none; or a mapping of names to weights, 1 for the others.
        counts: Class to its training examples, in order.

    Raises:
        DataError: A name is no class.
    """
    if wanted == "balanced":
        return tuple(sum(counts.values()) / (len(counts) * count) if count else 1.0 for count in counts.values())
    for name in map(str, wanted):
        if name not in counts:
            known = ", ".join(counts)
            raise DataError(f"dataset.class_weights.{name}: no class{nearest(name, counts)}; there are {known}")
    weights = {str(name): float(weight) for name, weight in wanted.items()}
    return tuple(weights.get(name, 1.0) for name in counts)


def describe_labels(values: np.ndarray, labels: tuple[str, ...]) -> dict[str, Any]:
    """Return how often each class or label occurs, or mean and deviation of values, for the summary."""
    if values.ndim == 2:
        return {"labels": dict(zip(labels, values.sum(axis=0).astype(int).tolist(), strict=True))}
    if labels:
        counts = np.bincount(values.astype(np.int64), minlength=len(labels))
        return {"labels": dict(zip(labels, counts.tolist(), strict=True))}
    return {"mean": float(values.mean()), "std": float(values.std())} if len(values) else {}
