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
from adadepth.data.cache import digest
from adadepth.errors import DataError, nearest
from adadepth.settings.class_names import number_classes
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


@dataclass(frozen=True)
class Numbering:
    """Numbers of classes: those of a model that reads the data or, without one, those of the data's own order.

    Attributes:
        names: Classes as the data name them, in their order; empty where they have none.
        classes: Classes as they are numbered, to which those of the data belong by name.
        numbers: The number of each of the data's classes, (C,).
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    numbers: tuple[int, ...]

    @classmethod
    def of_classes(cls, names: Sequence[str], classes: Sequence[str] | None, source: str) -> Numbering:
        """Return the numbering of the data's classes.

        Args:
            names: Classes of the data, in their order.
            classes: Those of a model; None: there is none.
            source: The setting that names the data's classes, and its value, for messages.

        Raises:
            DataError: The model lacks a class of the data.
        """
        known = list(names if classes is None or not names else classes)
        numbers = number_classes(names, known, source)
        for name, number in zip(names, numbers, strict=True):
            known[number] = name  # as the data spell it
        return cls(tuple(names), tuple(known), tuple(numbers))

    def key(self) -> list[list[str]]:
        """Return what a cache of numbered labels depends on; the names alone where their own order is kept."""
        own = [list(self.names)]
        return own if self.names == self.classes else [*own, list(self.classes)]

    def read_class(self, read: Callable[[Any], int]) -> Callable[[Any], int]:
        """Return the function from what a table holds to the number of its class.

        Args:
            read: The function from that to the number in the data's own order.
        """
        return lambda value: self.numbers[read(value)]

    def read_classes(self, read: Callable[[Any], np.ndarray]) -> Callable[[Any], np.ndarray]:
        """Return the function from the labels of a row to 1 for those and 0, (classes,).

        Args:
            read: The same in the data's own order, (names,).
        """

        def read_numbered(values: Any) -> np.ndarray:
            labels = np.zeros(len(self.classes))
            labels[list(self.numbers)] = read(values)
            return labels

        return read_numbered


def digest_tables(tables: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of what each split was read from.

    Args:
        tables: Split to its table, of which only one with a fingerprint is read from somewhere.
    """
    return {split: digest(table.fingerprint()) for split, table in tables.items() if hasattr(table, "fingerprint")}


def spread_rows(rows: int, limit: int | None) -> np.ndarray:
    """Return the numbers of at most ``limit`` of ``rows`` rows, evenly spread: files are often sorted by label."""
    count = rows if limit is None else min(rows, limit)
    return np.arange(count) * rows // max(count, 1)


def data_of_tables(
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
    """Return what a run reads of tables: their `split_examples`, whose summary `describe` makes split by split.

    Args:
        dataset: Their settings.
        words: The tokenizer, to be saved with the model.
        tokenizer_path: Where it is from; None: it was trained on the texts.
        tables: Split to the table that it was read from.
        splits: The training, evaluation and test examples.
        describe: From the examples of a split to what the summary says of them.
        collator: Makes batches.
        problem: What is predicted.
        labels: Names of the classes, in the order of their numbers.
    """
    train, evaluation, test = splits
    summary: dict[str, Any] = {
        "name": dataset.name,
        "source": str(dataset.source),
        "sequence_length": dataset.sequence_length,
        "train": describe(train),
        "evaluation": {split: describe(found) for split, found in evaluation.items()},
        "test": {split: describe(found) for split, found in test.items()},
        "tokenizer": {"path": tokenizer_path, "vocab_size": len(words)},
        "sources": digest_tables(tables),
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
