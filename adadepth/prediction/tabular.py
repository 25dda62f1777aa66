"""Predictions for tables: reads the rows of a file, predicts them, and writes rows and predictions to another file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from adadepth.data.labelled.columns import USUAL_TEXTS, find_text_columns
from adadepth.data.labelled.splits import open_table
from adadepth.data.text.delimited import DELIMITERS, detect_csv_delimiter
from adadepth.data.text.json_rows import read_json_rows
from adadepth.data.text.local_files import find_files, read_lines
from adadepth.data.text.passages import Text
from adadepth.data.text.table import ROW_LOCATIONS, RowLocation
from adadepth.errors import ConfigError, DataError, nearest
from adadepth.models.shared.losses import takes_one_class
from adadepth.prediction.outputs import Prediction, PredictionCompute
from adadepth.prediction.pipeline import Pipeline
from adadepth.report.table import escape_csv_formula, format_csv
from adadepth.runtime.files import open_atomic
from adadepth.runtime.hub_access import get_first_line

_Row = dict[str, Any]
OUTPUT_ENDINGS = (*DELIMITERS, ".jsonl")
_LINES, _CSV, _JSON_LINES = ".txt", ".csv", ".jsonl"
_ROWS_AT_ONCE = 1000
_DIGITS = 6  # of probabilities and mean depths
_THRESHOLD = 0.5  # probability above which a label of multi-label data is predicted
_SMALLEST = 1e-45  # float32 above 0
_PAIR = "\t"  # between two texts of a line
_WORD = re.compile(r"[^ \t\r\n]+")  # other white space may be inside a word to be tagged, as in .conll
_BREAKS = re.compile(r"\r\n|[\t\r\n]")  # end of a field or a line of TSV


class TablePredictionTotals(NamedTuple):
    """Total rows, updates and MACs of the predictions for a table.

    Attributes:
        rows: Number of rows.
        depths: Sum of the updates of all units.
        units: Number of units.
        compute: Multiply-accumulates of the predictions.
    """

    rows: int
    depths: float
    units: int
    compute: PredictionCompute


def get_output_ending(source: Path) -> str:
    """Return the default file extension of the output for an input file."""
    return _CSV if source.suffix == _LINES else source.suffix if source.suffix in DELIMITERS else _JSON_LINES


def resolve_input_file(value: str) -> Path:
    """Return the path of the single file that the setting `input` names.

    Raises:
        DataError: If the setting names no file or several files.
    """
    files = find_files("input", value)
    if len(files) > 1:
        raise DataError(f"input={value}: must be one file, but matches {len(files)} files")
    return files[0]


def check_output_file(value: str, source: Path) -> Path:
    """Return the path that the setting `output` names, after checking that it can be written.

    Raises:
        ConfigError: If the file cannot be written, or if it is the input file.
    """
    path = Path(value).expanduser()
    if path.suffix not in OUTPUT_ENDINGS:
        raise ConfigError(f"output={value}: must end in one of {', '.join(OUTPUT_ENDINGS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"output={value}: folder not found: {path.parent}")
    if path.is_dir():
        raise ConfigError(f"output={value}: is a folder")
    if path.exists() and path.samefile(source):
        raise ConfigError(f"output={value}: is the input file, which is never overwritten")
    return path


def resolve_input_columns(source: Path, configured: Sequence[str] | None, trained: Sequence[str]) -> list[str]:
    """Return the names of the columns that the model reads as text.

    Args:
        source: Table, or a `.txt` file without column names.
        configured: Columns that the configuration names. None selects the columns used in training if the file has
            them, and otherwise the columns with usual names.
        trained: Columns that the model was trained on, or an empty sequence if they are unknown.

    Raises:
        DataError: If the file cannot be read, or if no column has a usual name.
    """
    if configured is not None:
        return list(configured)
    if source.suffix == _LINES:
        return list(trained) or [USUAL_TEXTS[0]]
    _, first = next(_iterate_rows(source, []), (None, {}))
    if not first:
        return [USUAL_TEXTS[0]]
    if trained and set(trained) <= set(first):
        return list(trained)
    if columns := find_text_columns(list(first)):
        return columns
    raise DataError(
        f"input={source}: has the columns {', '.join(first)}; name the columns of the texts with dataset.text_columns"
    )


def check_input(pipeline: Pipeline, source: Path, columns: Sequence[str]) -> None:
    """Check, before predicting a table, that the model can read its first row.

    Raises:
        DataError: If the table has no rows, or if the model cannot read the first one.
        ConfigError: If `columns` does not name one or two columns.
    """
    if len(columns) not in (1, 2):
        raise ConfigError(f"dataset.text_columns={list(columns)}: must name one column, or two for pairs")
    if (first := next(_iterate_rows(source, columns), None)) is None:
        raise DataError(f"input={source}: the file has no rows")
    _read_text(pipeline, columns, *first)


def predict_table(pipeline: Pipeline, source: Path, columns: Sequence[str], path: Path) -> TablePredictionTotals:
    """Predict the rows of a file, and write the rows with their predictions to an output file.

    Args:
        pipeline: Pipeline of the model.
        source: Table that `check_input` accepts, or a `.txt` file with one text per line.
        columns: Columns that the model reads: one column, or two for pairs.
        path: Output file with one of `OUTPUT_ENDINGS`. It is written completely or not at all.

    Raises:
        DataError: If a row cannot be read. The message names the file, the row and the column.
    """
    rows = _iterate_rows(source, columns)
    total = TablePredictionTotals(0, 0.0, 0, PredictionCompute())
    with open_atomic(path) as file:
        write = _build_writer(path, file, _choose_delimiter(source))
        while batch := list(islice(rows, _ROWS_AT_ONCE)):
            texts = [_read_text(pipeline, columns, location, row) for location, row in batch]
            predictions, compute = pipeline.priced(texts)
            examples = zip(batch, texts, predictions, strict=True)
            for (location, row), text, prediction in examples:
                added = _build_columns(pipeline, text, prediction)
                added = added if path.suffix == _JSON_LINES else _flatten(added)
                if taken := next((name for name in added if name in row), None):
                    raise DataError(f"{location} has a column {taken}, which the output also has; rename it")
                write(location, {**row, **added})
            depths = [depth for prediction in predictions for depth in prediction.depths()]
            total = TablePredictionTotals(
                total.rows + len(batch),
                total.depths + sum(depths),
                total.units + len(depths),
                total.compute.plus(compute),
            )
    return total


# ---- input rows


def _iterate_rows(source: Path, columns: Sequence[str]) -> Iterator[tuple[RowLocation, _Row]]:
    """Yield the location of every row of a table or text file, and the row as a mapping from column names to values.

    Raises:
        DataError: If the file cannot be read, or if it lacks a column.
    """
    try:
        yield from _open_rows(source, columns)
    except OSError as error:
        raise DataError(f"input={source}: {get_first_line(error)}") from error


def _open_rows(source: Path, columns: Sequence[str]) -> Iterator[tuple[RowLocation, _Row]]:
    if source.suffix == _LINES:
        return _read_text_rows(source, columns)
    if source.suffix == _JSON_LINES:
        return read_json_rows("input", source)
    table = open_table(source, "input")
    for name in columns:
        _check_column(f"input={source}: the file", name, table.columns)
    return (
        (location, dict(zip(table.columns, values, strict=True)))
        for batch in table.read_batches()
        for location, *values in zip(*(batch[name] for name in (ROW_LOCATIONS, *table.columns)), strict=True)
    )


def _read_text_rows(source: Path, columns: Sequence[str]) -> Iterator[tuple[RowLocation, _Row]]:
    """Yield one row for every line of a text file, which holds one text, or two with a tab between them."""
    for number, line in enumerate(read_lines("input", source), start=1):
        location = RowLocation(f"input={source}", "line", number)
        texts = line.split(_PAIR) if len(columns) == 2 else [line]
        if len(texts) != len(columns):
            raise DataError(f"{location} has {len(texts)} tab-separated texts, must have 2")
        yield location, dict(zip(columns, texts, strict=True))


def _check_column(owner: object, name: str, columns: Sequence[str]) -> None:
    if name not in columns:
        hint, listed = nearest(name, columns), ", ".join(columns)
        raise DataError(f"{owner} lacks the column {name}{hint}; it has {listed}")


def _read_text(pipeline: Pipeline, columns: Sequence[str], location: RowLocation, row: _Row) -> Text:
    """Return the text or text pair in a table row. A missing value is read as an empty text, as in training."""
    parts = []
    for name in columns:
        _check_column(location, name, list(row))
        value = "" if row[name] is None else row[name]
        if pipeline.answers.tags_words:
            value = _WORD.findall(value) if isinstance(value, str) else value
            if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
                raise DataError(f"{location}, column {name}: must be a list of words, or a text")
            return value
        if not isinstance(value, str):
            raise DataError(f"{location}, column {name}: contains {type(value).__name__}, must be text")
        if pipeline.answers.solves_puzzles and (flaw := pipeline.find_puzzle_flaw(value)) is not None:
            raise DataError(f"{location}, column {name}: {value!r:.60}: {flaw}")
        parts.append(value)
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])


# ---- predictions as columns


def _build_columns(pipeline: Pipeline, text: Text, prediction: Prediction) -> _Row:
    """Return the columns that a prediction adds to its table row."""
    answers = pipeline.answers
    updates = {"updates": round(prediction.updates, _DIGITS)}
    if answers.classifies_texts and prediction.value is not None:
        return {"prediction": prediction.value, **updates}
    if answers.classifies_texts:
        scores = {name: round(score, _DIGITS) for name, score in (prediction.scores or {}).items()}
        labels = [name for name, score in scores.items() if score > _THRESHOLD]
        label = prediction.label if takes_one_class(pipeline.model.config) else labels
        return {"prediction": label, "probabilities": scores, **updates}
    if answers.tags_words:
        return _build_token_columns(prediction, len(text))
    if answers.only_depths:
        depths = [token.updates for token in prediction.tokens or []]
        return {**updates, "token_updates": [_round(depth) for depth in depths]}
    if answers.fills_masks:
        return _build_token_columns(prediction, None) | updates
    row = {"prediction": prediction.label, "probability": _round(prediction.score), **updates}
    if answers.continues_texts:
        scores_of_text = [token.own_score for token in prediction.tokens or [] if token.own_score is not None]
        row["log_probability"] = _round(sum(math.log(max(score, _SMALLEST)) for score in scores_of_text))
    return row


def _build_token_columns(prediction: Prediction, words: int | None) -> _Row:
    """Return columns with one list entry per word or mask. Truncated words get None."""
    tokens: list[Any] = [token for token in prediction.tokens or [] if token.label is not None]
    if words is not None:
        first = {token.part: token for token in reversed(tokens)}
        tokens = [first.get(number) for number in range(words)]
    fields = {"prediction": "label", "probability": "score", "updates": "updates"}
    return {
        name: [_round(None if token is None else getattr(token, field)) for token in tokens]
        for name, field in fields.items()
    }


def _round(value: Any) -> Any:
    return round(value, _DIGITS) if isinstance(value, float) else value


# ---- output rows


def _choose_delimiter(source: Path) -> str:
    """Return the delimiter of the output CSV file: that of an input CSV file, otherwise the default."""
    return detect_csv_delimiter(source, "input") if source.suffix == _CSV else DELIMITERS[_CSV]


def _build_writer(path: Path, file: TextIO, delimiter: str) -> Callable[[RowLocation, _Row], None]:
    """Return a function that writes one row of the input to the output file; a CSV file is split by `delimiter`."""
    if path.suffix == _JSON_LINES:
        return lambda _, row: print(json.dumps(row, ensure_ascii=False), file=file)
    names: list[str] = []

    def write(location: RowLocation, row: _Row) -> None:
        if not names:
            names.extend(row)
            file.write(_format_line([_format_cell(name, path) for name in names], path, delimiter))
        if extra := next((name for name in row if name not in names), None):
            raise DataError(
                f"output={path}: {location} has {extra}, which the first row lacks; an output that ends in "
                f"{_JSON_LINES} supports such rows"
            )
        file.write(_format_line([_format_cell(row.get(name), path) for name in names], path, delimiter))

    return write


def _format_line(cells: list[Any], path: Path, delimiter: str) -> str:
    """Format one table row as a CSV line with quotes where needed, or as a TSV line without quotes."""
    if path.suffix == _CSV:
        return format_csv([cells], delimiter)
    return "\t".join("" if cell is None else str(escape_csv_formula(cell)) for cell in cells) + "\n"


def _flatten(added: Mapping[str, Any]) -> _Row:
    """Replace the mapping of class probabilities in a row by one column per class. The column `updates` stays last."""
    row = {key: value for key, value in added.items() if key not in ("probabilities", "updates")}
    classes = {f"probability_{name}": score for name, score in added.get("probabilities", {}).items()}
    return {**row, **classes, "updates": added["updates"]}


def _format_cell(value: Any, path: Path) -> Any:
    """Format a table cell for a spreadsheet. Lists and mappings are written as JSON."""
    if isinstance(value, list | dict):
        value = json.dumps(value, ensure_ascii=False)
    if path.suffix != _CSV and isinstance(value, str):
        value = _BREAKS.sub(" ", value)  # TSV has no quotes
    return value
