"""Sequence classification and regression: GLUE's tasks, and any table of texts or pairs of texts with labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerFast

from adadepth.config.kinds import get_problem
from adadepth.data.cache import CACHE_FORMAT, digest, get_cache_root
from adadepth.data.labelled.bigram_shift import load_bigram_shift
from adadepth.data.labelled.classes import build_class_readers, class_names, read_value, with_lists
from adadepth.data.labelled.collators import SequenceCollator, StoredExamples
from adadepth.data.labelled.columns import TextColumns, choose_columns
from adadepth.data.labelled.load import check_submission_names
from adadepth.data.labelled.splits import (
    ensure_rows,
    list_table_splits,
    load_table_tokenizer,
    open_splits,
    open_tests,
    split_examples,
)
from adadepth.data.labelled.types import Numbering, build_table_data, describe_labels
from adadepth.data.randomness import split_item
from adadepth.data.run_data import RunData
from adadepth.data.stores.rows import LabelledStore, read_labels, write_rows
from adadepth.data.text.special_tokens import DoubleCls, Layout
from adadepth.data.text.table import DataTable, read_first_texts, require_columns
from adadepth.data.text.tokenizer import get_tokenizer_key, parallel_encoding, with_data_layout

if TYPE_CHECKING:
    from adadepth.config import LabelledConfig, TokenizerConfig


# Function from a stored label to the number, or the row of numbers, of a batch.
_LABEL: dict[str, Callable[[Any], Any]] = {"classification": int, "regression": float, "multi_label": np.ndarray.tolist}


class LabelledExamples(StoredExamples[LabelledStore]):
    """Examples of sequence classification or regression, which are the tokenised rows of a table."""

    def __init__(self, store: LabelledStore, rows: np.ndarray, layout: Layout, problem: str) -> None:
        super().__init__(store, rows, layout)
        self.problem = problem

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each sequence, (examples,) int64."""
        return self.layout.lengths(self.store.lengths()[self.rows], self.store.texts)

    def __getitem__(self, item: int | tuple[int, int]) -> dict[str, Any]:
        row = int(self.rows[split_item(item)[1]])
        example = {**self.layout.build(self.store.row(row)), "index": row}
        if self.store.labels is not None:
            example["label"] = _LABEL[self.problem](self.store.labels[row])
        if self.store.difficulty is not None:
            example["difficulty"] = int(self.store.difficulty[row])
        return example


def load_sentences(
    dataset: LabelledConfig,
    tokenizer: TokenizerConfig,
    seed: int,
    cls_tokens: int,
    double_cls_pairs: DoubleCls,
    classes: Sequence[str] | None = None,
) -> RunData:
    """Return the labelled data of a table of texts, or of the bigram-shift task.

    Args:
        dataset: Settings of the tables and their columns.
        tokenizer: Settings of an existing tokenizer or of one to be trained.
        seed: Seed of the shifted words.
        cls_tokens: Number of leading [CLS] tokens; see `load_labelled_data`.
        double_cls_pairs: Setting for pairs. With ``both``, the second text of a pair also gets the additional [CLS].
        classes: Classes of a model, or None for the order of the data. Labels are stored under the numbers of these
            classes.

    Raises:
        DataError: If the data or the tokenizer lack something. The message is one line.
    """
    if dataset.source == "embedded":
        return load_bigram_shift(dataset, tokenizer, seed, cls_tokens)
    check_submission_names(dataset.submission)
    root = get_cache_root(dataset.cache_dir)
    tables = open_splits(dataset, {}, optional=dataset.test_splits)
    tables |= open_tests(dataset)
    columns = choose_columns(dataset, tables[dataset.train_split])
    for table in tables.values():
        require_columns(table, "text_columns", columns.texts)
    problem = get_problem(dataset)
    assert problem is not None, "sentences have classes, labels or values"
    for split in list_table_splits(dataset):
        require_columns(tables[split], "label_column", [columns.label])
        require_columns(tables[split], "difficulty_column", _list_difficulty_columns(dataset))
        if problem == "multi_label":
            tables[split] = with_lists(tables[split], columns.label, dataset.label_separator)
    train = tables[dataset.train_split]
    numbering, readers = _read_classes(dataset, columns.label, tables, root, classes)
    with parallel_encoding():
        words = load_tokenizer_for_texts(tokenizer, root, train, columns.texts, cls_tokens)
        stores = {
            split: _open_store(dataset, columns, split, table, readers.get(split), words, root)
            for split, table in tables.items()
        }
    layout = Layout.from_tokenizer(words, dataset.sequence_length, cls_tokens, double_cls_pairs)
    make = partial(LabelledExamples, layout=layout, problem=problem)
    tests = [name for name in dataset.test_splits if name in tables]
    strata = LabelledStore.classes if problem == "classification" else None
    splits = split_examples(dataset, tables, stores, make, strata, tests)
    describe = partial(_describe, names=numbering.classes)
    words = with_data_layout(words, layout)
    data = build_table_data(
        dataset, words, tokenizer, tables, splits, describe, SequenceCollator, problem, numbering.classes
    )
    summary = {**data.summary, "text_columns": columns.texts, "label_column": columns.label}
    return replace(data, summary=summary, has_difficulty=dataset.difficulty_column is not None)


def load_tokenizer_for_texts(
    tokenizer: TokenizerConfig, root: Path, train: DataTable, columns: Sequence[str], cls_tokens: int
) -> PreTrainedTokenizerFast:
    """Return the tokenizer for a table of texts; see `load_table_tokenizer`."""
    texts = partial(read_first_texts, train, dict.fromkeys(columns, "text_columns"), tokenizer.train_documents)
    return load_table_tokenizer(tokenizer, root, train, list(columns), texts, cls_tokens)


def _list_difficulty_columns(dataset: LabelledConfig) -> list[str]:
    """Return a list with the column of difficulties, or an empty list if none is configured."""
    return [] if dataset.difficulty_column is None else [dataset.difficulty_column]


def _read_classes(
    dataset: LabelledConfig,
    column: str,
    tables: dict[str, DataTable],
    root: Path,
    model_classes: Sequence[str] | None,
) -> tuple[Numbering, dict[str, _LabelReader]]:
    """Return the class names with their numbering, and the reader of the labels of every split.

    The numbering is empty for a regression. If ``model_classes`` is given, labels get the numbers of the classes of
    that model.
    """
    labelled = {split: tables[split] for split in list_table_splits(dataset)}
    if dataset.problem == "regression":
        return Numbering((), (), ()), dict.fromkeys(labelled, _LabelReader(read_value, "value"))
    train = labelled[dataset.train_split]
    names = class_names(dataset.labels, "label_column", column, [train], root)
    has_order = bool(dataset.labels) or column in train.class_names
    classes = build_class_readers(names, "label_column", column, labelled, root, has_order=has_order)
    numbering = Numbering.from_classes(names, model_classes, f"dataset.label_column={column}")
    keys = {split: [reader.key(), *numbering.key()] for split, reader in classes.items()}
    if dataset.problem == "classification":
        return numbering, {
            split: _LabelReader(numbering.read_class(reader), keys[split]) for split, reader in classes.items()
        }
    shape = (len(numbering.classes),)
    return numbering, {
        split: _LabelReader(numbering.read_classes(reader.read_several), keys[split], shape)
        for split, reader in classes.items()
    }


class _LabelReader(NamedTuple):
    """Function that converts the labels of a split to numbers, with its cache key and the shape of a label."""

    read: Callable[[Any], Any]
    key: Any
    shape: tuple[int, ...] = ()


def _open_store(
    dataset: LabelledConfig,
    columns: TextColumns,
    split: str,
    table: DataTable,
    reader: _LabelReader | None,
    words: PreTrainedTokenizerFast,
    root: Path,
) -> LabelledStore:
    """Load the tokens of a split from the cache and, unless ``reader`` is None, its labels and difficulties."""
    difficulty = next(iter(_list_difficulty_columns(dataset)), None)
    classes = None
    if reader is not None and dataset.problem == "classification":
        classes = partial(read_labels, column=columns.label, read_label=reader.read)

    def write(folder: Path, table: DataTable) -> None:
        if reader is None:
            write_rows(folder, table, columns.texts, words, None, read_value)
        else:
            write_rows(folder, table, columns.texts, words, columns.label, reader.read, difficulty, reader.shape)

    labels = None if reader is None else [columns.label, reader.key, difficulty]
    key = digest(CACHE_FORMAT, columns.texts, labels, get_tokenizer_key(words), table.fingerprint())
    blanks = dict.fromkeys(columns.texts, "")
    return LabelledStore.open(ensure_rows(root, f"labelled-{key}", dataset, split, table, write, blanks, classes))


def _describe(examples: LabelledExamples, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the counts of a split for the data summary: rows, examples, tokens, truncated examples and labels."""
    store, rows = examples.store, examples.rows
    counts = {
        "rows": len(store),
        "examples": len(rows),
        "tokens": int(store.lengths()[rows].sum()),
        "cut": int((store.lengths()[rows] > examples.layout.room(store.texts)).sum()),
    }
    return counts if store.labels is None else {**counts, **describe_labels(np.asarray(store.labels[rows]), names)}
