"""Reading of local files: look-up, UTF-8 lines, documents, and the words of CoNLL files."""

from __future__ import annotations

import glob
import gzip
import logging
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from adadepth.data.text.sources import SourceFile, open_sources
from adadepth.data.text.table import ROW_LOCATIONS, DataTable, RowLocation, Rows
from adadepth.errors import DataError, nearest

if TYPE_CHECKING:
    from adadepth.config.data import TextConfig


logger = logging.getLogger(__name__)

TEXT_SUFFIXES = (".txt", ".tokens", ".md", ".text", ".raw")
JSON_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
PARQUET_SUFFIXES, ARROW_SUFFIXES = (".parquet",), (".arrow",)
TABLE_SUFFIXES = PARQUET_SUFFIXES + JSON_SUFFIXES + ARROW_SUFFIXES
_SUFFIXES = TEXT_SUFFIXES + TABLE_SUFFIXES
_ABOUT_ARROW = ("dataset_info.json", "state.json")  # metadata that `save_to_disk` writes beside the shards
_HELD_OUT = ("validation", "valid", "dev")  # names of the same split
_MOST_TIMES, _PART = 100, 2**20  # largest expansion of a packed file, and bytes read at a time
_LONGEST_TOLD = 200  # characters of a path in a message
_TITLE = re.compile(r"^ ?= (?!= ).+ = ?$")  # a WikiText article; " = = Section = = " is not one


def to_path(key: str, value: Any) -> Path:
    """Convert the value of a path setting to a `Path`, which need not exist.

    Raises:
        DataError: If the value is not text, or if it is not a valid path, e.g. because it is too long.
    """
    if not isinstance(value, str | os.PathLike):
        raise DataError(f"{key}={value}: must be the name of a file or folder, not {type(value).__name__}")
    try:
        path = Path(value).expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return path
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{key}={str(value)[:_LONGEST_TOLD]}: not a valid path ({reason})") from error
    return path


def find_files(key: str, path: Any) -> list[Path]:
    """Return the files that a path setting names: a file, a folder (searched recursively), a glob, or a list of these.

    Raises:
        DataError: If a path does not exist or is empty, or if a folder has no file of a known format. The message names
            the setting ``key``.
    """
    if isinstance(path, list | tuple):
        return [file for entry in path for file in find_files(key, entry)]
    target = to_path(key, path)
    if target.is_file():
        if not os.access(target, os.R_OK):
            raise DataError(f"{key}={path}: no permission to read the file")
        if target.stat().st_size == 0:
            raise DataError(f"{key}={path}: the file is empty")
        return [target]
    if target.is_dir():
        candidates: Iterable[Path] = (file for file in target.rglob("*") if _is_data(file))
    elif target.exists():
        raise DataError(f"{key}={path}: must be a file or a folder")
    elif glob.has_magic(str(target)):
        candidates = (Path(match) for match in glob.glob(str(target), recursive=True))
    else:
        siblings = [entry.name for entry in target.parent.iterdir()] if target.parent.is_dir() else []
        raise DataError(f"{key}={path}: no such file or folder{nearest(target.name, siblings)}")
    files = sorted(file for file in candidates if file.is_file() and file.stat().st_size > 0)
    if not files:
        raise DataError(f"{key}={path}: no non-empty file found (in a folder: {', '.join(_SUFFIXES)})")
    return files


def _is_data(file: Path) -> bool:
    """Return whether a file has a known data format and is not a metadata file of the ``datasets`` library."""
    if file.name in _ABOUT_ARROW and any(file.parent.glob("*.arrow")):
        return False
    return file.name.endswith(_SUFFIXES)


def find_files_by_use(dataset: TextConfig) -> dict[str, list[SourceFile]]:
    """Return the local files of a text by use: ``train`` and, if there are any, ``evaluation`` and ``test``.

    Evaluation and test files are given by ``evaluation_path`` and ``test_path``. They may also be in one folder in
    which every file is named after a split, as in WikiText: wiki.train.tokens, wiki.valid.tokens, wiki.test.tokens.

    Raises:
        DataError: As for `find_files`.
    """
    files_by_split = _group_by_split(dataset.path, find_files("dataset.path", dataset.path))
    uses = [use for use in ("train", "evaluation", "test") if use == "train" or hasattr(dataset, f"{use}_path")]
    sources = {use: open_sources("dataset.path", files_by_split[use]) for use in uses if use in files_by_split}
    for use in uses[1:]:
        if path := getattr(dataset, f"{use}_path"):
            sources[use] = open_sources(f"dataset.{use}_path", find_files(f"dataset.{use}_path", path))
    if len(files_by_split) > 1:
        texts = (f"{use}: {', '.join(file.path.name for file in files)}" for use, files in sources.items())
        logger.info("dataset.path=%s: file formats follow from the file names, %s", dataset.path, "; ".join(texts))
    return sources


def list_split_names(split: str) -> tuple[str, ...]:
    """Return the spellings under which files and data sets may list a split, e.g. `dev`, with its own name first."""
    return tuple(dict.fromkeys([split, *_HELD_OUT])) if split in _HELD_OUT else (split,)


# Use of a file by a part of its name: wiki.valid.tokens, dev.txt, train-00000-of-00002.parquet.
_USES = {"train": "train", "test": "test", **dict.fromkeys(list_split_names("validation"), "evaluation")}


def _group_by_split(path: Any, files: list[Path]) -> dict[str, list[Path]]:
    uses = [next((_USES[part] for part in re.split(r"[._-]", file.name) if part in _USES), None) for file in files]
    is_folder = not isinstance(path, list | tuple) and Path(path).expanduser().is_dir()
    if not is_folder or None in uses or "train" not in uses:
        return {"train": files}
    groups: dict[str, list[Path]] = {"train": []}
    for use, file in zip(uses, files, strict=True):
        groups.setdefault(str(use), []).append(file)
    return groups


def estimate_characters(files: Iterable[Path]) -> int | None:
    """Return the approximate number of characters of text files, or None if any of them is compressed or columnar."""
    files = list(files)
    is_plain = not any(file.name.endswith((".gz", *PARQUET_SUFFIXES, *ARROW_SUFFIXES)) for file in files)
    return sum(file.stat().st_size for file in files) if is_plain else None


def read_lines(key: str, file: Path, *, with_ends: bool = False) -> Iterator[str]:
    r"""Yield the lines of a UTF-8 file, which may be compressed with gzip. A byte-order mark is removed.

    Lines end only at ``\n``, ``\r\n`` and ``\r``.

    Args:
        key: Setting that names the file, for messages.
        file: File, which is read during the iteration.
        with_ends: Whether the lines include their line ends.

    Raises:
        DataError: If the file cannot be read, or if a byte is not UTF-8. The message names the file and the byte's
            offset.
    """
    try:
        with _open_text(file, "" if with_ends else None) as stream:
            for line in stream:
                yield line if with_ends else line.removesuffix("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{key}={file}: {_find_wrong_byte(file)}; convert the file to UTF-8") from error
    except OSError as error:
        raise DataError(f"{key}={file}: cannot be read ({error.strerror or error})") from error


def _find_wrong_byte(file: Path) -> str:
    """Return a description of the first byte of a file that is not UTF-8."""
    offset = 0
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
        for raw in stream:
            try:
                raw.decode("utf-8")
            except UnicodeDecodeError as error:
                return f"not UTF-8 at byte {offset + error.start} (0x{raw[error.start]:02x})"
            offset += len(raw)
    return "not UTF-8"


def _open_text(file: Path, newline: str | None) -> IO[str]:
    if file.suffix != ".gz":
        return file.open(encoding="utf-8-sig", newline=newline)
    status = file.stat()
    _check_packed(file, status.st_size, status.st_mtime_ns)
    return gzip.open(file, "rt", encoding="utf-8-sig", newline=newline)


@cache
def _check_packed(file: Path, size: int, modified: int) -> None:
    """Raise an error if a compressed file expands far more than text does."""
    opened = 0
    with file.open("rb") as packed, gzip.open(packed) as unpacked:
        while part := unpacked.read(_PART):
            opened += len(part)
            if opened > _PART * 64 + _MOST_TIMES * packed.tell():
                raise DataError(
                    f"{file}: unpacks to more than {_MOST_TIMES} times its size; to read it anyway, unpack it first"
                )


def split_documents(lines: Iterable[str], separator: str) -> Iterator[str]:
    """Divide lines into documents at ``separator``: ``blank_line``, ``line``, ``heading``, ``file`` or ``auto``.

    ``auto`` means ``heading`` if the first line that is not blank is a WikiText title, and otherwise ``blank_line``.
    """
    document: list[str] = []
    for line, begins in mark_lines(lines, separator):
        if begins and document:
            yield "\n".join(document)
            document = []
        if line.strip():
            document.append(line)
    if document:
        yield "\n".join(document)


def mark_lines(lines: Iterable[str], separator: str) -> Iterator[tuple[str, bool]]:
    """Yield every line, and whether it begins a document. See `split_documents` for the separators."""
    if separator == "auto":
        lines, separator = _guess_separator(iter(lines))
    blank_before = True
    for line, following in pairwise(chain(lines, [""])):
        blank = not line.strip()
        # Titles stand alone between blank lines; lines of WikiText tables can look like titles but do not.
        title = blank_before and not following.strip() and bool(_TITLE.match(line))
        begins = {"heading": title, "blank_line": blank_before and not blank, "line": not blank}
        yield line, begins.get(separator, False)
        blank_before = blank


def _guess_separator(lines: Iterator[str]) -> tuple[Iterator[str], str]:
    seen: list[str] = []
    first = ""
    for first in lines:
        seen.append(first)
        if first.strip():
            break
    return chain(seen, lines), "heading" if _TITLE.match(first) else "blank_line"


_FIELDS = 10
_BLANK, _TAB = " ", "\t"
_NUMBERED = "words are numbered 1, 2, 3, ...; n-m is a contraction of the following words, and n.1 is an empty node"
_LONGEST_ID_TOLD = 40  # characters of an id in a message


class Row(NamedTuple):
    """Line of a CoNLL file: its location for messages, and its fields. The first field is the id."""

    location: RowLocation
    fields: list[str]


def read_conllu(file: Path, key: str = "dataset.path") -> Iterator[list[Row]]:
    """Yield the words of each sentence of a CoNLL-U file. The setting ``key`` names the file.

    Contractions (ids such as 3-4) and unwritten words (ids such as 3.1) are skipped.

    Raises:
        DataError: If a line does not have ten fields, or if its id is not the next one in its sentence.
    """
    for rows in _read_blocks(file, key):
        _check_ids(rows)
        if words := [row for row in rows if row.fields[0].isdecimal()]:
            yield words


def _read_blocks(file: Path, key: str) -> Iterator[list[Row]]:
    """Yield the lines of each sentence of a CoNLL-U file, without comment lines."""
    rows: list[Row] = []
    for number, line in enumerate(read_lines(key, file), start=1):
        if not line.strip(_BLANK):
            if rows:
                yield rows
            rows = []
        elif not line.startswith("#"):
            rows.append(Row(RowLocation(f"{key}={file}", "line", number), line.split("\t")))
            if (field_count := len(rows[-1].fields)) != _FIELDS:
                raise DataError(
                    f"{rows[-1].location} has {field_count} fields with tabs between them, CoNLL-U has {_FIELDS}"
                )
    if rows:
        yield rows


def _check_ids(rows: list[Row]) -> None:
    """Raise an error if the word ids of a CoNLL-U sentence are not in order.

    They must run 1, 2, 3, ..., with n-m before word n and n.1, n.2, ... after word n.
    """
    word = unwritten = contracted = 0  # last word, last unwritten word after it, and last word of a contraction
    for location, (word_id, *_) in rows:
        if word_id == str(word + 1):
            word, unwritten = word + 1, 0
        elif word_id == f"{word}.{unwritten + 1}":
            unwritten += 1
        elif word >= contracted and (last := _parse_contraction(word_id, word + 1)):
            contracted = last
        else:
            allowed = "an empty line must end the previous sentence" if word_id == "1" else _NUMBERED
            raise DataError(f"{location} has the id {word_id[:_LONGEST_ID_TOLD]!r} instead of {word + 1}; {allowed}")
    if word < contracted:
        raise DataError(
            f"{rows[-1].location} ends a sentence of {word} words, but a contraction includes word {contracted}"
        )


def _parse_contraction(word_id: str, first: int) -> int:
    """Return the last word of a contraction that starts at word `first`, or 0 if the id is not a contraction."""
    begin, _, end = word_id.partition("-")
    is_one = begin == str(first) and end.isascii() and end.isdecimal() and len(end) <= _LONGEST_ID_TOLD
    return int(end) if is_one and int(end) >= first else 0


# Suffix to columns by position, named as in the same data on the hub.
COLUMN_TEXT = {
    ".conllu": {"tokens": 1, "lemmas": 2, "upos": 3, "xpos": 4, "feats": 5, "head": 6, "deprel": 7},
    ".conll": {"tokens": 0, "ner_tags": -1},
}
_DOCUMENT = "-DOCSTART-"  # first word of a line between documents
_COMMENT = re.compile(r" *#[^ \t]* +[^ \t]+ +=(?:[ \t]|$)")  # `# sent_id = 1`
_COLUMN_FORMAT = "2"  # raise it when the same bytes give other words
_SENTENCES_AT_ONCE = 1000


def open_conll_table(file: Path, key: str = "dataset.path") -> DataTable:
    """Open a CoNLL file as a table with one row per sentence. The setting ``key`` names the file.

    Each column holds a list of values, one for each word.
    """
    columns, source = COLUMN_TEXT[file.suffix], SourceFile(key, file)
    if file.suffix == ".conll" and _detect_format(file, key).width == 1:  # words without tags, to be predicted
        columns = {"tokens": 0}

    def batches() -> Iterator[Rows]:
        sentences = read_conllu(file, key) if file.suffix == ".conllu" else _read_sentences(file, key)
        while batch := list(islice(sentences, _SENTENCES_AT_ONCE)):
            rows = {
                name: [[word.fields[position] for word in sentence] for sentence in batch]
                for name, position in columns.items()
            }
            yield {**rows, ROW_LOCATIONS: [_locate_sentence(sentence) for sentence in batch]}

    return DataTable(f"{key}={file}", list(columns), {}, batches, lambda: [source.digest(), _COLUMN_FORMAT], [source])


def _locate_sentence(words: list[Row]) -> RowLocation:
    return words[0].location._replace(word_lines=tuple(word.location.number for word in words))


class _ColumnFormat(NamedTuple):
    """Column format of a file in the style of CoNLL-2003.

    Attributes:
        separator: Tab, if the line of the first word has a tab; then only tabs separate fields. None means that runs of
            blanks separate fields.
        width: Number of fields per word.
        first: Number of the line that determines the format.
    """

    separator: str | None
    width: int
    first: int

    def split(self, line: str) -> list[str]:
        """Return the fields of a line, without empty fields at its end. A line of blanks and tabs has no fields."""
        if not line.strip(_BLANK + _TAB):
            return []
        if self.separator is None:
            return [field for field in line.split(_BLANK) if field]
        fields = line.split(self.separator)
        while fields and not fields[-1]:
            fields.pop()
        return fields

    def __str__(self) -> str:
        separator = "blanks" if self.separator is None else "tabs"
        return f"{self.width} with {separator} between them"


def _read_sentences(file: Path, key: str) -> Iterator[list[Row]]:
    """Yield the words of each sentence of a file in the style of CoNLL-2003."""
    sentence: list[Row] = []
    form = _detect_format(file, key)
    for number, line in enumerate(read_lines(key, file), start=1):
        if _is_comment(line, form):
            continue
        word = Row(RowLocation(f"{key}={file}", "line", number), form.split(line))
        if word.fields and not _is_document_start(line):
            _check_word(word, form)
            sentence.append(word)
        elif sentence:
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def _check_word(word: Row, form: _ColumnFormat) -> None:
    """Raise an error if a line does not have as many fields as the first word line of the file."""
    location, fields = word
    if len(fields) == 1 < form.width:
        raise DataError(f"{location} is a word without a tag: {fields[0]}")
    if len(fields) != form.width or (form.separator is None and any(_TAB in field for field in fields)):
        unit = "fields" if len(fields) != 1 else "field"
        raise DataError(f"{location} has {len(fields)} {unit}, line {form.first} has {form}")
    if not all(fields):
        raise DataError(f"{location} has an empty field; a word and its tag need at least one character")


def _detect_format(file: Path, key: str) -> _ColumnFormat:
    """Detect the column format of a CoNLL file from the first line that certainly contains a word."""
    for number, line in enumerate(read_lines(key, file), start=1):
        form = _ColumnFormat(_TAB if _TAB in line else None, 0, number)
        may_be_comment = line.lstrip(_BLANK)[:1] == "#" and (form.separator is None or _COMMENT.match(line))
        if (fields := form.split(line)) and not _is_document_start(line) and not may_be_comment:
            return form._replace(width=len(fields))
    return _ColumnFormat(None, 0, 0)


def _is_document_start(line: str) -> bool:
    """Return whether a line separates documents. In such a line, blanks separate fields even in files with tabs."""
    return re.split(r"[ \t]", line, maxsplit=1)[0] == _DOCUMENT


def _is_comment(line: str, form: _ColumnFormat) -> bool:
    """Return whether a line is a comment, such as `# sent_id = 1`. A word may also begin with `#`."""
    if line.lstrip(_BLANK)[:1] != "#":
        return False
    return len(form.split(line)) != form.width or bool(_COMMENT.match(line))
