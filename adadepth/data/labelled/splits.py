"""The splits of labelled data: files of a folder, files named one by one, or a data set of the hub."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adadepth.config.tables import AgreementConfig, SentEvalConfig
from adadepth.data.labelled.agreement import agreement_tables
from adadepth.data.labelled.held_out import table_splits
from adadepth.data.labelled.senteval import senteval_tables
from adadepth.data.labelled.table import Rows, Table, joined, require_columns
from adadepth.data.text.columns import COLUMN_TEXT, column_table
from adadepth.data.text.files import (
    JSON_SUFFIXES,
    PARQUET_SUFFIXES,
    as_path,
    files_digest,
    find_files,
    split_names,
    text_lines,
)
from adadepth.data.text.hub import file_table, hub_tables
from adadepth.data_sets import installed_data_set
from adadepth.errors import DataError, nearest
from adadepth.plugins import load

if TYPE_CHECKING:
    from adadepth.config import LabelledConfig, TableConfig

DELIMITERS = {".csv": ",", ".tsv": "\t"}
_SUFFIXES = (*PARQUET_SUFFIXES, *JSON_SUFFIXES, *DELIMITERS, *COLUMN_TEXT)
_ROWS_AT_ONCE = 1000


def open_splits(
    dataset: TableConfig, columns: Mapping[str, Sequence[str]], optional: Sequence[str] = ()
) -> dict[str, Table]:
    """Return those splits that the configuration names, and of the ``optional`` ones those that are there.

    Args:
        dataset: Where they are.
        columns: What every split needs: key of the configuration -> the columns it names.
        optional: Further splits.

    Raises:
        DataError: A split or a column is absent, or a file or the hub cannot be read.
    """
    required = table_splits(dataset)
    wanted = list(dict.fromkeys([*required, *optional]))
    if dataset.source == "hub":
        found = hub_tables({"path": dataset.hub.path, "name": dataset.hub.name})
    elif (own := installed_data_set(dataset)) is not None:
        found = load(own.tables)(dataset)
    elif isinstance(dataset, SentEvalConfig):
        found = senteval_tables(dataset)
    elif isinstance(dataset, AgreementConfig):
        found = agreement_tables(joined([open_table(file) for file in find_files("dataset.path", dataset.path)]))
    else:
        found = file_splits(dataset.path, wanted)
    for split in required:
        if split not in found:
            key = "train_split" if split == dataset.train_split else "evaluation_splits"
            raise DataError(f"dataset.{key}={split}: {_what_there_is(dataset, split, list(found))}")
    tables = {split: found[split] for split in wanted if split in found}
    for table in tables.values():
        for key, names in columns.items():
            require_columns(table, key, names)
    return tables


def file_splits(path: Any, wanted: list[str]) -> dict[str, Table]:
    """Return those of the wanted splits that a folder, or a mapping of splits to files, has.

    Raises:
        DataError: There is no such folder or file, or it is no table.
    """
    files = _named_files(path, wanted) if isinstance(path, Mapping) else _folder(path, wanted)
    return {split: joined([open_table(file) for file in files[split]]) for split in wanted if split in files}


def open_tests(dataset: LabelledConfig) -> dict[str, Table]:
    """Return the test splits that are data sets of their own on the hub; of local files they are files like others.

    Raises:
        DataError: A split or a column is absent, or the hub cannot be read.
    """
    found = {}
    for split, entry in dataset.test_hub.items() if dataset.source == "hub" else ():
        tables = hub_tables({"path": entry["path"], "name": entry["name"]})
        if entry["split"] not in tables:
            known = ", ".join(tables)
            raise DataError(f"dataset.test_hub.{split}.split={entry['split']}: the data set has only {known}")
        found[split] = tables[entry["split"]]
        require_columns(found[split], "text_columns", dataset.text_columns)
    return found


def _what_there_is(dataset: TableConfig, split: str, found: list[str]) -> str:
    if dataset.source == "hub" or installed_data_set(dataset) or isinstance(dataset, SentEvalConfig | AgreementConfig):
        return f"the data set has only {', '.join(found)}{nearest(split, found)}"
    if isinstance(dataset.path, Mapping):
        known = list(map(str, dataset.path))
        return f"dataset.path names files for {', '.join(known)} only{nearest(split, known)}"
    names = sorted(entry.name for entry in Path(dataset.path).expanduser().iterdir())
    there = f"there is {', '.join(names[:10]) or 'nothing'}{nearest(split, [name.split('.')[0] for name in names])}"
    return f"no file {split} with one of {', '.join(_SUFFIXES)} in dataset.path={dataset.path}; {there}"


def _named_files(path: Mapping[Any, Any], wanted: Sequence[str]) -> dict[str, list[Path]]:
    named = {str(split): find_files(f"dataset.path.{split}", files) for split, files in path.items()}
    called = {split: next((name for name in _names(split, wanted) if name in named), None) for split in wanted}
    return {split: named[name] for split, name in called.items() if name is not None}


def _names(split: str, wanted: Sequence[str]) -> list[str]:
    """Return what a split may be called; a name that is wanted as a split of its own is no other's."""
    return [name for name in split_names(split) if name == split or name not in wanted]


def _folder(path: Any, wanted: list[str]) -> dict[str, list[Path]]:
    """Return the files of a folder that are called like a split, like a part of it on the hub, or as in a treebank."""
    folder = as_path("dataset.path", str(path))
    if not folder.is_dir():
        siblings = [entry.name for entry in folder.parent.iterdir()] if folder.parent.is_dir() else []
        problem = "is a file" if folder.exists() else f"no such folder{nearest(folder.name, siblings)}"
        raise DataError(f"dataset.path={path}: {problem}; give a folder of splits, or a mapping of splits to files")
    names = sorted(file.name for file in folder.iterdir() if file.is_file() and file.stat().st_size > 0)
    found = {}
    for split in wanted:
        matches = next(filter(None, (_called(name, names) for name in _names(split, wanted))), [])
        if len({match.groups() for match in matches}) > 1:
            several = ", ".join(match[0] for match in matches)
            raise DataError(
                f"dataset.path={path}: {several} are all the split {split}; choose with dataset.path={{{split}: FILE}}"
            )
        if matches:
            found[split] = find_files("dataset.path", [folder / match[0] for match in matches])
    return found


def _called(split: str, names: Sequence[str]) -> list[re.Match[str]]:
    """Return the names of files that are a split's, or parts of it; those of one table have the same groups."""
    endings = "|".join(map(re.escape, _SUFFIXES))
    # Universal Dependencies: en_ewt-ud-train.conllu, en_ewt-ud-dev.conllu
    pattern = re.compile(rf"(.+-ud-)?{re.escape(split)}(?:-\d+-of-\d+)?({endings})")
    return [match for match in map(pattern.fullmatch, names) if match]


def open_table(file: Path, key: str = "dataset.path") -> Table:
    """Return a file as a table by its ending; `key` is the setting that names it.

    Raises:
        DataError: It is none, or cannot be read.
    """
    if file.suffix in DELIMITERS:
        return _delimited(file, key)
    if file.suffix in COLUMN_TEXT:
        return column_table(file, key)
    if file.name.endswith(_SUFFIXES):
        return file_table(key, file)
    raise DataError(f"{key}={file}: not a table; known are {', '.join(_SUFFIXES)}")


def _delimiter(header: str) -> str:
    """What parts the columns of a CSV: mostly a comma; where that is the decimal mark, spreadsheets write others."""
    unquoted = re.sub('"[^"]*"', "", header)
    return max(",;\t", key=unquoted.count)


def _delimited(file: Path, key: str) -> Table:
    """Return a file with a header line: CSV with quoted fields; TSV without, because GLUE's hold single quote marks."""
    label = f"{key}={file}"
    is_quoted = file.suffix == ".csv"
    delimiter = _delimiter(next(text_lines(key, file), "")) if is_quoted else DELIMITERS[file.suffix]

    def rows() -> Iterator[list[str]]:
        # With their line ends, because a quoted field may hold some.
        lines = (f"{line}\n" for line in text_lines(key, file))
        quoted = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE)
        try:
            yield from (row for row in quoted if row)
        except csv.Error as error:
            raise DataError(f"{label}: {error}") from error

    columns = next(rows(), [])
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise DataError(f"{label}: its header names the column {twice[0]} {columns.count(twice[0])} times")

    def batches() -> Iterator[Rows]:
        numbered = enumerate(islice(rows(), 1, None))
        while batch := list(islice(numbered, _ROWS_AT_ONCE)):
            for number, row in batch:
                if len(row) != len(columns):
                    raise DataError(f"{label}: row {number} has {len(row)} fields, its header {len(columns)}")
            yield {name: [row[position] for _, row in batch] for position, name in enumerate(columns)}

    return Table(label, columns, {}, batches, partial(files_digest, [file]))
