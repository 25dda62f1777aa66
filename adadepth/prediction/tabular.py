"""Tables to predict: the rows of a file, each with what a model says of it, written as another file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from adadepth.data.labelled.columns import USUAL_TEXTS, usual_texts
from adadepth.data.labelled.splits import open_table
from adadepth.data.text.delimited import DELIMITERS, csv_delimiter
from adadepth.data.text.json_rows import read_json_rows
from adadepth.data.text.local_files import find_files, text_lines
from adadepth.data.text.passages import Text
from adadepth.errors import ConfigError, DataError, nearest
from adadepth.families.shared.losses import takes_one_class
from adadepth.prediction.pipeline import Pipeline
from adadepth.prediction.results import Prediction
from adadepth.report.table import csv_text, defused
from adadepth.system.files import open_atomic
from adadepth.system.places import first_line

_Row = dict[str, Any]
OUTPUT_ENDINGS = (*DELIMITERS, ".jsonl")
_LINES, _CSV, _JSON_LINES = ".txt", ".csv", ".jsonl"
_ROWS_AT_ONCE = 1000
_DIGITS = 6  # of a probability, and of a mean depth
_PROBABLE = 0.5  # a label among several is predicted above it
_LEAST = 1e-45  # of float32, above 0
_PAIR = "\t"  # between two texts of a line
_WORD = re.compile(r"[^ \t\r\n]+")  # of a text to be tagged; other white space may be inside a word, as in .conll
_BREAKS = re.compile(r"\r\n|[\t\r\n]")  # what ends a field or a line of TSV


class Written(NamedTuple):
    """What was predicted of a table: its rows, their depths added up and counted, and the work of these and of all."""

    rows: int
    depths: float
    units: int
    needed: float
    full: float


def output_ending(source: Path) -> str:
    """The format that predictions of a file have where nobody chose one."""
    return _CSV if source.suffix == _LINES else source.suffix if source.suffix in DELIMITERS else _JSON_LINES


def input_file(given: str) -> Path:
    """The file that `input` names.

    Raises:
        DataError: There is none, or there are several.
    """
    files = find_files("input", given)
    if len(files) > 1:
        raise DataError(f"input={given}: must be one file, and these are {len(files)}")
    return files[0]


def check_output_file(given: str, source: Path) -> Path:
    """The file that `output` names, which can be written and is not the input.

    Raises:
        ConfigError: It cannot be, or is.
    """
    path = Path(given).expanduser()
    if path.suffix not in OUTPUT_ENDINGS:
        raise ConfigError(f"output={given}: must end in one of {', '.join(OUTPUT_ENDINGS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"output={given}: there is no folder {path.parent}")
    if path.is_dir():
        raise ConfigError(f"output={given}: is a folder")
    if path.exists() and path.samefile(source):
        raise ConfigError(f"output={given}: is the input, which is never written over")
    return path


def input_columns(source: Path, configured: Sequence[str] | None, trained: Sequence[str]) -> list[str]:
    """Return the columns of a file that a model reads.

    Args:
        source: A table, or `.txt`, whose texts have no names.
        configured: Those that the configuration names; None: those of the training where the file has them, or those
            with usual names.
        trained: Those that the model was trained on, if that is known.

    Raises:
        DataError: The file cannot be read, or the names of its columns do not say which hold the texts.
    """
    if configured is not None:
        return list(configured)
    if source.suffix == _LINES:
        return list(trained) or [USUAL_TEXTS[0]]
    if not (first := next(_rows(source, []), {})):
        return [USUAL_TEXTS[0]]
    if trained and set(trained) <= set(first):
        return list(trained)
    if columns := usual_texts(list(first)):
        return columns
    known = ", ".join(first)
    raise DataError(f"input={source}: has the columns {known}; say with dataset.text_columns which hold the texts")


def check_input(pipeline: Pipeline, source: Path, columns: Sequence[str]) -> None:
    """Whether a file is a table with what the model reads, as far as its first row tells.

    Raises:
        DataError: It is not; see `predict_table`.
        ConfigError: There are not one or two columns.
    """
    if len(columns) not in (1, 2):
        raise ConfigError(f"dataset.text_columns={list(columns)}: must name one column, or two for pairs")
    if (first := next(_rows(source, columns), None)) is None:
        raise DataError(f"input={source}: it has no rows")
    _text(pipeline, source, columns, 0, first)


def predict_table(pipeline: Pipeline, source: Path, columns: Sequence[str], path: Path) -> Written:
    """Predict the rows of a file, some at a time, and write them with what is predicted.

    Args:
        pipeline: Of the model.
        source: A table that `check_input` accepts, or `.txt` with a text a line.
        columns: Those that the model reads, one, or two of a pair.
        path: Ends in one of `OUTPUT_ENDINGS`; whole, or not there.

    Raises:
        DataError: Something is wrong with a row; the message names file, row and column.
    """
    rows = _rows(source, columns)
    total = Written(0, 0.0, 0, 0.0, 0.0)
    with open_atomic(path) as file:
        write = _writer(path, file, _delimiter(source))
        while batch := list(islice(rows, _ROWS_AT_ONCE)):
            texts = [
                _text(pipeline, source, columns, number, row) for number, row in enumerate(batch, start=total.rows)
            ]
            predictions, needed, full = pipeline.priced(texts)
            for number, (row, text, found) in enumerate(zip(batch, texts, predictions, strict=True), start=total.rows):
                told = _told(pipeline, text, found)
                added = told if path.suffix == _JSON_LINES else _flat(told)
                if taken := next((name for name in added if name in row), None):
                    raise DataError(f"input={source}: row {number} has a column {taken}, as the output has; rename it")
                write(number, {**row, **added})
            depths = [depth for found in predictions for depth in found.depths()]
            seen = (total.rows + len(batch), total.depths + sum(depths), total.units + len(depths))
            total = Written(*seen, total.needed + needed, total.full + full)
    return total


# ---- rows that come


def _rows(source: Path, columns: Sequence[str]) -> Iterator[_Row]:
    """Yield the rows as they are in the file.

    Raises:
        DataError: It cannot be read, or is not what it should be.
    """
    try:
        yield from _read(source, columns)
    except OSError as error:
        raise DataError(f"input={source}: {first_line(error)}") from error


def _read(source: Path, columns: Sequence[str]) -> Iterator[_Row]:
    if source.suffix == _LINES:
        return _lines(source, columns)
    if source.suffix == _JSON_LINES:
        return (row.cells for row in read_json_rows("input", source))  # each keeps what it has, as it is
    table = open_table(source, "input")
    for name in columns:
        _require(source, name, table.columns)
    return (
        dict(zip(table.columns, values, strict=True))
        for batch in table.batches()
        for values in zip(*(batch[name] for name in table.columns), strict=True)
    )


def _lines(source: Path, columns: Sequence[str]) -> Iterator[_Row]:
    for number, line in enumerate(text_lines("input", source)):
        texts = line.split(_PAIR) if len(columns) == 2 else [line]
        if len(texts) != len(columns):
            raise DataError(f"input={source}: row {number} has {len(texts)} texts with tabs between them, not 2")
        yield dict(zip(columns, texts, strict=True))


def _require(source: Path, name: str, known: Sequence[str], where: str = "the file") -> None:
    if name not in known:
        raise DataError(
            f"input={source}: {where} lacks the column {name}{nearest(name, known)}; it has {', '.join(known)}"
        )


def _text(pipeline: Pipeline, source: Path, columns: Sequence[str], number: int, row: _Row) -> Text:
    """What the model reads of a row; a text that is missing is empty, as in training."""
    parts = []
    for name in columns:
        _require(source, name, list(row), f"row {number}")
        value = "" if row[name] is None else row[name]
        if pipeline.predicts == "tags":
            value = _WORD.findall(value) if isinstance(value, str) else value
            if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
                raise DataError(f"input={source}: row {number}, column {name}: must be a list of words, or a text")
            return value
        if not isinstance(value, str):
            raise DataError(f"input={source}: row {number}, column {name}: holds {type(value).__name__}, not text")
        if pipeline.predicts == "cells" and (flaw := pipeline.flaw_of_puzzle(value)) is not None:
            raise DataError(f"input={source}: row {number}, column {name}: {value!r:.60}: {flaw}")
        parts.append(value)
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])


# ---- what is said of them


def _told(pipeline: Pipeline, text: Text, found: Prediction) -> _Row:
    """The columns that are added to a row."""
    predicts = pipeline.predicts
    updates = {"updates": round(found.updates, _DIGITS)}
    if predicts == "classes" and found.value is not None:
        return {"prediction": found.value, **updates}
    if predicts == "classes":
        scores = {name: round(score, _DIGITS) for name, score in (found.scores or {}).items()}
        several = [name for name, score in scores.items() if score > _PROBABLE]
        label = found.label if takes_one_class(pipeline.model.config) else several
        return {"prediction": label, "probabilities": scores, **updates}
    if predicts in ("tags", "masks"):
        return _of_tokens(found, len(text) if predicts == "tags" else None)
    told = {"prediction": found.label, "probability": _rounded(found.score), **updates}
    if predicts == "next":
        own = [token.own_score for token in found.tokens or [] if token.own_score is not None]
        told["log_probability"] = _rounded(sum(math.log(max(score, _LEAST)) for score in own))  # of the text
    return told


def _of_tokens(found: Prediction, words: int | None) -> _Row:
    """Lists over the words, None where one was cut off, or over the places that were to be filled."""
    tokens = found.tokens or []
    chosen: list[Any] = [token for token in tokens if token.label is not None]
    if words is not None:
        first = {token.part: token for token in reversed(chosen)}
        chosen = [first.get(number) for number in range(words)]
    told = {"prediction": "label", "probability": "score", "updates": "updates"}
    return {
        name: [_rounded(None if token is None else getattr(token, field)) for token in chosen]
        for name, field in told.items()
    } | ({} if words is not None else {"updates": round(found.updates, _DIGITS)})


def _rounded(value: Any) -> Any:
    return round(value, _DIGITS) if isinstance(value, float) else value


# ---- rows that go

_Write = Callable[[int, _Row], None]


def _delimiter(source: Path) -> str:
    """What parts the columns of a CSV that is written: what parts those of the one that is read, if it is one."""
    return csv_delimiter(source, "input") if source.suffix == _CSV else DELIMITERS[_CSV]


def _writer(path: Path, file: TextIO, delimiter: str) -> _Write:
    """What writes a row by its number, in a CSV with `delimiter` between the columns."""
    if path.suffix == _JSON_LINES:
        return lambda _, row: print(json.dumps(row, ensure_ascii=False), file=file)
    names: list[str] = []

    def write(number: int, row: _Row) -> None:
        if not names:
            names.extend(row)
            file.write(_line([_cell(name, path) for name in names], path, delimiter))
        if further := next((name for name in row if name not in names), None):
            raise DataError(
                f"output={path}: row {number} has {further}, which the first row has not; an output that ends in "
                f"{_JSON_LINES} takes such rows"
            )
        file.write(_line([_cell(row.get(name), path) for name in names], path, delimiter))

    return write


def _line(cells: list[Any], path: Path, delimiter: str) -> str:
    """A line of CSV with quotes where they are needed, or of TSV without, as they are read."""
    if path.suffix == _CSV:
        return csv_text([cells], delimiter)
    return "\t".join("" if cell is None else str(defused(cell)) for cell in cells) + "\n"


def _flat(added: Mapping[str, Any]) -> _Row:
    """A column a class in place of all their probabilities."""
    found = {key: value for key, value in added.items() if key != "probabilities"}
    classes = {f"probability_{name}": score for name, score in added.get("probabilities", {}).items()}
    updates = found.pop("updates")
    return {**found, **classes, "updates": updates}


def _cell(value: Any, path: Path) -> Any:
    """A value as a spreadsheet holds it: lists as JSON."""
    if isinstance(value, list | dict):
        value = json.dumps(value, ensure_ascii=False)
    if path.suffix != _CSV and isinstance(value, str):
        value = _BREAKS.sub(" ", value)  # TSV has no quotes
    return value
