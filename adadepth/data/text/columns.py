"""Text with a word a line and an empty line after each sentence: CoNLL-U, and the columns of CoNLL-2003."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from adadepth.data.labelled.table import Rows, Table
from adadepth.data.text.files import files_digest, text_lines
from adadepth.errors import DataError

# Suffix to columns by position, named as in the same data on the hub.
COLUMN_TEXT = {
    ".conllu": {"tokens": 1, "lemmas": 2, "upos": 3, "xpos": 4, "feats": 5, "head": 6, "deprel": 7},
    ".conll": {"tokens": 0, "ner_tags": -1},
}
_CONLLU_FIELDS = 10
_SENTENCES_AT_ONCE = 1000


def column_table(file: Path, key: str = "dataset.path") -> Table:
    """Return a file, which the setting ``key`` names, as a table with a sentence a row, each column a list of values.

    Of CoNLL-U, ranges of a word written as one (3-4) and words that are not written (3.1) are left out.
    """
    columns = COLUMN_TEXT[file.suffix]

    def batches() -> Iterator[Rows]:
        sentences = _sentences(file, key)
        while batch := list(islice(sentences, _SENTENCES_AT_ONCE)):
            yield {
                name: [[fields[position] for fields in sentence] for sentence in batch]
                for name, position in columns.items()
            }

    return Table(f"{key}={file}", list(columns), {}, batches, partial(files_digest, [file]))


def _sentences(file: Path, key: str) -> Iterator[list[list[str]]]:
    """Yield the fields of each word, sentence by sentence."""
    words = _conllu_words(file, key) if file.suffix == ".conllu" else _words(file, key)
    sentence: list[list[str]] = []
    for fields in words:
        if fields:
            sentence.append(fields)
        elif sentence:
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def _conllu_words(file: Path, key: str) -> Iterator[list[str]]:
    """Yield the fields of each word; none of an empty line."""
    for number, line in enumerate(text_lines(key, file), start=1):
        if line.startswith("#"):
            continue
        fields = line.split("\t") if line.strip() else []
        if fields and len(fields) != _CONLLU_FIELDS:
            raise DataError(
                f"{key}={file}: line {number} has {len(fields)} fields with tabs between them, "
                f"CoNLL-U has {_CONLLU_FIELDS}"
            )
        if not fields or fields[0].isdigit():
            yield fields


def _words(file: Path, key: str) -> Iterator[list[str]]:
    for number, line in enumerate(text_lines(key, file), start=1):
        fields = line.split()
        if len(fields) == 1:
            raise DataError(f"{key}={file}: line {number} is a word without a tag: {fields[0]}")
        yield [] if fields and fields[0] == "-DOCSTART-" else fields
