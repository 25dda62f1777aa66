"""CoNLL-U: a word a line, ten fields with tabs between them, and an empty line after each sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from adadepth.data.text.files import text_lines
from adadepth.errors import DataError

_FIELDS = 10
_LONGEST_TOLD = 40  # characters of an id in a message


class Row(NamedTuple):
    """A line of a sentence: where it stands, for messages, and its fields, of which the first is the id."""

    place: str
    fields: list[str]


def conllu_sentences(file: Path, key: str = "dataset.path") -> Iterator[list[Row]]:
    """Yield the words of each sentence of a file, which the setting ``key`` names.

    Contractions (3-4) and words that are not written (3.1) are left out.

    Raises:
        DataError: A line has not ten fields, or its id is not the next one of its sentence.
    """
    for rows in _blocks(file, key):
        _check_ids(rows)
        if words := [row for row in rows if row.fields[0].isdecimal()]:
            yield words


def _blocks(file: Path, key: str) -> Iterator[list[Row]]:
    """Yield the lines of each sentence without comments."""
    rows: list[Row] = []
    for number, line in enumerate(text_lines(key, file), start=1):
        if not line.strip():
            if rows:
                yield rows
            rows = []
        elif not line.startswith("#"):
            rows.append(Row(f"{key}={file}: line {number}", line.split("\t")))
            if (found := len(rows[-1].fields)) != _FIELDS:
                raise DataError(f"{rows[-1].place} has {found} fields with tabs between them, CoNLL-U has {_FIELDS}")
    if rows:
        yield rows


def _check_ids(rows: list[Row]) -> None:
    """Refuse a sentence whose ids do not run 1, 2, 3, ..., with n-m before word n and n.1, n.2, ... after word n."""
    word = unwritten = contracted = 0  # the last of each: the last word, unwritten one after it, word of a contraction
    for place, (found, *_) in rows:
        if found == str(word + 1):
            word, unwritten = word + 1, 0
        elif found == f"{word}.{unwritten + 1}":
            unwritten += 1
        elif word >= contracted and (last := _last_of_contraction(found, word + 1)):
            contracted = last
        else:
            allowed = "an empty line has to end the sentence before" if found == "1" else (
                "words are numbered 1, 2, 3, ..., n-m is a contraction of the words that follow, "
                "n.1 a word that is not written"
            )  # fmt: skip
            raise DataError(f"{place} has the id {found[:_LONGEST_TOLD]!r} where {word + 1} was due; {allowed}")
    if word < contracted:
        raise DataError(f"{rows[-1].place} ends a sentence of {word} words, of which a contraction has {contracted}")


def _last_of_contraction(found: str, first: int) -> int:
    """The last word of a contraction that begins with word `first`; 0 where an id is none."""
    begin, _, end = found.partition("-")
    is_one = begin == str(first) and end.isascii() and end.isdecimal() and len(end) <= _LONGEST_TOLD
    return int(end) if is_one and int(end) >= first else 0
