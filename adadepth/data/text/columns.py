"""Text with a word a line and an empty line after each sentence: CoNLL-U, and the columns of CoNLL-2003."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
_DOCUMENT = "-DOCSTART-"  # the first word of a line between documents
_SENTENCES_AT_ONCE = 1000


def column_table(file: Path, key: str = "dataset.path") -> Table:
    """Return a file, which the setting ``key`` names, as a table: a sentence a row, each column a list of values."""
    columns = COLUMN_TEXT[file.suffix]
    if file.suffix == ".conll" and _width(file, key) == 1:  # words without tags, to be predicted
        columns = {"tokens": 0}

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
    width = _width(file, key)
    for number, line in enumerate(text_lines(key, file), start=1):
        word = Row(f"{key}={file}: line {number}", line.split())
        if _is_comment(word.fields, width):
            continue
        if word.fields and word.fields[0] != _DOCUMENT:
            if len(word.fields) == 1 < width:
                raise DataError(f"{word.place} is a word without a tag: {word.fields[0]}")
            sentence.append(word)
        elif sentence:
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def _width(file: Path, key: str) -> int:
    """Return how many columns the first line has that is surely a word."""
    lines = (line.split() for line in text_lines(key, file))
    return next((len(fields) for fields in lines if fields and fields[0] != _DOCUMENT and fields[0][0] != "#"), 0)


def _is_comment(fields: Sequence[str], width: int) -> bool:
    """Whether a line says something of a sentence, as `# sent_id = 1`; a word may begin with the same mark."""
    return bool(fields) and fields[0][0] == "#" and (len(fields) != width or fields[2:3] == ["="])
