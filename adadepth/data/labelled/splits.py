"""Which rows of its tables a data set trains and is evaluated on, and the training rows that are set aside."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from transformers import PreTrainedTokenizerFast

from adadepth.data.cache import CACHE_FORMAT, digest
from adadepth.data.labelled.contract import spread_rows
from adadepth.data.labelled.probing import agreement_tables
from adadepth.data.randomness import EVALUATION_SEED, FIXED_EPOCH, Purpose, random_generator
from adadepth.data.stores.arrays import cached_arrays, versioned
from adadepth.data.text.data_table import DataTable, Rows, count_rows, joined, require_columns
from adadepth.data.text.delimited import DELIMITERS, delimited_table
from adadepth.data.text.hub import hub_tables
from adadepth.data.text.local_files import (
    COLUMN_TEXT,
    TABLE_SUFFIXES,
    as_path,
    column_table,
    find_files,
    split_names,
)
from adadepth.data.text.table_files import file_table, is_saved, saved_splits, saved_table
from adadepth.data.text.tokenizer import load_or_train, needed_tokens
from adadepth.errors import DataError, nearest
from adadepth.settings.kinds import kind_of
from adadepth.settings.plugins import load

if TYPE_CHECKING:
    from adadepth.settings import LabelledConfig, TableConfig, TokenizerConfig
    from adadepth.settings.data import AgreementConfig


HELD_OUT = "held_out"  # the split of the rows set aside


_Store = TypeVar("_Store", bound=Sized)
_Examples = TypeVar("_Examples")


class Named(Protocol):
    """What rows are read from."""

    @property
    def label(self) -> str:
        """What it is, for messages."""


def table_splits(dataset: TableConfig) -> list[str]:
    """Return the training and evaluation splits that the data themselves must have."""
    own = [split for split in dataset.evaluation_splits if split != HELD_OUT or dataset.held_out is None]
    return list(dict.fromkeys([dataset.train_split, *own]))


def split_examples(
    dataset: TableConfig,
    tables: Mapping[str, Named],
    stores: Mapping[str, _Store],
    make: Callable[[_Store, np.ndarray], _Examples],
    classes: Callable[[_Store], np.ndarray] | None = None,
    test_splits: Iterable[str] = (),
) -> tuple[_Examples, dict[str, _Examples], dict[str, _Examples]]:
    """Return the training examples, those of each evaluation split, and those of each test split.

    Args:
        dataset: Says which splits, how many examples of each, and what share of the training rows is set aside.
        tables: Split to what its rows are read from, for messages.
        stores: Split to its rows.
        make: From a store and the numbers of its rows to examples.
        classes: From the training store to the class of each row, which then has the same share in both parts.
        test_splits: Of data that say how many examples of each.

    Raises:
        DataError: A split has no rows.
    """
    rows = {split: np.arange(len(store)) for split, store in stores.items()}
    stores, tables, train = dict(stores), dict(tables), dataset.train_split
    if dataset.held_out is not None:
        found = None if classes is None else classes(stores[train])
        rows |= rows_by_split(dataset, train, len(stores[train]), found)
        stores[HELD_OUT], tables[HELD_OUT] = stores[train], tables[train]

    def examples(split: str, limit: int | None) -> _Examples:
        if not len(rows[split]):
            raise DataError(f"dataset.name={dataset.name}: the split {split} of {tables[split].label} has no rows")
        return make(stores[split], rows[split][spread_rows(len(rows[split]), limit)])

    evaluation = {split: examples(split, dataset.max_evaluation_examples) for split in dataset.evaluation_splits}
    test = {split: examples(split, getattr(dataset, "max_test_examples", None)) for split in test_splits}
    return examples(train, dataset.max_train_examples), evaluation, test


def rows_by_split(dataset: TableConfig, split: str, rows: int, classes: np.ndarray | None) -> dict[str, np.ndarray]:
    """Return the numbers of all rows of a split's table: of the training table, those held out apart from the others.

    Args:
        dataset: Says what share is held out.
        split: The name of the table's split.
        rows: How many it has.
        classes: See `set_aside`.
    """
    if split != dataset.train_split or dataset.held_out is None:
        return {split: np.arange(rows)}
    aside = set_aside(rows, dataset.held_out, classes)
    return {split: np.flatnonzero(~aside), HELD_OUT: np.flatnonzero(aside)}


def set_aside(rows: int, share: float, classes: np.ndarray | None) -> np.ndarray:
    """Return which of some rows are set aside, (rows,) bool: the same for every seed.

    Args:
        rows: How many there are.
        share: Of every class, as nearly as whole rows allow.
        classes: The class of each row, (rows,); None: the rows are all alike.
    """
    order = random_generator(EVALUATION_SEED, Purpose.HELD_OUT, FIXED_EPOCH, 0).permutation(rows)
    if classes is not None:
        order = order[np.argsort(classes[order], kind="stable")]  # class by class
    # Every 1/share-th row of that order: of n rows of a class, n · share, rounded up or down.
    marks = np.floor(np.arange(1, rows + 1) * share + 0.5)
    aside = np.zeros(rows, dtype=bool)
    aside[order[np.diff(marks, prepend=0.0) > 0]] = True
    return aside


_SUFFIXES = (*TABLE_SUFFIXES, *DELIMITERS, *COLUMN_TEXT)


def open_splits(
    dataset: TableConfig, columns: Mapping[str, Sequence[str]], optional: Sequence[str] = ()
) -> dict[str, DataTable]:
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
    elif (own := kind_of(dataset).tables) is not None:
        found = load(own)(dataset)
    else:
        found = file_splits(dataset.path, wanted, dataset.train_split)
    for split in required:
        if split not in found:
            key = "train_split" if split == dataset.train_split else "evaluation_splits"
            raise DataError(f"dataset.{key}={split}: {_what_there_is(dataset, split, list(found))}")
    tables = {split: found[split] for split in wanted if split in found}
    for table in tables.values():
        for key, names in columns.items():
            require_columns(table, key, names)
    return tables


def read_agreement(dataset: AgreementConfig) -> dict[str, DataTable]:
    """Return the splits of the agreement data, in one table or in parts."""
    return agreement_tables(joined([open_table(file) for file in find_files("dataset.path", dataset.path)]))


def file_splits(path: Any, wanted: list[str], single: str | None = None) -> dict[str, DataTable]:
    """Return those of the wanted splits that a folder, or a mapping of splits to files, has.

    Args:
        path: The folder, the mapping, or one file.
        wanted: Splits.
        single: The split that one file is, also the only table of a folder; None: it must be called like its split.

    Raises:
        DataError: There is no such folder or file, or it is no table.
    """
    if isinstance(path, Mapping):
        files = _named_files(path, wanted)
    elif single is not None and (place := as_path("dataset.path", str(path))).is_file():
        files = {single: [place]}
    else:
        files = _folder(path, wanted)
        if not files and single is not None and (table := _only_table(path)) is not None:
            files = {single: [table]}
    return {split: joined([open_table(file) for file in files[split]]) for split in wanted if split in files}


def _only_table(path: Any) -> Path | None:
    """Return the only table of a folder; None: there are none or several."""
    files = as_path("dataset.path", str(path)).iterdir()
    tables = [file for file in files if file.is_file() and file.name.endswith(_SUFFIXES)]
    return tables[0] if len(tables) == 1 else None


def open_tests(dataset: LabelledConfig) -> dict[str, DataTable]:
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
    return found


def _what_there_is(dataset: TableConfig, split: str, found: list[str]) -> str:
    if dataset.source == "hub" or kind_of(dataset).tables is not None:
        return f"the data set has only {', '.join(found)}{nearest(split, found)}"
    if isinstance(dataset.path, Mapping):
        known = list(map(str, dataset.path))
        return f"dataset.path names files for {', '.join(known)} only{nearest(split, known)}"
    if (place := Path(dataset.path).expanduser()).is_file():
        aside = f"dataset.held_out=0.1 'dataset.evaluation_splits=[{HELD_OUT}]'"
        return f"dataset.path={dataset.path} is one table, the split {dataset.train_split}; hold some rows out: {aside}"
    names = sorted(entry.name for entry in place.iterdir())
    there = f"there is {', '.join(names[:10]) or 'nothing'}{nearest(split, [name.split('.')[0] for name in names])}"
    return f"no file {split} with one of {', '.join(_SUFFIXES)} in dataset.path={dataset.path}; {there}"


def _named_files(path: Mapping[Any, Any], wanted: Sequence[str]) -> dict[str, list[Path]]:
    named = {str(split): _files(f"dataset.path.{split}", files) for split, files in path.items()}
    return _by_split(named, wanted)


def _files(key: str, path: Any) -> list[Path]:
    """Return the files that a setting names, or the one folder that `save_to_disk` wrote."""
    if isinstance(path, str) and is_saved(folder := as_path(key, path)):
        return [folder]
    return find_files(key, path)


def _by_split(named: Mapping[str, list[Path]], wanted: Sequence[str]) -> dict[str, list[Path]]:
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
    if saved := saved_splits(folder):
        return _by_split({split: [entry] for split, entry in saved.items()}, wanted)
    if is_saved(folder):
        raise DataError(
            f"dataset.path={path}: is one table of save_to_disk, without splits; give dataset.path={{train: FOLDER, "
            "validation: FOLDER}"
        )
    names = sorted(file.name for file in folder.iterdir() if file.is_file() and file.stat().st_size > 0)
    found = {}
    for split in wanted:
        matches = next(filter(None, (_called(name, names) for name in _names(split, wanted))), [])
        if len({match.groups() for match in matches}) > 1:
            several = ", ".join(match[0] for match in matches)
            mapping = ", ".join(f"{name}: FILE" for name in wanted)
            raise DataError(
                f"dataset.path={path}: {several} are all the split {split}; choose with 'dataset.path={{{mapping}}}'"
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


def open_table(file: Path, key: str = "dataset.path") -> DataTable:
    """Return a file as a table by its ending; `key` is the setting that names it.

    Raises:
        DataError: It is none, or cannot be read.
    """
    if file.is_dir():
        return saved_table(key, file)
    if file.suffix in DELIMITERS:
        return delimited_table(file, key)
    if file.suffix in COLUMN_TEXT:
        return column_table(file, key)
    if file.name.endswith(_SUFFIXES):
        return file_table(key, file)
    raise DataError(f"{key}={file}: not a table; known are {', '.join(_SUFFIXES)}")


def load_table_tokenizer(
    tokenizer: TokenizerConfig,
    root: Path,
    train: DataTable,
    columns: str | list[str],
    texts: Callable[[], Iterable[str]],
    cls_tokens: int,
) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a table: an existing one, or one trained on the training rows and cached.

    Args:
        tokenizer: Which of the two.
        root: Cache folder.
        train: Training rows.
        columns: The columns that hold text.
        texts: Yields the texts of the first ``tokenizer.train_documents`` rows.
        cls_tokens: How many [CLS] a sequence begins with.
    """

    def key() -> str:
        return digest(CACHE_FORMAT, train.fingerprint(), columns)

    return load_or_train(tokenizer, root, key, texts, needed_tokens(cls_tokens), train.sources)


logger = logging.getLogger(__name__)


def cached_rows(
    root: Path,
    name: str,
    dataset: TableConfig,
    split: str,
    table: DataTable,
    write: Callable[[Path, DataTable], None],
    blanks: Mapping[str, Any],
    classes: Callable[[DataTable], np.ndarray] | None = None,
) -> Path:
    """Return the folder of what a split's rows become: all of them, or where few are used and all are not there, these.

    Args:
        root: Cache folder.
        name: Of the folder of all rows.
        dataset: Says how many rows are used.
        split: The name of the table's split.
        table: The rows of the split.
        write: From an empty folder and a table to the files in it.
        blanks: Column to what stands there in a row that is not used.
        classes: From the training table to the class of each row, see `set_aside`.
    """
    limits = _limits(dataset, split)
    if limits is None or (root / versioned(name)).exists():
        return cached_arrays(root, name, lambda folder: write(folder, _used_rows(table, blanks)), table.sources)

    def write_used(folder: Path) -> None:
        used = _used(dataset, split, table, classes)
        write(folder, _used_rows(table, blanks, used))

    # Which rows these are follows from the table, which the name stands for, and from how many of them are used.
    return cached_arrays(root, f"{name}-{digest(limits, dataset.held_out)}", write_used, table.sources)


def _limits(dataset: TableConfig, split: str) -> dict[str, list[int | None]] | None:
    """Return how many rows the uses of a table take, those held out apart; None: one of them takes all."""
    found = {split: _uses(dataset, split)}
    if split == dataset.train_split and dataset.held_out is not None:
        found[HELD_OUT] = _uses(dataset, HELD_OUT)
    return None if None in found[split] else found


def _uses(dataset: TableConfig, split: str) -> list[int | None]:
    uses = [dataset.max_train_examples] if split == dataset.train_split else []
    uses += [dataset.max_evaluation_examples] if split in dataset.evaluation_splits else []
    return uses + (
        [getattr(dataset, "max_test_examples", None)] if split in getattr(dataset, "test_splits", ()) else []
    )


def _used(
    dataset: TableConfig, split: str, table: DataTable, classes: Callable[[DataTable], np.ndarray] | None
) -> np.ndarray:
    """Return which rows of a table are used, (rows,) bool: those that `split_examples` chooses."""
    rows = table.count()
    is_split = split == dataset.train_split and dataset.held_out is not None
    found = classes(table) if classes is not None and is_split else None
    used = np.zeros(rows, dtype=bool)
    for part, numbers in rows_by_split(dataset, split, rows, found).items():
        for limit in _uses(dataset, part):
            used[numbers[spread_rows(len(numbers), limit)]] = True
    return used


def _used_rows(table: DataTable, blanks: Mapping[str, Any], used: np.ndarray | None = None) -> DataTable:
    """Return a table with blanks in the rows that are not used; reading all of it tells how many texts are missing.

    Args:
        table: Any.
        blanks: Column to what stands there in a row that is not used: no text, where the column holds texts.
        used: Which rows are used, (rows,) bool; None: all.
    """
    texts = [name for name, blank in blanks.items() if blank is None or isinstance(blank, str)]

    def batches() -> Iterator[Rows]:
        first = missing = 0
        for batch in table.read_batches():
            rows = count_rows(batch)
            kept = [True] * rows if used is None else used[first : first + rows].tolist()
            missing += sum(keep and _is_missing(text) for name in texts for text, keep in _pair(batch[name], kept))
            cells = {
                name: [cell if keep else blank for cell, keep in _pair(batch[name], kept)]
                for name, blank in blanks.items()
            }
            yield {**batch, **cells}
            first += rows
        if missing:
            logger.warning(
                "columns %s: %s lacks %d texts, which are read as empty ones", ", ".join(texts), table.label, missing
            )

    return replace(table, batches=batches)


def _pair(cells: list[Any], kept: list[bool]) -> Iterator[tuple[Any, bool]]:
    return zip(cells, kept, strict=True)


def _is_missing(text: Any) -> bool:
    return text is None or (isinstance(text, str) and not text.strip())
