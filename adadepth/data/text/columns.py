"""Text with a word a line and an empty line after each sentence: CoNLL-U, and the columns of CoNLL-2003."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from adadepth.data.labelled.table import Rows, Table
from adadepth.data.text.conllu import Row, conllu_sentences
from adadepth.data.text.files import files_digest, text_lines
from adadepth.errors import DataError

# Suffix to columns by position, named as in the same data on the hub.
COLUMN_TEXT = {
    ".conllu": {"tokens": 1, "lemmas": 2, "upos": 3, "xpos": 4, "feats": 5, "head": 6, "deprel": 7},
    ".conll": {"tokens": 0, "ner_tags": -1},
}
PLACES = "places"  # beside the columns: where each word stands, for messages
_SENTENCES_AT_ONCE = 1000


def column_table(file: Path, key: str = "dataset.path") -> Table:
    """Return a file, which the setting ``key`` names, as a table: a sentence a row, each column a list of values."""
    columns = COLUMN_TEXT[file.suffix]

    def batches() -> Iterator[Rows]:
        sentences = conllu_sentences(file, key) if file.suffix == ".conllu" else _sentences(file, key)
        while batch := list(islice(sentences, _SENTENCES_AT_ONCE)):
            rows = {
                name: [[word.fields[position] for word in sentence] for sentence in batch]
                for name, position in columns.items()
            }
            yield {**rows, PLACES: [[word.place for word in sentence] for sentence in batch]}

    return Table(f"{key}={file}", list(columns), {}, batches, partial(files_digest, [file]))


def _sentences(file: Path, key: str) -> Iterator[list[Row]]:
    """Yield the words of each sentence of a file like those of CoNLL-2003."""
    sentence: list[Row] = []
    for number, line in enumerate(text_lines(key, file), start=1):
        word = Row(f"{key}={file}: line {number}", line.split())
        if len(word.fields) == 1:
            raise DataError(f"{word.place} is a word without a tag: {word.fields[0]}")
        if word.fields and word.fields[0] != "-DOCSTART-":
            sentence.append(word)
        elif sentence:
            yield sentence
            sentence = []
    if sentence:
        yield sentence
