"""The data of a fine-tuning run, for every kind of data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from adadepth.config.class_names import number_classes
from adadepth.config.kinds import Problem
from adadepth.data.batches import PaddingCollator
from adadepth.data.cache import digest
from adadepth.errors import DataError, nearest

if TYPE_CHECKING:
    from adadepth.config import TableConfig

ExampleSet = Dataset[dict[str, Any]]
Picture = Literal["cells", "chains"]


class TaggedExamples(Protocol):
    """A set of sequences with a tag a word, or with labelled tokens."""

    def gold(self, index: int) -> list[int]:
        """Return the tags of all words of an example, truncated ones included."""

    def find_first_pieces(self, index: int) -> np.ndarray:
        """Return the positions of each word's first token in a sequence, (words,), without truncated words."""

    def row_number(self, index: int) -> int:
        """Return the number of an example's row in the data."""


@dataclass(frozen=True)
class LabelledData:
    """Training, evaluation and test examples.

    Attributes:
        train: ``train[(epoch, index)]`` is an example, a pure function of (seed, epoch, index).
        evaluation: Split to its examples, ``[index]``, independent of the seed. The first one selects the model.
        test: Split to its examples, without labels.
        tokenizer: Tokenizer to save with the model; None where the input is a vector.
        collate: Collator of a batch: ``input_ids``, ``attention_mask``, ``token_type_ids`` (B, S) int64 and
            ``special_tokens_mask`` (B, S) uint8, or ``inputs`` (B, S) float32; ``index`` (B,) int64, ``labels`` (B,)
            int64 or float32, absent for a test, and ``difficulty`` (B,) int64 if the set has it. In tagging, ``labels``
            are (B, S) int64, the tag at the first piece of each word and -100 elsewhere; ``difficulty``, if any, is
            (B, S) too, -1 where there is none. ``position_ids`` (B, S) int64 where they do not just count up. In
            puzzles, ``labels`` are those of the cells, (B, S), -100 where no answer is asked for. For question
            answering and multiple choice see `QuestionCollator` and `ChoiceCollator`.
        summary: Description of the data, for logs and reports.
        problem: Kind of prediction.
        labels: Names of classes, tags or choices in order; empty for a regression and for question answering.
        metrics: Names of the task's metrics.
        has_difficulty: Whether examples, or their tokens, have a difficulty.
        has_special_tokens: Whether texts have [CLS] and [SEP] around them.
        picture: Drawing of an example: as ``cells`` of a grid, with their row in ``position_ids`` and their column in
            ``token_type_ids``, or as ``chains`` of pointers; None: no drawing.
        model_fields: Fields of a model's configuration that the data decide.
        least_fields: Lower bounds of such fields, where a trained model may have more.
        class_weights: Weight of an example of each class in the loss; None: 1 for all.
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


@dataclass(frozen=True)
class Numbering:
    """Numbers of classes: those of a model that reads the data, or else the data's own order.

    Attributes:
        names: Classes in the data's spelling and order; empty where they have none.
        classes: Classes in the order of their numbers, matched to those of the data by name.
        numbers: Number of each of the data's classes, (C,).
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    numbers: tuple[int, ...]

    @classmethod
    def from_classes(cls, names: Sequence[str], classes: Sequence[str] | None, source: str) -> Numbering:
        """Return the numbering of the data's classes.

        Args:
            names: Classes of the data, in their order.
            classes: Classes of a model, or None.
            source: Setting and value that name the data's classes, for messages.

        Raises:
            DataError: The model lacks a class of the data.
        """
        ordered = list(names if classes is None or not names else classes)
        numbers = number_classes(names, ordered, source)
        for name, number in zip(names, numbers, strict=True):
            ordered[number] = name  # as the data spell it
        return cls(tuple(names), tuple(ordered), tuple(numbers))

    def key(self) -> list[list[str]]:
        """Return what a cache of numbered labels depends on; in the data's own order, the names alone."""
        parts = [list(self.names)]
        return parts if self.names == self.classes else [*parts, list(self.classes)]

    def read_class(self, read: Callable[[Any], int]) -> Callable[[Any], int]:
        """Return the function from the cell of a table to the number of its class.

        Args:
            read: Function from a cell to the number in the data's own order.
        """
        return lambda value: self.numbers[read(value)]

    def read_classes(self, read: Callable[[Any], np.ndarray]) -> Callable[[Any], np.ndarray]:
        """Return the function from the labels of a row to 1 for these classes and 0 elsewhere, (classes,).

        Args:
            read: The same function in the data's own order, (names,).
        """

        def read_numbered(values: Any) -> np.ndarray:
            labels = np.zeros(len(self.classes))
            labels[list(self.numbers)] = read(values)
            return labels

        return read_numbered


def digest_tables(tables: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of the source of each split.

    Args:
        tables: Split to its table; tables without a fingerprint are left out.
    """
    return {split: digest(table.fingerprint()) for split, table in tables.items() if hasattr(table, "fingerprint")}


def spread_rows(rows: int, limit: int | None) -> np.ndarray:
    """Return at most ``limit`` of ``rows`` row numbers, evenly spread: files are often sorted by label."""
    count = rows if limit is None else min(rows, limit)
    return np.arange(count) * rows // max(count, 1)


def build_table_data(
    dataset: TableConfig,
    words: PreTrainedTokenizerFast,
    tokenizer_path: str | None,
    tables: Mapping[str, Any],
    splits: tuple[Any, Mapping[str, Any], Mapping[str, Any]],
    describe: Callable[[Any], dict[str, Any]],
    collator: type[PaddingCollator],
    problem: Problem,
    labels: tuple[str, ...] = (),
) -> LabelledData:
    """Return the data of a run on tables, from the examples of its splits.

    Args:
        dataset: Settings of the tables.
        words: Tokenizer, to be saved with the model.
        tokenizer_path: Source of the tokenizer; None: it was trained on the texts.
        tables: Split to its table.
        splits: Training, evaluation and test examples.
        describe: Function from the examples of a split to their summary.
        collator: Class of the collator.
        problem: Kind of prediction.
        labels: Names of the classes, in the order of their numbers.
    """
    train, evaluation, test = splits
    summary: dict[str, Any] = {
        "name": dataset.name,
        "source": str(dataset.source),
        "sequence_length": dataset.sequence_length,
        "train": describe(train),
        "evaluation": {split: describe(examples) for split, examples in evaluation.items()},
        "test": {split: describe(examples) for split, examples in test.items()},
        "tokenizer": {"path": tokenizer_path, "vocab_size": len(words)},
        "sources": digest_tables(tables),
    }
    collate: Any = collator(words.pad_token_id, dataset.sequence_length, dataset.pad_to_length)
    weighting = getattr(dataset, "class_weights", None)
    sets, kind = (train, dict(evaluation), dict(test)), (problem, labels, tuple(dataset.metrics))
    weights = None if weighting is None else compute_class_weights(weighting, summary["train"]["labels"])
    return LabelledData(*sets, words, collate, summary, *kind, class_weights=weights)


def compute_class_weights(weighting: Any, counts: Mapping[str, int]) -> tuple[float, ...]:
    """Return the weight of every class.

    Args:
        weighting: `balanced`: examples / (classes · examples of the class), as in scikit-learn, and 1 for a class
            without examples; or a mapping of names to weights, 1 for classes that it leaves out.
        counts: Class to the number of its training examples, in order.

    Raises:
        DataError: A name is no class.
    """
    if weighting == "balanced":
        return tuple(sum(counts.values()) / (len(counts) * count) if count else 1.0 for count in counts.values())
    for name in map(str, weighting):
        if name not in counts:
            classes = ", ".join(counts)
            raise DataError(
                f"dataset.class_weights.{name}: not a class{nearest(name, counts)}; the classes are {classes}"
            )
    weights = {str(name): float(weight) for name, weight in weighting.items()}
    return tuple(weights.get(name, 1.0) for name in counts)


def describe_labels(values: np.ndarray, labels: tuple[str, ...]) -> dict[str, Any]:
    """Return the count of each class or label, or mean and deviation of values, for the summary."""
    if values.ndim == 2:
        return {"labels": dict(zip(labels, values.sum(axis=0).astype(int).tolist(), strict=True))}
    if labels:
        counts = np.bincount(values.astype(np.int64), minlength=len(labels))
        return {"labels": dict(zip(labels, counts.tolist(), strict=True))}
    return {"mean": float(values.mean()), "std": float(values.std())} if len(values) else {}
