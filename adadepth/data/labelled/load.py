"""Labelled data: sentences and pairs of GLUE's tasks and any table of that shape, and what other modules make."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from adadepth.config import ChoiceConfig, LabelledConfig, QuestionConfig, TaggingConfig
from adadepth.config.generated import AdditionConfig, HopsConfig, MazeConfig, ParityConfig
from adadepth.config.puzzles import MazePathConfig, PuzzleTableConfig, SudokuConfig
from adadepth.data.cache import CACHE_FORMAT, cache_root, digest
from adadepth.data.generated.addition import load_addition
from adadepth.data.generated.bigram_shift import load_bigram_shift
from adadepth.data.generated.hops import load_hops
from adadepth.data.generated.maze import load_maze
from adadepth.data.generated.parity import load_parity
from adadepth.data.labelled.collate import SequenceCollator
from adadepth.data.labelled.contract import LabelledData, Problem, data_of_tables, describe_labels
from adadepth.data.labelled.examples import StoredExamples
from adadepth.data.labelled.held_out import split_examples, table_splits
from adadepth.data.labelled.labels import class_names, class_reader, read_value
from adadepth.data.labelled.multiple_choice import load_choices
from adadepth.data.labelled.question_answering import load_questions
from adadepth.data.labelled.splits import open_splits, open_tests
from adadepth.data.labelled.submission import check_submission_names
from adadepth.data.labelled.subset import cached_rows
from adadepth.data.labelled.table import Table, first_texts, require_columns
from adadepth.data.labelled.tagging import load_tagging
from adadepth.data.puzzles.maze_path import load_maze_path
from adadepth.data.puzzles.sudoku_task import load_sudoku
from adadepth.data.puzzles.table import load_puzzle_table
from adadepth.data.randomness import epoch_and_index
from adadepth.data.stores.rows import LabelledStore, open_store, read_labels, write_store
from adadepth.data.text.layout import DoubleCls, Layout
from adadepth.data.text.saved import as_fed
from adadepth.data.text.tokenizer import load_or_train, needed_tokens, parallel_encoding

if TYPE_CHECKING:
    from adadepth.config import DatasetConfig, TokenizerConfig


def load_labelled_data(
    dataset: DatasetConfig,
    tokenizer: TokenizerConfig,
    seed: int,
    *,
    cls_tokens: int = 1,
    double_cls_pairs: DoubleCls = "first",
) -> LabelledData:
    """Read and tokenise labelled data, or take from the cache what was done before.

    Safe to call from several processes at once; one of them does the work.

    Args:
        dataset: A `LabelledConfig`, `TaggingConfig`, `QuestionConfig`, `ChoiceConfig` or `GeneratedConfig`.
        tokenizer: Existing, or trained on the training texts; not read where the data set has symbols of its own.
        seed: Of what is drawn: shifted words, generated examples.
        cls_tokens: How many [CLS] a sequence begins with; they count against ``dataset.sequence_length``. 0: the model
            needs none, so any tokenizer with a padding token will do, and its own special tokens are used.
        double_cls_pairs: ``both``: the second text of a pair gets the further [CLS] too.

    Raises:
        DataError: Something the data or the tokenizer lack, in one line.
    """
    if isinstance(dataset, ParityConfig):
        return load_parity(dataset, seed, cls_tokens)
    if isinstance(dataset, MazeConfig):
        return load_maze(dataset, seed)
    if isinstance(dataset, HopsConfig):
        return load_hops(dataset, seed, cls_tokens)
    if isinstance(dataset, AdditionConfig):
        return load_addition(dataset, seed)
    if isinstance(dataset, SudokuConfig):
        return load_sudoku(dataset, seed)
    if isinstance(dataset, MazePathConfig):
        return load_maze_path(dataset, seed)
    if isinstance(dataset, PuzzleTableConfig):
        return load_puzzle_table(dataset, seed)
    if isinstance(dataset, TaggingConfig):
        return load_tagging(dataset, tokenizer, cls_tokens)
    if isinstance(dataset, QuestionConfig):
        return load_questions(dataset, tokenizer, cls_tokens)
    if isinstance(dataset, ChoiceConfig):
        return load_choices(dataset, tokenizer, cls_tokens)
    assert isinstance(dataset, LabelledConfig), "validated"
    if dataset.source == "embedded":
        return load_bigram_shift(dataset, tokenizer, seed, cls_tokens)
    return _load_tables(dataset, tokenizer, cls_tokens, double_cls_pairs)


class LabelledExamples(StoredExamples[LabelledStore]):
    """Some rows of a store as sequences; the same in every epoch."""

    def __init__(self, store: LabelledStore, rows: np.ndarray, layout: Layout, problem: str) -> None:
        super().__init__(store, rows, layout)
        self.label_type = float if problem == "regression" else int

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each sequence, (examples,) int64."""
        return self.layout.lengths(self.store.lengths()[self.rows], self.store.texts)

    def __getitem__(self, item: int | tuple[int, int]) -> dict[str, Any]:
        row = int(self.rows[epoch_and_index(item)[1]])
        example = {**self.layout.build(self.store.row(row)), "index": row}
        if self.store.labels is not None:
            example["label"] = self.label_type(self.store.labels[row])
        if self.store.difficulty is not None:
            example["difficulty"] = int(self.store.difficulty[row])
        return example


def _load_tables(
    dataset: LabelledConfig, tokenizer: TokenizerConfig, cls_tokens: int, double_cls_pairs: DoubleCls
) -> LabelledData:
    check_submission_names(dataset.submission)
    root = cache_root(dataset.cache_dir)
    tables = open_splits(dataset, {"text_columns": dataset.text_columns}, optional=dataset.test_splits)
    tables |= open_tests(dataset)
    labelled = table_splits(dataset)
    for split, table in tables.items():
        if split in labelled:
            require_columns(table, "label_column", [dataset.label_column])
            require_columns(table, "difficulty_column", _difficulty(dataset))
    train = tables[dataset.train_split]
    names: tuple[str, ...] = ()
    if dataset.problem != "regression":
        names = class_names(dataset.labels, "label_column", dataset.label_column, [train], root)
    with parallel_encoding():
        words = load_or_train(
            tokenizer, root, lambda: digest(CACHE_FORMAT, train.fingerprint(), list(dataset.text_columns)),
            lambda: first_texts(train, dataset.text_columns, tokenizer.train_documents), needed_tokens(cls_tokens),
        )  # fmt: skip
        key = digest(CACHE_FORMAT, list(dataset.text_columns), list(names), words.backend_tokenizer.to_str())
        stores = {
            split: _store(dataset, split, table, key, names if split in labelled else None, words, root)
            for split, table in tables.items()
        }
    layout = Layout.of(words, dataset.sequence_length, cls_tokens, double_cls_pairs)
    make = partial(LabelledExamples, layout=layout, problem=dataset.problem)
    tests = [name for name in dataset.test_splits if name in tables]
    splits = split_examples(dataset, tables, stores, make, LabelledStore.classes if names else None, tests)
    problem: Problem = "regression" if dataset.problem == "regression" else "classification"
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
    table: Table,
    key: str,
    names: tuple[str, ...] | None,
    words: PreTrainedTokenizerFast,
    root: Path,
) -> LabelledStore:
    """Return a split's tokens and, unless ``names`` is None, its labels and difficulties."""
    label_column, difficulty = (None, []) if names is None else (dataset.label_column, _difficulty(dataset))
    read_label = class_reader(names) if names else read_value

    def write(folder: Path, table: Table) -> None:
        write_store(folder, table, dataset.text_columns, words, label_column, read_label, *difficulty)

    name = f"labelled-{digest(key, table.fingerprint(), label_column, *difficulty)}"
    classes = partial(read_labels, column=dataset.label_column, read_label=read_label) if names else None
    blanks = dict.fromkeys(dataset.text_columns, "")
    folder = cached_rows(root, name, dataset, split, table, write, blanks, classes)
    return open_store(folder, len(dataset.text_columns))


def _describe(examples: LabelledExamples, names: tuple[str, ...]) -> dict[str, Any]:
    """Return rows there are and rows used, how many of these are cut, and their labels."""
    store, rows = examples.store, examples.rows
    counts = {
        "rows": len(store), "examples": len(rows), "tokens": int(store.lengths()[rows].sum()),
        "cut": int((store.lengths()[rows] > examples.layout.room(store.texts)).sum()),
    }  # fmt: skip
    return counts if store.labels is None else {**counts, **describe_labels(np.asarray(store.labels[rows]), names)}
