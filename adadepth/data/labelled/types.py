"""Parts of labelled data sets: tagged examples, the numbering of classes, class weights and summaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from transformers import PreTrainedTokenizerFast

from adadepth.config.class_names import number_classes
from adadepth.config.kinds import Problem
from adadepth.data.batches import PaddingCollator
from adadepth.data.cache import digest
from adadepth.data.run_data import RunData, describe_tokenizer, summarise_data
from adadepth.errors import DataError, nearest

if TYPE_CHECKING:
    from adadepth.config import TableConfig, TokenizerConfig


class TaggedExamples(Protocol):
    """Data set of token sequences with a tag for each word, or with labels at some tokens."""

    def gold(self, index: int) -> list[int]:
        """Return the tags of all words of an example, including truncated words."""

    def find_first_pieces(self, index: int) -> np.ndarray:
        """Return the positions of each word's first token in a sequence, (words,), without truncated words."""

    def row_number(self, index: int) -> int:
        """Return the row of an example in the source data."""


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
    tokenizer: TokenizerConfig,
    tables: Mapping[str, Any],
    splits: tuple[Any, Mapping[str, Any], Mapping[str, Any]],
    describe: Callable[[Any], dict[str, Any]],
    collator: type[PaddingCollator],
    problem: Problem,
    labels: tuple[str, ...] = (),
) -> RunData:
    """Return the data of a run on tables, built from the examples of its splits.

    Args:
        dataset: Settings of the tables.
        words: Tokenizer to save with the model.
        tokenizer: Settings of the tokenizer.
        tables: Mapping from splits to their tables.
        splits: Training, evaluation and test examples.
        describe: Function from the examples of a split to their summary.
        collator: Class of the collator.
        problem: Kind of prediction.
        labels: Names of the classes, in the order of their numbers.
    """
    train, evaluation, test = splits
    counts = {
        "train": describe(train),
        "evaluation": {split: describe(examples) for split, examples in evaluation.items()},
        "test": {split: describe(examples) for split, examples in test.items()},
    }
    weighting = getattr(dataset, "class_weights", None)
    collate: Any = collator(words.pad_token_id, dataset.sequence_length, dataset.pad_to_length)
    return RunData(
        train=train,
        evaluation=evaluation,
        test=test,
        tokenizer=words,
        collate=collate,
        summary=summarise_data(
            dataset,
            counts,
            facts={"sequence_length": dataset.sequence_length},
            tokenizer=describe_tokenizer(tokenizer, words),
            identity={"sources": digest_tables(tables)},
        ),
        problem=problem,
        labels=labels,
        metrics=tuple(dataset.metrics),
        class_weights=None if weighting is None else compute_class_weights(weighting, counts["train"]["labels"]),
    )


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
