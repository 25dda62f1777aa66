"""Which rows of its tables a data set trains and is evaluated on, and the training rows that are set aside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from adadepth.data.labelled.contract import spread_rows
from adadepth.data.randomness import EVALUATION_SEED, FIXED_EPOCH, Purpose, random_generator
from adadepth.errors import DataError

if TYPE_CHECKING:
    from adadepth.config import TableConfig

HELD_OUT = "held_out"  # the split of the rows set aside


Store = TypeVar("Store", bound=Sized)
Examples = TypeVar("Examples")


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
    stores: Mapping[str, Store],
    make: Callable[[Store, np.ndarray], Examples],
    classes: Callable[[Store], np.ndarray] | None = None,
    test_splits: Iterable[str] = (),
) -> tuple[Examples, dict[str, Examples], dict[str, Examples]]:
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

    def examples(split: str, limit: int | None) -> Examples:
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
        split: That of the table.
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
