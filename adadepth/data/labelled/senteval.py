"""Loading of data for probing tasks: SentEval, and the subject-verb agreement data of Linzen et al."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from adadepth.data.text.local_files import read_lines, to_path
from adadepth.data.text.sources import SourceFile
from adadepth.data.text.table import ROW_LOCATIONS, DataTable, RowLocation, Rows, count_rows
from adadepth.errors import DataError, nearest

if TYPE_CHECKING:
    from adadepth.config.data import SentEvalConfig


_SPLITS = {"tr": "train", "va": "validation", "te": "test"}
_COLUMNS = ["label", "sentence"]
_ROWS_AT_ONCE = 1000


def open_senteval_tables(dataset: SentEvalConfig) -> dict[str, DataTable]:
    """Return the splits train, validation and test of a SentEval file, with the columns `label` and `sentence`.

    Raises:
        DataError: If the folder or the file does not exist. While the table is read, also if a line does not have this
            format.
    """
    file = _find_file(dataset)
    return {split: _build_table(file, split) for split in _SPLITS.values()}


def _find_file(dataset: SentEvalConfig) -> Path:
    folder = to_path("dataset.path", str(dataset.path))
    if not folder.is_dir():
        raise DataError(f"dataset.path={dataset.path}: no such folder; it must hold {dataset.task}.txt")
    file = folder / f"{dataset.task}.txt"
    if not file.is_file():
        tasks = sorted(other.stem for other in folder.glob("*.txt"))
        hint = f"there is {', '.join(tasks) or 'none'}{nearest(dataset.task, tasks)}"
        raise DataError(f"dataset.task={dataset.task}: no {file.name} in dataset.path={dataset.path}; {hint}")
    return file


def _build_table(file: Path, split: str) -> DataTable:
    def batches() -> Iterator[Rows]:
        rows = (row for row in _read_rows(file) if row.split == split)
        while batch := list(islice(rows, _ROWS_AT_ONCE)):
            cells = [[row.label for row in batch], [row.sentence for row in batch]]
            yield {**dict(zip(_COLUMNS, cells, strict=True)), ROW_LOCATIONS: [row.location for row in batch]}

    source = SourceFile("dataset.path", file)
    return DataTable(f"dataset.path={file}", _COLUMNS, {}, batches, lambda: [source.digest(), split], [source])


class _Row(NamedTuple):
    """Line of a SentEval file: its location, split, class and sentence."""

    location: RowLocation
    split: str
    label: str
    sentence: str


def _read_rows(file: Path) -> Iterator[_Row]:
    """Yield every line of a SentEval file. Fields between the second and the last are annotations and are skipped."""
    for number, line in enumerate(read_lines("dataset.path", file), start=1):
        location = RowLocation(f"dataset.path={file}", "line", number)
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) < 3:
            raise DataError(
                f"{location} has {len(fields)} fields with tabs between them; a line needs tr, va or te, the class, "
                "and the sentence"
            )
        if fields[0] not in _SPLITS:
            raise DataError(f"{location} begins with {fields[0]!r}, not with tr, va or te")
        yield _Row(location, _SPLITS[fields[0]], fields[1], fields[-1])


PREFIX = "prefix"  # the added column: the words before the verb
# Row numbers modulo 100 of each split: the paper draws the same shares at random.
_NUMBERS_OF = {"train": range(9), "validation": range(9, 10), "test": range(10, 100)}


def split_agreement_table(table: DataTable) -> dict[str, DataTable]:
    """Return the splits train, validation and test of the agreement data, with the additional column `prefix`.

    Raises:
        DataError: If a column is missing. While the table is read, also if a verb is not in its sentence.
    """
    for name in ("orig_sentence", "verb_index"):
        if name not in table.columns:
            raise DataError(f"{table.label}: lacks the column {name}; it has {', '.join(table.columns)}")
    return {split: _select_split(table, split) for split in _NUMBERS_OF}


def _select_split(table: DataTable, split: str) -> DataTable:
    def batches() -> Iterator[Rows]:
        first = 0
        for batch in table.read_batches():
            row_numbers = [row for row in range(count_rows(batch)) if (first + row) % 100 in _NUMBERS_OF[split]]
            rows = {name: [values[row] for row in row_numbers] for name, values in batch.items()}
            cells = zip(rows["orig_sentence"], rows["verb_index"], rows[ROW_LOCATIONS], strict=True)
            yield {**rows, PREFIX: [_cut_before_verb(*row) for row in cells]}
            first += count_rows(batch)

    def fingerprint() -> list[str]:
        return [*table.fingerprint(), split]

    return DataTable(table.label, [*table.columns, PREFIX], {}, batches, fingerprint, table.sources)


def _cut_before_verb(sentence: Any, verb_index: Any, location: RowLocation) -> str:
    """Return the words of a sentence before its verb. Words are counted from 1."""
    words, verb = str(sentence).split(), str(verb_index)
    if not verb.isdigit() or not 1 < int(verb) <= len(words):
        raise DataError(
            f"{location} has the verb_index {verb!r}; it must be from 2 to {len(words)}, the number of words of "
            "its orig_sentence"
        )
    return " ".join(words[: int(verb) - 1])
