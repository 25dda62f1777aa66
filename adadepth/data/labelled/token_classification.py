"""Token classification: a label for every word of a sentence, e.g. named entities or parts of speech.

A word may consist of several tokens. Its first token has the label. The other tokens have no label. With
`labelled_pieces=all`, they have the same label, except that I-X follows B-X. Special tokens have no label.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from adadepth.data.batches import IGNORE
from adadepth.data.cache import CACHE_FORMAT, digest, get_cache_root
from adadepth.data.labelled.classes import read_classes
from adadepth.data.labelled.collators import SequenceCollator, StoredExamples
from adadepth.data.labelled.splits import open_splits
from adadepth.data.labelled.table_loader import RowStores, describe_labels, load_table, load_table_tokenizer
from adadepth.data.randomness import split_item
from adadepth.data.run_data import RunData
from adadepth.data.stores.rows import TaggedStore, write_tagged
from adadepth.data.text.special_tokens import Layout
from adadepth.data.text.table import DataTable
from adadepth.data.text.tokenizer import get_tokenizer_key
from adadepth.errors import DataError

if TYPE_CHECKING:
    from adadepth.config import TaggingConfig, TokenizerConfig


class TaggingExamples(StoredExamples[TaggedStore]):
    """Examples of token classification, which are the sentences of a store with a label for each word.

    An example has ``labels`` (S,) int64, and ``index``, its number in this set.

    Args:
        store: See `StoredExamples`.
        rows: See `StoredExamples`.
        layout: See `StoredExamples`.
        later: Label of the later tokens of a word for every label of its first token, (labels,) int64.
    """

    def __init__(self, store: TaggedStore, rows: np.ndarray, layout: Layout, later: np.ndarray) -> None:
        super().__init__(store, rows, layout)
        self.later = later

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each sequence, (examples,) int64."""
        return self.layout.lengths(self.store.lengths()[self.rows], 1)

    def __getitem__(self, item: int | tuple[int, int]) -> dict[str, Any]:
        index = split_item(item)[1]
        row = int(self.rows[index])
        tokens, starts = self.store.pieces(row)
        tags = self.store.get_tags(row)
        pieces = np.repeat(self.later[tags], np.diff(starts, append=len(tokens)))
        pieces[starts] = tags
        example = self.layout.build([tokens])
        ordinary = _find_ordinary(example)
        labels = np.full(len(example["input_ids"]), IGNORE, dtype=np.int64)
        labels[ordinary] = pieces[: len(ordinary)]
        return {**example, "labels": labels, "index": index}

    def find_first_pieces(self, index: int) -> np.ndarray:
        """Return the positions of each word's first token in a sequence, (words,), without truncated words."""
        tokens, starts = self.store.pieces(int(self.rows[index]))
        ordinary = _find_ordinary(self.layout.build([tokens]))
        positions: np.ndarray = ordinary[starts[starts < len(ordinary)]]
        return positions

    def row_number(self, index: int) -> int:
        """Return the number of an example's sentence in the data."""
        return int(self.rows[index])

    def gold(self, index: int) -> list[int]:
        """Return the tags of all words of an example, including truncated words."""
        tags: list[int] = self.store.get_tags(int(self.rows[index])).tolist()
        return tags


def _find_ordinary(example: dict[str, Any]) -> np.ndarray:
    """Return the positions of the tokens of a sequence that are not special tokens."""
    return np.flatnonzero(example["special_tokens_mask"] == 0)


def load_tagging(
    dataset: TaggingConfig, tokenizer: TokenizerConfig, cls_tokens: int = 1, classes: Sequence[str] | None = None
) -> RunData:
    """Read and tokenise sentences with a tag for each word, or load them from the cache.

    Args:
        dataset: Settings of the tables and their columns.
        tokenizer: Settings of an existing tokenizer or of one to be trained.
        cls_tokens: Number of leading [CLS] tokens.
        classes: Tags of a model, or None for the order of the data. Tags are stored under the numbers of these classes.

    Raises:
        DataError: If the data or the tokenizer lack something. The message is one line.
    """
    root, columns = get_cache_root(dataset.cache_dir), (dataset.token_column, dataset.tag_column)
    tables = open_splits(dataset, {key: [getattr(dataset, key)] for key in ("token_column", "tag_column")})
    train, searched = tables[dataset.train_split], list(tables.values())
    readers, tags = read_classes(dataset.labels, "tag_column", dataset.tag_column, tables, searched, root, classes)
    later = list_continuation_labels(tags) if dataset.labelled_pieces == "all" else np.full(len(tags), IGNORE)

    def format_name(split: str, table: DataTable, words: PreTrainedTokenizerFast) -> str:
        reads = [get_tokenizer_key(words), table.fingerprint()]
        return f"tagged-{digest(CACHE_FORMAT, columns, *readers[split].key, *reads)}"

    def write(split: str, words: PreTrainedTokenizerFast, folder: Path, table: DataTable) -> None:
        write_tagged(folder, table, columns, words, readers[split])

    row_stores = RowStores(
        format_name=format_name,
        write=write,
        open=TaggedStore.open,
        blanks={column: [] for column in columns},
        class_readers={},
    )
    return load_table(
        dataset,
        tokenizer,
        tables,
        load_tokenizer=partial(load_tokenizer_for_words, tokenizer, root, train, dataset.token_column, cls_tokens),
        row_stores=row_stores,
        build_layout=lambda words: Layout.from_tokenizer(words, dataset.sequence_length, cls_tokens).cut_at_end(),
        build_examples=partial(TaggingExamples, later=later),
        describe=partial(_describe, names=tags),
        collator=SequenceCollator,
        problem="tagging",
        labels=tags,
        splits_words=True,
    )


def load_tokenizer_for_words(
    tokenizer: TokenizerConfig, root: Path, train: DataTable, column: str, cls_tokens: int
) -> PreTrainedTokenizerFast:
    """Return the tokenizer for the column of word lists of a table; see `load_table_tokenizer`."""

    def sentences() -> Iterator[str]:
        rows = (words for batch in train.batches() for words in batch[column])
        return (" ".join(map(str, words)) for words in islice(rows, tokenizer.train_documents))

    return load_table_tokenizer(tokenizer, root, train, column, sentences, cls_tokens)


def list_continuation_labels(names: Sequence[str]) -> np.ndarray:
    """Return, for every label of a word's first token, the label of the word's later tokens.

    The label is I-X after B-X, and otherwise the same.

    Raises:
        DataError: If there is a tag B-X without a tag I-X.
    """
    numbers = {name: number for number, name in enumerate(names)}
    continued = [f"I-{name[2:]}" if name.startswith("B-") else name for name in names]
    if missing := [name for name in continued if name not in numbers]:
        raise DataError(f"dataset.labelled_pieces=all: the tag B-{missing[0][2:]} exists, but {missing[0]} does not")
    return np.array([numbers[name] for name in continued])


def _describe(examples: TaggingExamples, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the counts of a split for the data summary: rows, examples, words, tokens, truncated examples and tags."""
    store, rows = examples.store, examples.rows
    lengths = store.lengths()[rows]
    tags = np.concatenate([store.get_tags(int(row)) for row in rows])
    counts = {"rows": len(store), "examples": len(rows), "words": len(tags)}
    return {**counts, **examples.layout.count_tokens(lengths, 1), **describe_labels(tags, names)}
