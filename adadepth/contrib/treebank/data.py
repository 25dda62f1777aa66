"""Treebank words with part of speech, dependency relation, tree depth and frequency, and sentences as examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from adadepth.data.batches import Examples, PaddingCollator, PretrainingCollator
from adadepth.data.cache import require_unchanged
from adadepth.data.labelled.collators import SequenceCollator
from adadepth.data.labelled.splits import open_file_splits, spread_rows
from adadepth.data.pretraining.examples import NO_PAIR
from adadepth.data.pretraining.masking import Vocabulary, mask_tokens
from adadepth.data.randomness import EVALUATION_SEED, FIXED_EPOCH, Purpose, random_generator, split_item
from adadepth.data.run_data import RunData, summarise_data
from adadepth.data.text.hub import load_hub_tables
from adadepth.data.text.local_files import find_files, open_conll_table, to_path
from adadepth.data.text.special_tokens import Layout
from adadepth.data.text.table import ROW_LOCATIONS, DataTable, RowLocation, concatenate_tables
from adadepth.data.text.tokenizer import PRETRAINING_TOKENS, encode_words, list_needed_tokens, load_tokenizer
from adadepth.errors import DataError, nearest

if TYPE_CHECKING:
    from adadepth.config.data import MaskingConfig
    from adadepth.contrib.treebank.settings import TreebankConfig


COLUMNS = ("tokens", "upos", "head", "deprel")
_NO_HEAD = (None, "None", "_", "")  # heads of rows that are not words of a tree, such as contractions
_MAX_HEAD_CHARACTERS = 40  # characters of a head in a message


@dataclass(frozen=True)
class Trees:
    """Words of a treebank as arrays, in the order of its sentences.

    Attributes:
        sentences: Index of the first word of each sentence, followed by the total number of words, (sentences + 1,)
            int64.
        forms: Original form of each word.
        upos: Part of speech of each word.
        deprel: Relation of each word to its head, including subtypes such as ``nsubj:pass``.
        depth: Number of arcs from the root of the sentence, 0 for the root, (words,) int64.
    """

    sentences: np.ndarray
    forms: list[str]
    upos: list[str]
    deprel: list[str]
    depth: np.ndarray

    def __len__(self) -> int:
        return len(self.sentences) - 1

    def sentence(self, number: int) -> list[str]:
        """Return the words of one sentence as written."""
        first, last = self.sentences[number : number + 2]
        return self.forms[first:last]


def read_trees(table: DataTable) -> Trees:
    """Read the words of a treebank table with the columns ``COLUMNS``, one list per sentence.

    Sentences without words are skipped.

    Raises:
        DataError: If no sentence is a tree, or one is invalid. The message names the line or row.
    """
    names = table.class_names.get("upos", [])
    lengths, forms, upos, deprel = [], [], [], []
    depths: list[int] = []
    for words in _iterate_sentences(table):
        depths += _count_depths(words)
        forms += [word.form for word in words]
        upos += [names[word.upos] if names and isinstance(word.upos, int) else str(word.upos) for word in words]
        deprel += [str(word.deprel) for word in words]
        lengths += [len(words)] if words else []
    if not forms:
        raise DataError(f"{table.label}: no word has a head; a treebank needs a head for every word in the column head")
    return Trees(np.cumsum([0, *lengths]), forms, upos, deprel, np.array(depths, dtype=np.int64))


class _Word(NamedTuple):
    """Word of a treebank with its location for error messages."""

    location: RowLocation
    form: Any
    upos: Any
    head: Any
    deprel: Any


def _iterate_sentences(table: DataTable) -> Iterator[list[_Word]]:
    """Yield the words of each sentence of a treebank.

    The reader of CoNLL-U yields only words. Other tables may also have entries for contractions and for empty nodes,
    which have no head and are skipped.
    """
    for batch in table.read_batches():
        for location, *row in zip(*(batch[name] for name in (ROW_LOCATIONS, *COLUMNS)), strict=True):
            for name, values in zip(COLUMNS, row, strict=True):
                if not isinstance(values, list) or len(values) != len(row[0]):
                    raise DataError(f"{location}: its column {name} is not a list with a value for each of its tokens")
            words = [_Word(location.locate_word(index), *cells) for index, cells in enumerate(zip(*row, strict=True))]
            yield [_require_columns(word) for word in words if location.word_lines or word.head not in _NO_HEAD]


def _require_columns(word: _Word) -> _Word:
    """Return the word, or raise a DataError if a required column is empty."""
    for name, value in zip(COLUMNS, word[1:], strict=True):
        is_empty = not value if name == "tokens" else isinstance(value, str) and not value.strip()
        if value is None or is_empty:
            raise DataError(f"{word.location} has a word whose column {name} is empty")
    return word


def _count_depths(words: Sequence[_Word]) -> list[int]:
    """Return the depth of each word in the dependency tree, in arcs from the root.

    Heads number words from 1, and the head of the root is 0.
    """
    heads = _check_heads(words)
    depths: dict[int, int] = {0: -1}
    for word in range(1, len(heads) + 1):
        path: dict[int, None] = {}
        while word not in depths:
            if word in path:
                raise DataError(f"{words[word - 1].location}: the heads of its words form a cycle")
            path[word] = None
            word = heads[word - 1]
        for step, ancestor in enumerate(reversed(path), start=1):
            depths[ancestor] = depths[word] + step
    return [depths[word] for word in range(1, len(heads) + 1)]


def _check_heads(words: Sequence[_Word]) -> list[int]:
    """Return the head of each word, after checking that exactly one word is the root."""
    allowed = {str(number): number for number in range(len(words) + 1)}
    for word in words:
        if str(word.head) not in allowed:
            raise DataError(
                f"{word.location} has the head {str(word.head)[:_MAX_HEAD_CHARACTERS]!r}; allowed are 0 for the "
                f"root and the words 1 to {len(words)} of its sentence"
            )
    roots = [word for word in words if str(word.head) == "0"]
    if len(roots) > 1:
        raise DataError(f"{roots[1].location} has a second root (head 0); a sentence must have one")
    if words and not roots:
        raise DataError(f"{words[0].location} begins a sentence without a root (head 0); a sentence must have one")
    return [allowed[str(word.head)] for word in words]


def count_forms(tables: Iterable[DataTable]) -> Counter[str]:
    """Count how often each lower-cased word form occurs in the tables."""
    counts: Counter[str] = Counter()
    for table in tables:
        for words in _iterate_sentences(table):
            counts.update(str(word.form).lower() for word in words)
    return counts


def count_per_million(forms: Sequence[str], counts: Mapping[str, int]) -> np.ndarray:
    """Return the occurrences of each lower-cased form per million counted words, (forms,) float64."""
    occurrences = np.array([counts[form.lower()] for form in forms], dtype=np.float64)
    return occurrences * 1e6 / sum(counts.values())


NO_WORD = -1  # the owner of special tokens


@dataclass(frozen=True)
class Masks:
    """Tokenizer tables and settings for masking tokens in treebank sentences."""

    vocabulary: Vocabulary
    settings: MaskingConfig


class TreebankExamples(Dataset[dict[str, Any]]):
    """Data set of treebank sentences as token sequences, equal in every epoch and for every seed.

    Args:
        pieces: Token ids of each word of each sentence.
        first_words: Index in the treebank of the first word of each sentence.
        layout: Special tokens and length of a sequence. Longer sentences are truncated.
        masks: Masking of the tokens as in evaluations of pretraining, or None for tokens without masks. Masked examples
            also have the fields of `adadepth.data.pretraining.examples.make_example`.
    """

    def __init__(
        self, pieces: list[list[list[int]]], first_words: np.ndarray, layout: Layout, masks: Masks | None = None
    ) -> None:
        self.pieces = pieces
        self.first_words = first_words
        self.layout = layout
        self.masks = masks

    def __len__(self) -> int:
        return len(self.pieces)

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each sequence, (examples,) int64."""
        return self.layout.lengths(np.array([sum(map(len, words)) for words in self.pieces]), 1)

    def __getitem__(self, item: int | tuple[int, int]) -> dict[str, Any]:
        index = split_item(item)[1]
        example = {**self._build_sequence(index), "index": index}
        return example if self.masks is None else {**example, **self._mask_sequence(example["input_ids"], index)}

    def _build_sequence(self, index: int) -> dict[str, Any]:
        return self.layout.build([np.array([token for word in self.pieces[index] for token in word])])

    def _mask_sequence(self, ids: np.ndarray, index: int) -> dict[str, Any]:
        assert self.masks is not None
        generator = random_generator(EVALUATION_SEED, Purpose.EXAMPLE, FIXED_EPOCH, index)
        corrupted, labels, kinds = mask_tokens(ids, self.masks.vocabulary, self.masks.settings, generator)
        return {"input_ids": corrupted, "labels": labels, "mask_kind": kinds, "sentence_order_label": NO_PAIR}

    def owners(self, index: int) -> np.ndarray:
        """Return the word index to which each token belongs, or `NO_WORD`, (S,) int64."""
        special = self._build_sequence(index)["special_tokens_mask"] == 1
        words = np.repeat(np.arange(len(self.pieces[index])), [len(word) for word in self.pieces[index]])
        owners = np.full(len(special), NO_WORD, dtype=np.int64)
        owners[~special] = self.first_words[index] + words[: (~special).sum()]
        return owners


_SPLITS = ("train", "validation", "test")
WHOLE = "treebank"  # name of the set of files that are not splits


@dataclass(frozen=True)
class TreebankSet:
    """One split of a treebank: its words, and its sentences as examples.

    Attributes:
        trees: All words of the split.
        per_million: Frequency of the form of each word per million words, (words,) float64.
        plain: Evaluated sentences without masks.
        masked: Evaluated sentences with masked tokens, or None for a model that does not predict masked tokens.
    """

    trees: Trees
    per_million: np.ndarray
    plain: TreebankExamples
    masked: TreebankExamples | None


@dataclass(frozen=True, kw_only=True)
class TreebankData(RunData):
    """The evaluated splits of a treebank, by name, as words and as examples, with and without masks."""

    sets: Mapping[str, TreebankSet]


class TreebankCollator(PaddingCollator):
    """Collator of treebank sentences, with or without masked tokens."""

    def __call__(self, examples: Examples) -> dict[str, Tensor]:
        """Return a padded batch, from the collator for plain or for masked examples."""
        kind = PretrainingCollator if "labels" in examples[0] else SequenceCollator
        return kind(self.pad_id, self.sequence_length, self.pad_to_length)(examples)


def load_treebank(dataset: TreebankConfig, tokenizer: str, *, masks: bool) -> TreebankData:
    """Read and tokenise the sentences of a treebank.

    Args:
        dataset: Settings of the treebank, with its files and evaluated splits.
        tokenizer: Folder or hub id of the model's tokenizer.
        masks: Whether the sentences are also masked. The tokenizer then needs [MASK].

    Raises:
        DataError: If a column, a file or a token of the tokenizer is missing.
    """
    words = load_tokenizer(tokenizer, PRETRAINING_TOKENS if masks else list_needed_tokens(1))
    tables = _open_tables(dataset)
    for table in tables.values():
        if missing := [name for name in COLUMNS if name not in table.columns]:
            raise DataError(f"{table.label}: a treebank has the columns {', '.join(COLUMNS)}; missing: {missing[0]}")
    with require_unchanged([source for table in tables.values() for source in table.sources]):
        counts = count_forms(tables.values())
        trees_by_split = {name: read_trees(tables[name]) for name in _choose_evaluated_splits(dataset, tables)}
    layout = Layout.from_tokenizer(words, dataset.sequence_length).cut_at_end()
    token_masks = Masks(Vocabulary.from_tokenizer(words), dataset.masking) if masks else None
    sets = {}
    for name, trees in trees_by_split.items():
        rows = spread_rows(len(trees), dataset.max_evaluation_examples)
        pieces = encode_words(words, [trees.sentence(row) for row in rows])
        plain = TreebankExamples(pieces, trees.sentences[rows], layout)
        masked = TreebankExamples(pieces, trees.sentences[rows], layout, token_masks) if masks else None
        sets[name] = TreebankSet(trees, count_per_million(trees.forms, counts), plain, masked)
    facts = {
        "sequence_length": dataset.sequence_length,
        "counted_words": sum(counts.values()),
        "counted_in": list(tables),
        "tokenizer": {"path": tokenizer, "vocab_size": len(words)},
    }
    set_counts = {"evaluation": {name: _summarise_set(split, layout) for name, split in sets.items()}}
    evaluation = {name: split.plain for name, split in sets.items()}
    return TreebankData(
        train=next(iter(evaluation.values())),  # because a trainer requires a training set
        evaluation=evaluation,
        tokenizer=words,
        collate=TreebankCollator(words.pad_token_id, dataset.sequence_length, dataset.pad_to_length),
        summary=summarise_data(dataset, set_counts, source="hub" if dataset.path is None else "local", facts=facts),
        sets=sets,
    )


def _open_tables(dataset: TreebankConfig) -> dict[str, DataTable]:
    """Open the files of all splits, or all files as one set if their names are not those of splits."""
    path = dataset.path
    if path is None:
        return load_hub_tables({"path": dataset.hub.path, "name": dataset.hub.name})
    is_folder = isinstance(path, str) and to_path("dataset.path", path).is_dir()
    if isinstance(path, Mapping) or is_folder:
        if splits := open_file_splits(path, list(path) if isinstance(path, Mapping) else list(_SPLITS)):
            return splits
        if not (path := sorted(map(str, to_path("dataset.path", path).glob("*.conllu")))):
            raise DataError(f"dataset.path={dataset.path}: no CoNLL-U file (.conllu) in that folder")
    return {WHOLE: concatenate_tables([open_conll_table(file) for file in _find_treebank_files(path)])}


def _find_treebank_files(path: Any) -> list[Path]:
    """Return the CoNLL-U files at a path; raise a DataError for any other file."""
    files = find_files("dataset.path", path)
    for file in files:
        if file.suffix != ".conllu":
            raise DataError(f"dataset.path={file}: not a CoNLL-U file, which ends in .conllu")
    return files


def _choose_evaluated_splits(dataset: TreebankConfig, tables: Mapping[str, DataTable]) -> list[str]:
    """Return the names of the treebank's splits to evaluate."""
    if dataset.evaluation_splits is None:
        return [name for name in ("validation", "test") if name in tables] or list(tables)
    for name in dataset.evaluation_splits:
        if name not in tables:
            raise DataError(
                f"dataset.evaluation_splits={name}: known splits are {', '.join(tables)}{nearest(name, list(tables))}"
            )
    return list(dataset.evaluation_splits)


def _summarise_set(split: TreebankSet, layout: Layout) -> dict[str, int]:
    """Count the sentences and words of a split: all, evaluated, and truncated."""
    pieces = split.plain.pieces
    tokens = np.array([sum(map(len, words)) for words in pieces], dtype=np.int64)
    return {
        "sentences": len(split.trees),
        "words": len(split.trees.forms),
        "examples": len(pieces),
        "examples_words": sum(map(len, pieces)),
        **layout.count_tokens(tokens, 1),
    }
