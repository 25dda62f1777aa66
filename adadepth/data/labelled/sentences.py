"""Sentences and pairs of GLUE's tasks, and any table of that shape, with a class or a value each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from adadepth.data.cache import CACHE_FORMAT, cache_root, digest
from adadepth.data.labelled.bigram_shift import load_bigram_shift
from adadepth.data.labelled.collate import SequenceCollator, StoredExamples
from adadepth.data.labelled.contract import LabelledData, data_of_tables, describe_labels
from adadepth.data.labelled.load import check_submission_names
from adadepth.data.labelled.splits import cached_rows, open_splits, open_tests, split_examples, table_splits
from adadepth.data.randomness import epoch_and_index
from adadepth.data.stores.rows import LabelledStore, read_labels, write_rows
from adadepth.data.text.data_table import (
    DataTable,
    class_names,
    class_reader,
    first_texts,
    labels_reader,
    read_value,
    require_columns,
    with_lists,
)
from adadepth.data.text.layout import DoubleCls, Layout
from adadepth.data.text.tokenizer import as_fed, load_or_train, needed_tokens, parallel_encoding, tokenizer_key
from adadepth.settings.kinds import problem_of

if TYPE_CHECKING:
    from adadepth.settings import LabelledConfig, TokenizerConfig


# What a batch makes a number of, or a row of them, of a label as it is stored.
_LABEL: dict[str, Callable[[Any], Any]] = {"classification": int, "regression": float, "multi_label": np.ndarray.tolist}


class LabelledExamples(StoredExamples[LabelledStore]):
    """Some rows of a store as sequences; the same in every epoch."""

    def __init__(self, store: LabelledStore, rows: np.ndarray, layout: Layout, problem: str) -> None:
        super().__init__(store, rows, layout)
        self.problem = problem

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each sequence, (examples,) int64."""
        return self.layout.lengths(self.store.lengths()[self.rows], self.store.texts)

    def __getitem__(self, item: int | tuple[int, int]) -> dict[str, Any]:
        row = int(self.rows[epoch_and_index(item)[1]])
        example = {**self.layout.build(self.store.row(row)), "index": row}
        if self.store.labels is not None:
            example["label"] = _LABEL[self.problem](self.store.labels[row])
        if self.store.difficulty is not None:
            example["difficulty"] = int(self.store.difficulty[row])
        return example


def load_sentences(
    dataset: LabelledConfig, tokenizer: TokenizerConfig, seed: int, cls_tokens: int, double_cls_pairs: DoubleCls
) -> LabelledData:
    """Return the sentences of tables, or those of Python's documentation with words shifted.

    Raises:
        DataError: Something the data or the tokenizer lack, in one line.
    """
    if dataset.source == "embedded":
        return load_bigram_shift(dataset, tokenizer, seed, cls_tokens)
    check_submission_names(dataset.submission)
    root = cache_root(dataset.cache_dir)
    tables = open_splits(dataset, {"text_columns": dataset.text_columns}, optional=dataset.test_splits)
    tables |= open_tests(dataset)
    labelled = table_splits(dataset)
    problem = problem_of(dataset)
    assert problem is not None, "sentences have classes, labels or values"
    for split in labelled:
        require_columns(tables[split], "label_column", [dataset.label_column])
        require_columns(tables[split], "difficulty_column", _difficulty(dataset))
        if problem == "multi_label":
            tables[split] = with_lists(tables[split], dataset.label_column, dataset.label_separator)
    train = tables[dataset.train_split]
    names: tuple[str, ...] = ()
    if problem != "regression":
        names = class_names(dataset.labels, "label_column", dataset.label_column, [train], root)
    texts = dict.fromkeys(dataset.text_columns, "text_columns")
    with parallel_encoding():
        words = load_or_train(
            tokenizer,
            root,
            lambda: digest(CACHE_FORMAT, train.fingerprint(), list(dataset.text_columns)),
            lambda: first_texts(train, texts, tokenizer.train_documents),
            needed_tokens(cls_tokens),
            train.sources,
        )
        key = digest(CACHE_FORMAT, list(dataset.text_columns), list(names), tokenizer_key(words))
        stores = {
            split: _store(dataset, split, table, key, names if split in labelled else None, words, root)
            for split, table in tables.items()
        }
    layout = Layout.of(words, dataset.sequence_length, cls_tokens, double_cls_pairs)
    make = partial(LabelledExamples, layout=layout, problem=problem)
    tests = [name for name in dataset.test_splits if name in tables]
    classes = LabelledStore.classes if problem == "classification" else None
    splits = split_examples(dataset, tables, stores, make, classes, tests)
    describe = partial(_describe, names=names)
    words = as_fed(words, layout)
    data = data_of_tables(dataset, words, tokenizer.path, splits, describe, SequenceCollator, problem, names)
    return replace(data, has_difficulty=dataset.difficulty_column is not None)


def _difficulty(dataset: LabelledConfig) -> list[str]:
    """Return the column that says how hard a row is, if there is one."""
    return [] if dataset.difficulty_column is None else [dataset.difficulty_column]


def _store(
    dataset: LabelledConfig,
    split: str,
    table: DataTable,
    key: str,
    names: tuple[str, ...] | None,
    words: PreTrainedTokenizerFast,
    root: Path,
) -> LabelledStore:
    """Return a split's tokens and, unless ``names`` is None, its labels and difficulties."""
    label_column, difficulty = (None, []) if names is None else (dataset.label_column, _difficulty(dataset))
    is_one = dataset.problem == "classification"
    shape = (len(names),) if names and dataset.problem == "multi_label" else ()
    read_label: Any = read_value if not names else class_reader(names) if is_one else labels_reader(names)

    def write(folder: Path, table: DataTable) -> None:
        texts, hard = dataset.text_columns, next(iter(difficulty), None)
        write_rows(folder, table, texts, words, label_column, read_label, hard, shape)

    name = f"labelled-{digest(key, table.fingerprint(), label_column, *difficulty)}"
    classes = partial(read_labels, column=dataset.label_column, read_label=read_label) if names and is_one else None
    blanks = dict.fromkeys(dataset.text_columns, "")
    return LabelledStore.open(cached_rows(root, name, dataset, split, table, write, blanks, classes))


def _describe(examples: LabelledExamples, names: tuple[str, ...]) -> dict[str, Any]:
    """Return rows there are and rows used, how many of these are cut, and their labels."""
    store, rows = examples.store, examples.rows
    counts = {
        "rows": len(store),
        "examples": len(rows),
        "tokens": int(store.lengths()[rows].sum()),
        "cut": int((store.lengths()[rows] > examples.layout.room(store.texts)).sum()),
    }
    return counts if store.labels is None else {**counts, **describe_labels(np.asarray(store.labels[rows]), names)}
