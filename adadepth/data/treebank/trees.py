"""The words of a treebank: form, part of speech, relation, depth in the tree and frequency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adadepth.data.labelled.table import Table
from adadepth.errors import DataError

COLUMNS = ("tokens", "upos", "head", "deprel")


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

    What has no head is no word of a tree and left out: contractions beside their parts, and words that are not written,
    which some tables keep as rows of their own. Sentences without words are left out, too.

    Raises:
        DataError: There are no trees, or a sentence's heads do not make one.
    """
    names = table.class_names.get("upos", [])
    lengths, forms, upos, deprel = [], [], [], []
    depths: list[int] = []
    for number, rows in enumerate(_sentences(table)):
        words = [word for word in rows if str(word[2]).isdecimal()]
        heads = [int(word[2]) for word in words]
        depths += _depths(heads, f"sentence {number} of {table.label}")
        forms += [word[0] for word in words]
        upos += [names[word[1]] if names and isinstance(word[1], int) else str(word[1]) for word in words]
        deprel += [str(word[3]) for word in words]
        lengths += [len(words)] if words else []
    if not forms:
        raise DataError(f"{table.label}: no word has a head; a treebank has one for each in its column head")
    return Trees(np.cumsum([0, *lengths]), forms, upos, deprel, np.array(depths, dtype=np.int64))


def _sentences(table: Table) -> Iterator[list[tuple[Any, ...]]]:
    """Yield (form, part of speech, head, relation) of each row of each sentence."""
    for batch in table.batches():
        for columns in zip(*(batch[name] for name in COLUMNS), strict=True):
            yield list(zip(*columns, strict=True))


def _depths(heads: Sequence[int], where: str) -> list[int]:
    """Return how many arcs lead from the root to each word; `heads` count from 1, and 0 is above the root."""
    if any(head > len(heads) for head in heads):
        raise DataError(f"{where}: a head is number {max(heads)}, but there are {len(heads)} words")
    found: dict[int, int] = {0: -1}
    for word in range(1, len(heads) + 1):
        path = []
        while word not in found:
            if word in path:
                raise DataError(f"{where}: the heads of its words go round in a circle")
            path.append(word)
            word = heads[word - 1]
        for step, passed in enumerate(reversed(path), start=1):
            found[passed] = found[word] + step
    return [found[word] for word in range(1, len(heads) + 1)]


def count_forms(tables: Iterable[Table]) -> Counter[str]:
    """Return how often each lower-cased form occurs as a word of some tables."""
    counts: Counter[str] = Counter()
    for table in tables:
        for rows in _sentences(table):
            counts.update(str(form).lower() for form, _, head, _ in rows if str(head).isdecimal())
    return counts


def per_million(forms: Sequence[str], counts: Mapping[str, int]) -> np.ndarray:
    """Return the frequency of each lower-cased form among a million of the counted words, (forms,) float64."""
    occurrences = np.array([counts[form.lower()] for form in forms], dtype=np.float64)
    return occurrences * 1e6 / sum(counts.values())
