"""The words of a treebank: form, part of speech, relation, depth in the tree and frequency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from adadepth.data.labelled.table import Table
from adadepth.data.text.columns import PLACES
from adadepth.errors import DataError

COLUMNS = ("tokens", "upos", "head", "deprel")
_NO_HEAD = (None, "None", "_", "")  # of rows for what is no word of a tree, in tables that keep them
_LONGEST_TOLD = 40  # characters of a head in a message


@dataclass(frozen=True)
class Trees:
    """Words, sentence after sentence.

    Attributes:
        sentences: Where each sentence begins in the words, then their number, (sentences + 1,) int64.
        forms: The words as they are written.
        upos: Part of speech of each.
        deprel: Its relation to its head, subtypes such as ``nsubj:pass`` included.
        depth: Arcs from the root of its sentence, which has 0, (words,) int64.
    """

    sentences: np.ndarray
    forms: list[str]
    upos: list[str]
    deprel: list[str]
    depth: np.ndarray

    def __len__(self) -> int:
        return len(self.sentences) - 1

    def sentence(self, number: int) -> list[str]:
        """Return the forms of a sentence."""
        first, last = self.sentences[number : number + 2]
        return self.forms[first:last]


def read_trees(table: Table) -> Trees:
    """Return the words of a table with the columns ``COLUMNS``, each a list a sentence.

    Sentences without words are left out.

    Raises:
        DataError: There are no trees, or a sentence is none; it names the line or row.
    """
    names = table.class_names.get("upos", [])
    lengths, forms, upos, deprel = [], [], [], []
    depths: list[int] = []
    for words in _sentences(table):
        depths += _depths(words)
        forms += [word.form for word in words]
        upos += [names[word.upos] if names and isinstance(word.upos, int) else str(word.upos) for word in words]
        deprel += [str(word.deprel) for word in words]
        lengths += [len(words)] if words else []
    if not forms:
        raise DataError(f"{table.label}: no word has a head; a treebank has one for each in its column head")
    return Trees(np.cumsum([0, *lengths]), forms, upos, deprel, np.array(depths, dtype=np.int64))


class _Word(NamedTuple):
    """A word: where it stands, for messages, and what the columns say of it."""

    place: str
    form: Any
    upos: Any
    head: Any
    deprel: Any


def _sentences(table: Table) -> Iterator[list[_Word]]:
    """Yield the words of each sentence.

    CoNLL-U has nothing but words. Other tables may have rows for contractions beside their parts, and for words that
    are not written: these have no head and are left out.
    """
    first = 0
    for batch in table.batches():
        columns = [batch[name] for name in COLUMNS]
        for number, row in enumerate(zip(*columns, strict=True), start=first):
            place = f"row {number} of {table.label}"
            for name, values in zip(COLUMNS, row, strict=True):
                if not isinstance(values, list) or len(values) != len(row[0]):
                    raise DataError(f"{place}: its column {name} is not a list with a value for each of its tokens")
            is_conllu = PLACES in batch
            places = batch[PLACES][number - first] if is_conllu else [place] * len(row[0])
            words = list(map(_Word, places, *row))
            yield [_whole(word) for word in words if is_conllu or word.head not in _NO_HEAD]
        first += len(columns[0])


def _whole(word: _Word) -> _Word:
    for name, value in zip(COLUMNS, word[1:], strict=True):
        if value is None or (isinstance(value, str) and not value.strip()):
            raise DataError(f"{word.place} has a word whose column {name} is empty")
    return word


def _depths(words: Sequence[_Word]) -> list[int]:
    """Return how many arcs lead from the root to each word; heads count words from 1, and 0 is above the root."""
    heads = _heads(words)
    found: dict[int, int] = {0: -1}
    for word in range(1, len(heads) + 1):
        path: dict[int, None] = {}
        while word not in found:
            if word in path:
                raise DataError(f"{words[word - 1].place}: the heads of its words go round in a circle")
            path[word] = None
            word = heads[word - 1]
        for step, passed in enumerate(reversed(path), start=1):
            found[passed] = found[word] + step
    return [found[word] for word in range(1, len(heads) + 1)]


def _heads(words: Sequence[_Word]) -> list[int]:
    """Return the number of each word's head, of which exactly one is 0."""
    allowed = {str(number): number for number in range(len(words) + 1)}
    for word in words:
        if str(word.head) not in allowed:
            raise DataError(
                f"{word.place} has the head {str(word.head)[:_LONGEST_TOLD]!r}; "
                f"allowed are 0, of the root, and the words 1 to {len(words)} of its sentence"
            )
    roots = [word for word in words if str(word.head) == "0"]
    if len(roots) > 1:
        raise DataError(f"{roots[1].place} has a second root, a word with the head 0; a sentence has one")
    if words and not roots:
        raise DataError(f"{words[0].place} begins a sentence without a root, a word with the head 0; each has one")
    return [allowed[str(word.head)] for word in words]


def count_forms(tables: Iterable[Table]) -> Counter[str]:
    """Return how often each lower-cased form occurs as a word of some tables."""
    counts: Counter[str] = Counter()
    for table in tables:
        for words in _sentences(table):
            counts.update(str(word.form).lower() for word in words)
    return counts


def per_million(forms: Sequence[str], counts: Mapping[str, int]) -> np.ndarray:
    """Return the frequency of each lower-cased form among a million of the counted words, (forms,) float64."""
    occurrences = np.array([counts[form.lower()] for form in forms], dtype=np.float64)
    return occurrences * 1e6 / sum(counts.values())
