"""Splits of a table: opening their files, holding out training rows, and selecting the examples of each split."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from adadepth.config.data import AgreementConfig, SentEvalConfig
from adadepth.config.kinds import get_kind
from adadepth.data.held_out import HELD_OUT, select_held_out
from adadepth.data.labelled.senteval import open_senteval_tables, split_agreement_table
from adadepth.data.text.delimited import DELIMITERS, open_delimited_table
from adadepth.data.text.hub import load_hub_tables
from adadepth.data.text.local_files import (
    COLUMN_TEXT,
    TABLE_SUFFIXES,
    find_files,
    list_split_names,
    open_conll_table,
    to_path,
)
from adadepth.data.text.table import DataTable, concatenate_tables, require_columns
from adadepth.data.text.table_files import is_saved, list_saved_splits, open_file_table, open_saved_table
from adadepth.errors import DataError, nearest

if TYPE_CHECKING:
    from adadepth.config import LabelledConfig, TableConfig


_Store = TypeVar("_Store", bound=Sized)
_Examples = TypeVar("_Examples")


class RowSource(Protocol):
    """Source of rows, such as a table, that is divided into splits."""

    @property
    def label(self) -> str:
        """Name of the source of rows, for messages."""


def list_table_splits(dataset: TableConfig) -> list[str]:
    """Return the names of the training and evaluation splits that the data must have."""
    evaluation = [split for split in dataset.evaluation_splits if split != HELD_OUT or dataset.held_out is None]
    return list(dict.fromkeys([dataset.train_split, *evaluation]))


def split_examples(
    dataset: TableConfig,
    tables: Mapping[str, RowSource],
    stores: Mapping[str, _Store],
    make: Callable[[_Store, np.ndarray], _Examples],
    classes: Callable[[_Store], np.ndarray] | None = None,
    test_splits: Iterable[str] = (),
) -> tuple[_Examples, dict[str, _Examples], dict[str, _Examples]]:
    """Select the training examples of a table, and the examples of each evaluation split and test split.

    Args:
        dataset: Settings of the splits, the number of examples of each, and the share of held-out training rows.
        tables: Mapping from splits to the sources of their rows, for messages.
        stores: Mapping from splits to the stores of their rows.
        make: Function from a store and row numbers to examples.
        classes: Function from the training store to the class of each row. Every class gets the same held-out share.
        test_splits: Test splits. They have at most ``max_test_examples`` examples.

    Raises:
        DataError: If a split has no rows.
    """
    rows = {split: np.arange(len(store)) for split, store in stores.items()}
    stores, tables, train = dict(stores), dict(tables), dataset.train_split
    if dataset.held_out is not None:
        row_classes = None if classes is None else classes(stores[train])
        rows |= group_rows_by_split(dataset, train, len(stores[train]), row_classes)
        stores[HELD_OUT], tables[HELD_OUT] = stores[train], tables[train]

    def examples(split: str, limit: int | None) -> _Examples:
        if not len(rows[split]):
            raise DataError(f"dataset.name={dataset.name}: the split {split} of {tables[split].label} has no rows")
        return make(stores[split], rows[split][spread_rows(len(rows[split]), limit)])

    evaluation = {split: examples(split, dataset.max_evaluation_examples) for split in dataset.evaluation_splits}
    test = {split: examples(split, getattr(dataset, "max_test_examples", None)) for split in test_splits}
    return examples(train, dataset.max_train_examples), evaluation, test


def group_rows_by_split(
    dataset: TableConfig, split: str, rows: int, classes: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Return the row numbers of each split of a table; rows held out from training form a split of their own.

    Args:
        dataset: Settings of the held-out share.
        split: Name of the split.
        rows: Number of rows of the split.
        classes: Class of each row; see `select_held_out`.
    """
    if split != dataset.train_split or dataset.held_out is None:
        return {split: np.arange(rows)}
    aside = select_held_out(rows, dataset.held_out, classes)
    return {split: np.flatnonzero(~aside), HELD_OUT: np.flatnonzero(aside)}


def spread_rows(rows: int, limit: int | None) -> np.ndarray:
    """Return at most ``limit`` of ``rows`` row numbers, evenly spaced because files are often sorted by label."""
    count = rows if limit is None else min(rows, limit)
    return np.arange(count) * rows // max(count, 1)


_SUFFIXES = (*TABLE_SUFFIXES, *DELIMITERS, *COLUMN_TEXT)


def open_splits(
    dataset: TableConfig, columns: Mapping[str, Sequence[str]], optional: Sequence[str] = ()
) -> dict[str, DataTable]:
    """Open the tables of the configured splits, and of the ``optional`` splits that the data set has.

    Args:
        dataset: Settings of the data set.
        columns: Mapping from keys of the configuration to the columns that they name. Every split must have these
            columns.
        optional: Names of splits that may be missing.

    Raises:
        DataError: If a split or a column is missing, or if a file or the hub cannot be read.
    """
    required = list_table_splits(dataset)
    requested = list(dict.fromkeys([*required, *optional]))
    if dataset.source == "hub":
        available = load_hub_tables({"path": dataset.hub.path, "name": dataset.hub.name})
    elif (read_tables := _find_reader(dataset)) is not None:
        available = read_tables(dataset)
    else:
        available = open_file_splits(dataset.path, requested, dataset.train_split)
    for split in required:
        if split not in available:
            key = "train_split" if split == dataset.train_split else "evaluation_splits"
            raise DataError(f"dataset.{key}={split}: {_describe_available(dataset, split, list(available))}")
    tables = {split: available[split] for split in requested if split in available}
    for table in tables.values():
        for key, names in columns.items():
            require_columns(table, key, names)
    return tables


def read_agreement(dataset: AgreementConfig) -> dict[str, DataTable]:
    """Return the splits of the subject-verb agreement data, read from one table or from several parts."""
    return split_agreement_table(
        concatenate_tables([open_table(file) for file in find_files("dataset.path", dataset.path)])
    )


_READERS: Mapping[type, Callable[[Any], dict[str, DataTable]]] = {
    AgreementConfig: read_agreement,
    SentEvalConfig: open_senteval_tables,
}


def _find_reader(dataset: TableConfig) -> Callable[[Any], dict[str, DataTable]] | None:
    """Return the reader of tables in a format of their own (`Kind.tables`), or None for usual files."""
    importer = get_kind(dataset).tables
    if importer is not None:
        return importer()
    return next((_READERS[base] for base in type(dataset).__mro__ if base in _READERS), None)


def open_file_splits(path: Any, splits: list[str], single: str | None = None) -> dict[str, DataTable]:
    """Open the tables of the splits found in a folder, or of those that a setting assigns to files.

    Args:
        path: Folder, mapping of splits to files, or single file.
        splits: Names of the splits.
        single: Split to which a single file, or the only table of a folder, belongs. None means that files must have
            the names of splits.

    Raises:
        DataError: If the folder or file does not exist, or if it is not a table.
    """
    if isinstance(path, Mapping):
        files = _find_named_files(path, splits)
    elif single is not None and (single_file := to_path("dataset.path", str(path))).is_file():
        files = {single: [single_file]}
    else:
        files = _find_split_files(path, splits)
        if not files and single is not None and (table := _find_only_table(path)) is not None:
            files = {single: [table]}
    return {
        split: concatenate_tables([open_table(file) for file in files[split]]) for split in splits if split in files
    }


def _find_only_table(path: Any) -> Path | None:
    """Return the only table of a folder, or None if the folder has no table or several."""
    files = to_path("dataset.path", str(path)).iterdir()
    tables = [file for file in files if file.is_file() and file.name.endswith(_SUFFIXES)]
    return tables[0] if len(tables) == 1 else None


def open_tests(dataset: LabelledConfig) -> dict[str, DataTable]:
    """Open the tables of test splits that are separate data sets on the Hugging Face hub.

    The test splits of local files are opened in the same way as other splits.

    Raises:
        DataError: If a split is missing, or if the hub cannot be read.
    """
    tests = {}
    for split, entry in dataset.test_hub.items() if dataset.source == "hub" else ():
        tables = load_hub_tables({"path": entry["path"], "name": entry["name"]})
        if entry["split"] not in tables:
            names = ", ".join(tables)
            raise DataError(f"dataset.test_hub.{split}.split={entry['split']}: the data set has only {names}")
        tests[split] = tables[entry["split"]]
    return tests


def _describe_available(dataset: TableConfig, split: str, available: list[str]) -> str:
    if dataset.source == "hub" or _find_reader(dataset) is not None:
        return f"the data set has only {', '.join(available)}{nearest(split, available)}"
    if isinstance(dataset.path, Mapping):
        keys = list(map(str, dataset.path))
        return f"dataset.path names files for {', '.join(keys)} only{nearest(split, keys)}"
    if (folder := Path(dataset.path).expanduser()).is_file():
        aside = f"dataset.held_out=0.1 'dataset.evaluation_splits=[{HELD_OUT}]'"
        return f"dataset.path={dataset.path} is one table, the split {dataset.train_split}; hold out some rows: {aside}"
    names = sorted(entry.name for entry in folder.iterdir())
    hint = f"there is {', '.join(names[:10]) or 'nothing'}{nearest(split, [name.split('.')[0] for name in names])}"
    return f"no file {split} with one of {', '.join(_SUFFIXES)} in dataset.path={dataset.path}; {hint}"


def _find_named_files(path: Mapping[Any, Any], splits: Sequence[str]) -> dict[str, list[Path]]:
    files_by_name = {str(split): _find_saved_or_files(f"dataset.path.{split}", files) for split, files in path.items()}
    return _select_splits(files_by_name, splits)


def _find_saved_or_files(key: str, path: Any) -> list[Path]:
    """Return the data files that a path setting names, or its folder if `save_to_disk` wrote it."""
    if isinstance(path, str) and is_saved(folder := to_path(key, path)):
        return [folder]
    return find_files(key, path)


def _select_splits(files_by_name: Mapping[str, list[Path]], splits: Sequence[str]) -> dict[str, list[Path]]:
    names = {
        split: next((name for name in _list_names(split, splits) if name in files_by_name), None) for split in splits
    }
    return {split: files_by_name[name] for split, name in names.items() if name is not None}


def _list_names(split: str, splits: Sequence[str]) -> list[str]:
    """Return the names under which the files of a split may be found.

    If another split with one of these names is requested, the name belongs to that split.
    """
    return [name for name in list_split_names(split) if name == split or name not in splits]


def _find_split_files(path: Any, splits: list[str]) -> dict[str, list[Path]]:
    """Return the files of each split in a folder, found by their names.

    A file belongs to a split if it is named after the split, after one of its parts as on the hub, or as in a treebank.
    """
    folder = to_path("dataset.path", str(path))
    if not folder.is_dir():
        siblings = [entry.name for entry in folder.parent.iterdir()] if folder.parent.is_dir() else []
        problem = "is a file" if folder.exists() else f"no such folder{nearest(folder.name, siblings)}"
        raise DataError(f"dataset.path={path}: {problem}; give a folder of splits, or a mapping of splits to files")
    if saved := list_saved_splits(folder):
        return _select_splits({split: [entry] for split, entry in saved.items()}, splits)
    if is_saved(folder):
        raise DataError(
            f"dataset.path={path}: is one table of save_to_disk, without splits; give dataset.path={{train: FOLDER, "
            "validation: FOLDER}"
        )
    names = sorted(file.name for file in folder.iterdir() if file.is_file() and file.stat().st_size > 0)
    split_files = {}
    for split in splits:
        matches = next(filter(None, (_match_files(name, names) for name in _list_names(split, splits))), [])
        if len({match.groups() for match in matches}) > 1:
            several = ", ".join(match[0] for match in matches)
            mapping = ", ".join(f"{name}: FILE" for name in splits)
            raise DataError(
                f"dataset.path={path}: {several} all match the split {split}; choose one with "
                f"'dataset.path={{{mapping}}}'"
            )
        if matches:
            split_files[split] = find_files("dataset.path", [folder / match[0] for match in matches])
    return split_files


def _match_files(split: str, names: Sequence[str]) -> list[re.Match[str]]:
    """Return the regular-expression matches of the file names that belong to a split, e.g. `train-0-of-3.csv`."""
    endings = "|".join(map(re.escape, _SUFFIXES))
    # Universal Dependencies: en_ewt-ud-train.conllu, en_ewt-ud-dev.conllu
    pattern = re.compile(rf"(.+-ud-)?{re.escape(split)}(?:-\d+-of-\d+)?({endings})")
    return [match for match in map(pattern.fullmatch, names) if match]


def open_table(file: Path, key: str = "dataset.path") -> DataTable:
    """Open a file as a table. The file name extension determines its format, and ``key`` is the setting that names it.

    Raises:
        DataError: If the file is not a table, or if it cannot be read.
    """
    if file.is_dir():
        return open_saved_table(key, file)
    if file.suffix in DELIMITERS:
        return open_delimited_table(file, key)
    if file.suffix in COLUMN_TEXT:
        return open_conll_table(file, key)
    if file.name.endswith(_SUFFIXES):
        return open_file_table(key, file)
    raise DataError(f"{key}={file}: not a table; known formats are {', '.join(_SUFFIXES)}")
