"""Sequence classification and regression: GLUE's tasks, and any table of texts or pairs of texts with labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerFast

from adadepth.config.kinds import get_problem
from adadepth.data.cache import CACHE_FORMAT, digest, get_cache_root
from adadepth.data.labelled.bigram_shift import load_bigram_shift
from adadepth.data.labelled.classes import read_classes, read_value, with_lists
from adadepth.data.labelled.collators import SequenceCollator, StoredExamples
from adadepth.data.labelled.columns import choose_columns
from adadepth.data.labelled.splits import list_table_splits, open_splits, open_tests
from adadepth.data.labelled.submission import check_submission_names
from adadepth.data.labelled.table_loader import RowStores, describe_labels, load_table, load_table_tokenizer
from adadepth.data.randomness import split_item
from adadepth.data.run_data import RunData
from adadepth.data.stores.rows import LabelledStore, read_labels, write_rows
from adadepth.data.text.special_tokens import DoubleCls, Layout
from adadepth.data.text.table import DataTable, read_first_texts, require_columns
from adadepth.data.text.tokenizer import get_tokenizer_key

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
    difficulty = dataset.difficulty_column
    for split in list_table_splits(dataset):
        require_columns(tables[split], "label_column", [columns.label])
        require_columns(tables[split], "difficulty_column", [] if difficulty is None else [difficulty])
        if problem == "multi_label":
            tables[split] = with_lists(tables[split], columns.label, dataset.label_separator)
    readers, names = _build_label_readers(dataset, columns.label, tables, root, classes)

    def format_name(split: str, table: DataTable, words: PreTrainedTokenizerFast) -> str:
        labels = [columns.label, readers[split].key, difficulty] if split in readers else None
        return f"labelled-{digest(CACHE_FORMAT, columns.texts, labels, get_tokenizer_key(words), table.fingerprint())}"

    def write(split: str, words: PreTrainedTokenizerFast, folder: Path, table: DataTable) -> None:
        if split in readers:
            reader = readers[split]
            write_rows(folder, table, columns.texts, words, columns.label, reader.read, difficulty, reader.shape)
        else:
            write_rows(folder, table, columns.texts, words, None, read_value)

    has_classes = problem == "classification"
    class_readers = {
        split: partial(read_labels, column=columns.label, read_label=reader.read) for split, reader in readers.items()
    }
    row_stores = RowStores(
        format_name=format_name,
        write=write,
        open=LabelledStore.open,
        blanks=dict.fromkeys(columns.texts, ""),
        class_readers=class_readers if has_classes else {},
    )
    train = tables[dataset.train_split]
    return load_table(
        dataset,
        tokenizer,
        tables,
        load_tokenizer=partial(load_tokenizer_for_texts, tokenizer, root, train, columns.texts, cls_tokens),
        row_stores=row_stores,
        build_layout=lambda words: Layout.from_tokenizer(words, dataset.sequence_length, cls_tokens, double_cls_pairs),
        build_examples=partial(LabelledExamples, problem=problem),
        describe=partial(_describe, names=names),
        collator=SequenceCollator,
        problem=problem,
        labels=names,
        strata=LabelledStore.classes if has_classes else None,
        test_splits=[name for name in dataset.test_splits if name in tables],
        has_difficulty=difficulty is not None,
        columns={"text_columns": columns.texts, "label_column": columns.label},
    )


def load_tokenizer_for_texts(
    tokenizer: TokenizerConfig, root: Path, train: DataTable, columns: Sequence[str], cls_tokens: int
) -> PreTrainedTokenizerFast:
    """Return the tokenizer for a table of texts; see `load_table_tokenizer`."""
    texts = partial(read_first_texts, train, dict.fromkeys(columns, "text_columns"), tokenizer.train_documents)
    return load_table_tokenizer(tokenizer, root, train, list(columns), texts, cls_tokens)


class _LabelReader(NamedTuple):
    """Function that converts the labels of a split to numbers, with its cache key and the shape of a label."""

    read: Callable[[Any], Any]
    key: Any
    shape: tuple[int, ...] = ()


def _build_label_readers(
    dataset: LabelledConfig,
    column: str,
    tables: dict[str, DataTable],
    root: Path,
    model_classes: Sequence[str] | None,
) -> tuple[dict[str, _LabelReader], tuple[str, ...]]:
    """Return the reader of the labels of every labelled split, and the names of the classes in their order.

    A regression has no names. If ``model_classes`` is given, labels get the numbers of the classes of that model.
    """
    labelled = {split: tables[split] for split in list_table_splits(dataset)}
    if dataset.problem == "regression":
        return dict.fromkeys(labelled, _LabelReader(read_value, "value")), ()
    searched = [labelled[dataset.train_split]]
    readers, names = read_classes(dataset.labels, "label_column", column, labelled, searched, root, model_classes)
    if dataset.problem == "classification":
        return {split: _LabelReader(reader, reader.key) for split, reader in readers.items()}, names
    shape = (len(names),)
    return {split: _LabelReader(reader.read_several, reader.key, shape) for split, reader in readers.items()}, names


def _describe(examples: LabelledExamples, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the counts of a split for the data summary: rows, examples, tokens, truncated examples and labels."""
    store, rows = examples.store, examples.rows
    counts = {
        "rows": len(store),
        "examples": len(rows),
        **examples.layout.count_tokens(store.lengths()[rows], store.texts),
    }
    return counts if store.labels is None else {**counts, **describe_labels(np.asarray(store.labels[rows]), names)}
