"""From a configuration to the sentences of a treebank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from adadepth.data.labelled.collate import SequenceCollator
from adadepth.data.labelled.contract import spread_rows
from adadepth.data.labelled.splits import file_splits
from adadepth.data.labelled.table import Table, joined
from adadepth.data.padding import Examples, PretrainingCollator
from adadepth.data.pretraining.masking import Vocabulary
from adadepth.data.text.columns import column_table
from adadepth.data.text.files import as_path, find_files
from adadepth.data.text.hub import hub_tables
from adadepth.data.text.layout import Layout
from adadepth.data.text.tokenizer import PRETRAINING_TOKENS, encode_words, load_tokenizer, needed_tokens
from adadepth.data.treebank.examples import Masks, TreebankExamples
from adadepth.data.treebank.trees import COLUMNS, Trees, count_forms, per_million, read_trees
from adadepth.errors import DataError, nearest

if TYPE_CHECKING:
    from adadepth.config.tables import TreebankConfig

_SPLITS = ("train", "validation", "test")
WHOLE = "treebank"  # the set of files that are no splits


@dataclass(frozen=True)
class TreebankSet:
    """A split of a treebank.

    Attributes:
        trees: All of its words.
        per_million: Frequency of each word's form, (words,).
        plain: The evaluated sentences as they are.
        masked: The same with masked tokens, for a model that predicts them.
    """

    trees: Trees
    per_million: np.ndarray
    plain: TreebankExamples
    masked: TreebankExamples | None


@dataclass(frozen=True)
class TreebankData:
    """What is read of a treebank; nothing is trained on it.

    Attributes:
        sets: By the name of the split.
        tokenizer: The model's.
        summary: What was read, for logs and reports.
        sequence_length: Longest sequence.
        pad_to_length: Whether every batch is that long.
    """

    sets: dict[str, TreebankSet]
    tokenizer: PreTrainedTokenizerFast
    summary: dict[str, Any]
    sequence_length: int
    pad_to_length: bool

    @property
    def train(self) -> TreebankExamples:
        """Some examples, because a trainer has to have some."""
        return next(iter(self.sets.values())).plain

    def collate(self, examples: Examples) -> dict[str, Tensor]:
        """Make a padded batch; see the two collators."""
        kind = PretrainingCollator if "labels" in examples[0] else SequenceCollator
        return kind(self.tokenizer.pad_token_id, self.sequence_length, self.pad_to_length)(examples)


def load_treebank(dataset: TreebankConfig, tokenizer: str, *, masks: bool) -> TreebankData:
    """Read and tokenise the sentences of a treebank.

    Args:
        dataset: Where it is, and which splits are read.
        tokenizer: Folder or hub id of the model's own.
        masks: Whether the sentences are also masked; the tokenizer then needs [MASK].

    Raises:
        DataError: Something the files or the tokenizer lack, in one line.
    """
    words = load_tokenizer(tokenizer, PRETRAINING_TOKENS if masks else needed_tokens(1))
    tables = _tables(dataset)
    for table in tables.values():
        if missing := [name for name in COLUMNS if name not in table.columns]:
            raise DataError(f"{table.label}: a treebank has the columns {', '.join(COLUMNS)}; missing: {missing[0]}")
    counts = count_forms(tables.values())
    layout = Layout.of(words, dataset.sequence_length)
    rule = Masks(Vocabulary.of(words), dataset.masking) if masks else None
    sets = {}
    for name in _evaluated(dataset, tables):
        trees = read_trees(tables[name])
        rows = spread_rows(len(trees), dataset.max_evaluation_examples)
        pieces = encode_words(words, [trees.sentence(row) for row in rows])
        plain, masked = (TreebankExamples(pieces, trees.sentences[rows], layout, kind) for kind in (None, rule))
        sets[name] = TreebankSet(trees, per_million(trees.forms, counts), plain, masked if masks else None)
    summary = {
        "name": dataset.name, "source": "hub" if dataset.path is None else "local",
        "sequence_length": dataset.sequence_length, "counted_words": sum(counts.values()),
        "counted_in": list(tables), "tokenizer": {"path": tokenizer, "vocab_size": len(words)},
        "evaluation": {name: _describe(found, layout) for name, found in sets.items()},
    }  # fmt: skip
    return TreebankData(sets, words, summary, dataset.sequence_length, dataset.pad_to_length)


def _tables(dataset: TreebankConfig) -> dict[str, Table]:
    """Return all splits that there are, or all files as one set where they are not called like splits."""
    path = dataset.path
    if path is None:
        return hub_tables({"path": dataset.hub.path, "name": dataset.hub.name})
    is_folder = isinstance(path, str) and as_path("dataset.path", path).is_dir()
    if isinstance(path, Mapping) or is_folder:
        if found := file_splits(path, list(path) if isinstance(path, Mapping) else list(_SPLITS)):
            return found
        if not (path := sorted(map(str, as_path("dataset.path", path).glob("*.conllu")))):
            raise DataError(f"dataset.path={dataset.path}: no file of CoNLL-U (.conllu) in that folder")
    return {WHOLE: joined([column_table(file) for file in _treebank_files(path)])}


def _treebank_files(path: Any) -> list[Path]:
    files = find_files("dataset.path", path)
    for file in files:
        if file.suffix != ".conllu":
            raise DataError(f"dataset.path={file}: not a file of CoNLL-U, which ends in .conllu")
    return files


def _evaluated(dataset: TreebankConfig, tables: Mapping[str, Table]) -> list[str]:
    """Return the names of the sets to evaluate, among those that there are."""
    if dataset.evaluation_splits is None:
        return [name for name in ("validation", "test") if name in tables] or list(tables)
    for name in dataset.evaluation_splits:
        if name not in tables:
            raise DataError(
                f"dataset.evaluation_splits={name}: there is {', '.join(tables)}{nearest(name, list(tables))}"
            )
    return list(dataset.evaluation_splits)


def _describe(found: TreebankSet, layout: Layout) -> dict[str, int]:
    """Return the sentences and words there are, those evaluated, and how many sentences are cut."""
    pieces = found.plain.pieces
    tokens = [sum(map(len, words)) for words in pieces]
    return {
        "sentences": len(found.trees), "words": len(found.trees.forms), "examples": len(pieces),
        "examples_words": sum(map(len, pieces)), "tokens": sum(tokens),
        "cut": sum(length > layout.room(1) for length in tokens),
    }  # fmt: skip
