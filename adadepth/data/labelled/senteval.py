"""Probing tasks in SentEval's format: a file a task, a line a sentence, `tr|va|te`, its class and it, tabs between."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from adadepth.data.labelled.table import Rows, Table
from adadepth.data.text.files import as_path, files_digest, text_lines
from adadepth.errors import DataError, nearest

if TYPE_CHECKING:
    from adadepth.config.tables import SentEvalConfig

_SPLITS = {"tr": "train", "va": "validation", "te": "test"}
_COLUMNS = ["label", "sentence"]
_ROWS_AT_ONCE = 1000


def senteval_tables(dataset: SentEvalConfig) -> dict[str, Table]:
    """Return the splits train, validation and test of a task's file, columns `label` and `sentence`.

    Raises:
        DataError: There is no such folder or file; while reading, a line that is not of this format.
    """
    file = _find(dataset)
    return {split: _table(file, split) for split in _SPLITS.values()}


def _find(dataset: SentEvalConfig) -> Path:
    folder = as_path("dataset.path", str(dataset.path))
    if not folder.is_dir():
        raise DataError(f"dataset.path={dataset.path}: no such folder; it must hold {dataset.task}.txt")
    file = folder / f"{dataset.task}.txt"
    if not file.is_file():
        known = sorted(other.stem for other in folder.glob("*.txt"))
        there = f"there is {', '.join(known) or 'none'}{nearest(dataset.task, known)}"
        raise DataError(f"dataset.task={dataset.task}: no {file.name} in dataset.path={dataset.path}; {there}")
    return file


def _table(file: Path, split: str) -> Table:
    def batches() -> Iterator[Rows]:
        rows = ((label, sentence) for part, label, sentence in _rows(file) if part == split)
        while batch := list(islice(rows, _ROWS_AT_ONCE)):
            yield {name: list(values) for name, values in zip(_COLUMNS, zip(*batch, strict=True), strict=True)}

    return Table(f"dataset.path={file}", _COLUMNS, {}, batches, partial(_fingerprint, file, split))


def _rows(file: Path) -> Iterator[tuple[str, str, str]]:
    """Yield split, class and sentence of every line; fields between the second and the last are somebody's notes."""
    for number, line in enumerate(text_lines("dataset.path", file), start=1):
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) < 3:
            raise DataError(
                f"dataset.path={file}: line {number} has {len(fields)} fields with tabs between them; "
                "needed are tr, va or te, the class, and the sentence"
            )
        if fields[0] not in _SPLITS:
            raise DataError(f"dataset.path={file}: line {number} begins with {fields[0]!r}, not with tr, va or te")
        yield _SPLITS[fields[0]], fields[1], fields[-1]


def _fingerprint(file: Path, split: str) -> list[str]:
    return [*files_digest([file]), split]
