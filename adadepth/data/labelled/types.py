"""Types that hold the data of a fine-tuning run, for every kind of data set."""

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
    """Data set of token sequences with a tag for each word, or with labels at some tokens."""

    def gold(self, index: int) -> list[int]:
        """Return the tags of all words of an example, including truncated words."""

    def find_first_pieces(self, index: int) -> np.ndarray:
        """Return the positions of each word's first token in a sequence, (words,), without truncated words."""

    def row_number(self, index: int) -> int:
        """Return the row of an example in the source data."""


@dataclass(frozen=True)
class LabelledData:
    """Training, evaluation and test examples with their tokenizer, collator and description.

    Attributes:
        train: Training examples: ``train[(epoch, index)]`` is a pure function of (seed, epoch, index).
        evaluation: Mapping from evaluation splits to their examples, ``[index]``, which are independent of the seed.
            The first split selects the best checkpoint.
        test: Mapping from test splits to their examples, which have no labels.
        tokenizer: Tokenizer to save with the model, or None if the input is a vector.
        collate: Collator of a batch. It returns ``input_ids``, ``attention_mask``, ``token_type_ids`` (B, S) int64 and
            ``special_tokens_mask`` (B, S) uint8, or ``inputs`` (B, S) float32. It also returns ``index`` (B,) int64,
            ``labels`` (B,) int64 or float32 except for a test set, and ``difficulty`` (B,) int64 if the set has it. In
            tagging, ``labels`` are (B, S) int64, with the tag at the first token of each word and -100 elsewhere.
            ``difficulty`` is then (B, S), too, and -1 at tokens without a difficulty. ``position_ids`` (B, S) int64 are
            included if positions do not just count up. In puzzles, ``labels`` are those of the cells, (B, S), and -100
            at cells without an answer. For question answering and multiple choice see `QuestionCollator` and
            `ChoiceCollator`.
        summary: Description of the data, for logs and reports.
        problem: Kind of prediction.
        labels: Names of classes, tags or choices, in order. Empty for regression and for question answering.
        metrics: Names of the task's metrics.
        has_difficulty: Whether examples, or their tokens, have a difficulty.
        has_special_tokens: Whether texts are wrapped in [CLS] and [SEP].
        picture: Kind of drawing of an example, or None for no drawing. ``cells`` draws a grid with the rows in
            ``position_ids`` and the columns in ``token_type_ids``. ``chains`` draws chains of pointers.
        model_fields: Fields of the model configuration that are determined by the data.
        least_fields: Lower bounds for fields of the model configuration. A trained model may have larger values.
        class_weights: Weight in the loss of an example of each class, or None if all weights are 1.
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
    """Assignment of class numbers to class names, in the order of a trained model or of the data set.

    Attributes:
        names: Classes with the spelling and order of the data, empty if the data have no classes.
        classes: Classes in the order of their numbers. The classes of a model are matched to those of the data by name.
        numbers: Number of each class of the data, (C,).
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    numbers: tuple[int, ...]

    @classmethod
    def from_classes(cls, names: Sequence[str], classes: Sequence[str] | None, source: str) -> Numbering:
        """Build the numbering of a data set's class names.

        Args:
            names: Classes of the data, in their order.
            classes: Classes of a model, or None for the order of the data.
            source: Setting and value that name the data's classes, for messages.

        Raises:
            DataError: If the model lacks a class of the data.
        """
        ordered = list(names if classes is None or not names else classes)
        numbers = number_classes(names, ordered, source)
        for name, number in zip(names, numbers, strict=True):
            ordered[number] = name  # as the data spell it
        return cls(tuple(names), tuple(ordered), tuple(numbers))

    def key(self) -> list[list[str]]:
        """Return JSON values that identify this numbering, for the names of label caches.

        If the classes are in the order of the data, these values are only the names.
        """
        parts = [list(self.names)]
        return parts if self.names == self.classes else [*parts, list(self.classes)]

    def read_class(self, read: Callable[[Any], int]) -> Callable[[Any], int]:
        """Return a function that converts a table cell to the number of its class.

        Args:
            read: Function from a cell to the number of its class in the order of the data.
        """
        return lambda value: self.numbers[read(value)]

    def read_classes(self, read: Callable[[Any], np.ndarray]) -> Callable[[Any], np.ndarray]:
        """Return a function that converts the labels of a row to a 0/1 vector over the classes, (classes,).

        Args:
            read: Same function for the order of the data, with a result of shape (names,).
        """

        def read_numbered(values: Any) -> np.ndarray:
            labels = np.zeros(len(self.classes))
            labels[list(self.numbers)] = read(values)
            return labels

        return read_numbered


def digest_tables(tables: Mapping[str, Any]) -> dict[str, str]:
    """Return a hash of the source files of each split.

    Args:
        tables: Mapping from splits to their tables. Tables without a fingerprint are skipped.
    """
    return {split: digest(table.fingerprint()) for split, table in tables.items() if hasattr(table, "fingerprint")}


def spread_rows(rows: int, limit: int | None) -> np.ndarray:
    """Return at most ``limit`` of ``rows`` row numbers, evenly spaced because files are often sorted by label."""
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
    """Return the data of a run on tables, built from the examples of its splits.

    Args:
        dataset: Settings of the tables.
        words: Tokenizer to save with the model.
        tokenizer_path: Source of the tokenizer, or None if it was trained on the texts.
        tables: Mapping from splits to their tables.
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
    """Return the weight of every class in the loss.

    Args:
        weighting: Either `balanced` or a mapping of names to weights. `balanced` is examples / (classes · examples of
            the class), as in scikit-learn, and 1 for a class without examples. In a mapping, classes that are not named
            have weight 1.
        counts: Mapping from classes, in order, to the number of their training examples.

    Raises:
        DataError: If a name is not a class.
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
    """Return a summary of labels: the count of each class, or the mean and standard deviation of values."""
    if values.ndim == 2:
        return {"labels": dict(zip(labels, values.sum(axis=0).astype(int).tolist(), strict=True))}
    if labels:
        counts = np.bincount(values.astype(np.int64), minlength=len(labels))
        return {"labels": dict(zip(labels, counts.tolist(), strict=True))}
    return {"mean": float(values.mean()), "std": float(values.std())} if len(values) else {}
