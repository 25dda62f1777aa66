"""Only the rows that are used are tokenised: the others keep their places, so that a row's number is the table's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adadepth.data.cache import cached_folder, digest
from adadepth.data.labelled.contract import spread_rows
from adadepth.data.labelled.held_out import HELD_OUT, rows_by_split
from adadepth.data.labelled.table import Rows, Table

if TYPE_CHECKING:
    from adadepth.config import TableConfig

logger = logging.getLogger(__name__)


def cached_rows(
    root: Path,
    name: str,
    dataset: TableConfig,
    split: str,
    table: Table,
    write: Callable[[Path, Table], None],
    blanks: Mapping[str, Any],
    classes: Callable[[Table], np.ndarray] | None = None,
) -> Path:
    """Return the folder of what a split's rows become: all of them, or where few are used and all are not there, these.

    Args:
        root: Cache folder.
        name: Of the folder of all rows.
        dataset: Says how many rows are used.
        split: That of the table.
        table: Its rows.
        write: From an empty folder and a table to the files in it.
        blanks: Column to what stands there in a row that is not used.
        classes: From the training table to the class of each row, see `set_aside`.
    """
    limits = _limits(dataset, split)
    texts = [name for name, blank in blanks.items() if blank is None or isinstance(blank, str)]
    if limits is None or (root / name).exists():
        return cached_folder(root, name, lambda folder: write(folder, _counted(table, texts)))

    def write_used(folder: Path) -> None:
        used = _used(dataset, split, table, classes)
        write(folder, _blanked(_counted(table, texts, used), used, blanks))

    # Which rows these are follows from the table, which the name stands for, and from how many of them are used.
    return cached_folder(root, f"{name}-{digest(limits, dataset.held_out)}", write_used)


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


def _used(dataset: TableConfig, split: str, table: Table, classes: Callable[[Table], np.ndarray] | None) -> np.ndarray:
    """Return which rows of a table are used, (rows,) bool: those that `split_examples` chooses."""
    rows = sum(len(batch[table.columns[0]]) for batch in table.batches())
    is_split = split == dataset.train_split and dataset.held_out is not None
    found = classes(table) if classes is not None and is_split else None
    used = np.zeros(rows, dtype=bool)
    for part, numbers in rows_by_split(dataset, split, rows, found).items():
        for limit in _uses(dataset, part):
            used[numbers[spread_rows(len(numbers), limit)]] = True
    return used


def _counted(table: Table, columns: Sequence[str], used: np.ndarray | None = None) -> Table:
    """Return the table; whoever reads it to its end is told how many texts of the used rows are missing or blank."""

    def batches() -> Iterator[Rows]:
        first = missing = 0
        for batch in table.batches():
            rows = len(batch[table.columns[0]])
            kept = np.ones(rows, dtype=bool) if used is None else used[first : first + rows]
            missing += sum(_is_missing(batch[name][row]) for name in columns for row in np.flatnonzero(kept).tolist())
            yield batch
            first += rows
        if missing:
            logger.warning("columns %s: %s lacks %d texts, which are read as empty ones",
                           ", ".join(columns), table.label, missing)  # fmt: skip

    return replace(table, batches=batches)


def _is_missing(text: Any) -> bool:
    return text is None or (isinstance(text, str) and not text.strip())


def _blanked(table: Table, used: np.ndarray, blanks: Mapping[str, Any]) -> Table:
    def batches() -> Iterator[Rows]:
        first = 0
        for batch in table.batches():
            kept = used[first : first + len(batch[table.columns[0]])].tolist()
            emptied = {
                name: [value if keep else blank for value, keep in zip(batch[name], kept, strict=True)]
                for name, blank in blanks.items()
            }
            yield {**batch, **emptied}
            first += len(kept)

    return replace(table, batches=batches)
