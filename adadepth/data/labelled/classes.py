"""Class names of a table, and the conversion of the labels in a column to class numbers."""

from __future__ import annotations

import ast
import io
import json
import logging
import math
import re
import tokenize
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from adadepth.config.class_names import number_classes
from adadepth.data.cache import CACHE_FORMAT, digest, ensure_folder
from adadepth.data.text.table import ROW_LOCATIONS, DataTable, RowLocation, Rows
from adadepth.errors import DataError, nearest

logger = logging.getLogger(__name__)

_SUSPICIOUS = {
    "-1": "-1 is read as a class; if it marks rows without a label, remove these rows",
    "nan": "the text nan is read as a class; if it marks rows without a label, remove these rows or leave the cell "
    "empty",
}
_READING = 2  # raise it when the reading of labels changes
_LONGEST_LIST = 10  # classes that a message names
_CELL_SHOWN = 60  # characters of a cell in a message


@dataclass(frozen=True)
class ClassReader:
    """Reader that converts the labels of a column to class numbers.

    Attributes:
        names: Names of the classes of the data, in order.
        classes: Names of the classes in the order of their numbers, which may be that of a model.
        numbers: Mapping from the text of a label (see `format_label`) to its class number.
        allowed: List of the allowed labels, for messages.
        strangers: Mapping from the text of a label to its name in the data, for labels that the configuration does not
            name.
        key: JSON values that identify this conversion, for the names of cache folders.
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    numbers: Mapping[str, int]
    allowed: str
    strangers: Mapping[str, str]
    key: Sequence[Any]

    @classmethod
    def from_names(
        cls, names: tuple[str, ...], numbers: Mapping[str, int], allowed: str, strangers: Mapping[str, str]
    ) -> ClassReader:
        """Build the reader that numbers the classes in the order of the data."""
        return cls(names, names, numbers, allowed, strangers, [[_READING, list(names), sorted(numbers.items())]])

    def __call__(self, value: Any) -> int:
        """Return the class number of a label.

        Raises:
            ValueError: If the label has no class. The message lists the allowed labels.
        """
        text = format_label(value) or ""
        if text in self.numbers:
            return self.numbers[text]
        if text in self.strangers:
            raise ValueError(f"the data contain {self.strangers[text]!r}; allowed are {self.allowed}")
        raise ValueError(f"allowed are {self.allowed}{nearest(text, self.names)}")

    def read_several(self, values: list[Any]) -> np.ndarray:
        """Return a 0/1 vector over classes, (C,), with 1 for each class among the labels of a row."""
        marks = np.zeros(len(self.classes))
        marks[[self(value) for value in values]] = 1.0
        return marks

    def renumber(self, classes: Sequence[str] | None, source: str) -> ClassReader:
        """Return a reader with the class numbers of a model, whose classes are matched to those of the data by name.

        Args:
            classes: Classes of the model, or None for the order of the data.
            source: Setting and value that name the data's classes, for messages.

        Raises:
            DataError: If the model lacks a class of the data.
        """
        ordered = list(self.names if classes is None else classes)
        positions = number_classes(self.names, ordered, source)
        for name, position in zip(self.names, positions, strict=True):
            ordered[position] = name  # as the data spell it
        numbers = {text: positions[number] for text, number in self.numbers.items()}
        order = [list(self.names)] if self.names == tuple(ordered) else [list(self.names), ordered]
        return replace(self, classes=tuple(ordered), numbers=numbers, key=[*self.key, *order])


def read_classes(
    labels: Sequence[str] | None,
    key: str,
    column: str,
    tables: Mapping[str, DataTable],
    searched: Sequence[DataTable],
    root: Path,
    model_classes: Sequence[str] | None,
) -> tuple[dict[str, ClassReader], tuple[str, ...]]:
    """Return the reader of the labels of every split, and the names of the classes in the order of their numbers.

    Args:
        labels: Configured names of the classes, if any.
        key: Setting that names the column, for messages.
        column: Column with one label per row or a list of labels per row.
        tables: Mapping from splits to their tables.
        searched: Tables in which the classes are searched if they are not configured; see `choose_class_names`.
        root: Cache folder.
        model_classes: Classes of a model, whose numbers the labels get, or None for the order of the data.

    Raises:
        DataError: If there are fewer than two classes, if a class occurs twice, or if the model lacks one.
    """
    names = choose_class_names(labels, key, column, searched, root)
    has_order = bool(labels) or column in searched[0].class_names
    readers = build_class_readers(names, key, column, tables, root, has_order=has_order)
    numbered = {split: reader.renumber(model_classes, f"dataset.{key}={column}") for split, reader in readers.items()}
    return numbered, next(iter(numbered.values())).classes


def choose_class_names(
    labels: Sequence[str] | None, key: str, column: str, tables: Sequence[DataTable], root: Path
) -> tuple[str, ...]:
    """Return the class names in order: those configured, those that the data set declares, or all labels in the tables.

    Args:
        labels: Configured names of the classes, if any.
        key: Setting that names the column, for messages.
        column: Column with one label per row or a list of labels per row.
        tables: Tables. If the first one declares the classes, the others are not searched.
        root: Cache folder.

    Raises:
        DataError: If there are fewer than two classes, or if a class occurs twice.
    """
    if labels:
        source, names = f"dataset.labels={list(labels)}", list(labels)
    elif declared := tables[0].class_names.get(column):
        source, names = f"dataset.{key}={column}: {tables[0].label} declares the classes", list(declared)
    else:
        names = _search_names(key, column, tables, root)
        source = f"dataset.{key}={column}: {tables[0].label} has the classes {', '.join(names) or 'none'}"
    if len(names) < 2 or len(set(map(format_label, names))) < len(names):
        raise DataError(f"{source}; at least two different classes are needed")
    return tuple(names)


def _search_names(key: str, column: str, tables: Sequence[DataTable], root: Path) -> list[str]:
    """Return the distinct labels of tables in order, and warn of suspicious ones, such as two spellings of one name."""
    names = _sort_names(name for table in tables for name in _find_labels(key, column, table, root))
    if values := [name for name in names if is_numeric(name) and "." in name]:
        instead = (
            "use dataset.problem=regression 'dataset.metrics=[pearson,mse]'"
            if key == "label_column"
            else "tags are the last column of .conll files"
        )
        raise DataError(
            f"dataset.{key}={column}: {tables[0].label} holds values such as {values[0]}, not classes; {instead}"
        )
    for name, message in _SUSPICIOUS.items():
        if name in names and (name != "-1" or {"0", "1"} <= set(names)):
            logger.warning("dataset.%s=%s: %s", key, column, message)
    for pair in _find_lookalikes(names):
        logger.warning("dataset.%s=%s: the classes %r and %r differ only by case or Unicode form", key, column, *pair)
    return names


def _find_lookalikes(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return pairs of class names that differ only in case or in Unicode form."""
    first: dict[str, str] = {}
    pairs = []
    for name in names:
        form = unicodedata.normalize("NFKC", name).casefold()
        if form in first:
            pairs.append((first[form], name))
        first.setdefault(form, name)
    return pairs


def _find_labels(key: str, column: str, table: DataTable, root: Path) -> list[str]:
    """Return the distinct labels of a table in order, from the cache if they are stored in it."""
    if column in table.class_names:
        return list(table.class_names[column])

    def build(folder: Path) -> None:
        values = (value for batch in table.batches() for value in batch[column])
        flat = (label for value in values for label in (value if isinstance(value, list) else [value]))
        try:
            ordered = _sort_names(_collect_texts(flat, f"dataset.{key}={column}: {table.label}"))
        except DataError:  # of the file
            raise
        except ValueError as error:
            raise DataError(f"dataset.{key}={column}: {table.label}: {error}") from error
        (folder / "names.json").write_text(json.dumps(ordered), encoding="utf-8")

    name = f"classes-{digest(CACHE_FORMAT, _READING, table.fingerprint(), column)}"
    folder = ensure_folder(root, name, build, sources=table.sources)
    names: list[str] = json.loads((folder / "names.json").read_text(encoding="utf-8"))
    return names


def _collect_texts(labels: Iterable[Any], subject: str) -> set[str]:
    """Return the distinct texts of labels, and warn if some differ only in surrounding white space."""
    texts: dict[str, Any] = {}
    merged: set[str] = set()
    for label in labels:
        if (text := format_label(label)) is not None:
            first = texts.setdefault(text, label)
            if first != label and isinstance(first, str) and isinstance(label, str) and first.strip() == label.strip():
                merged.add(text)
    if merged:
        logger.warning(
            "%s: labels that differ only in surrounding white space are merged: %s",
            subject,
            _join_names(sorted(merged)),
        )
    return set(texts)


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names[:_LONGEST_LIST]) + (", ..." if len(names) > _LONGEST_LIST else "")


def _sort_names(names: Iterable[str]) -> list[str]:
    """Return the distinct class names in alphabetical order, or in numerical order if they are numbers."""
    different = set(names)
    are_numbers = all(map(is_numeric, different))
    return sorted(different, key=(lambda name: (float(name), name)) if are_numbers else None)


def format_label(value: Any) -> str | None:
    """Return the text of a label, or None for a missing label.

    For example, 3.0, "3.0" and True become ``3``, ``3`` and ``1``.

    Raises:
        ValueError: If the label is bytes, because their encoding is unknown.
    """
    if isinstance(value, bytes):
        raise ValueError(f"a name or a number is needed, not bytes such as {value!r}")
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    text = str(int(value) if isinstance(value, bool) else value).strip()
    return re.sub(r"^(-?\d+)\.0+$", r"\1", text) or None


def is_numeric(name: str) -> bool:
    """Return whether a text is a finite number."""
    try:
        return math.isfinite(float(name))
    except ValueError:
        return False


# --- from labels to numbers


def build_class_readers(
    names: tuple[str, ...],
    key: str,
    column: str,
    tables: Mapping[str, DataTable],
    root: Path,
    *,
    has_order: bool,
) -> dict[str, ClassReader]:
    """Return for every split the reader that converts its labels to class numbers.

    If a table declares its classes, a stored integer is an index into the declared names. In other tables a label is
    the name of a class. Whole numbers are read as positions in ``names`` only if no label of any of these tables is a
    name.

    Args:
        names: Classes in order.
        key: Setting that names the column, for messages.
        column: Column with one label per row or a list of labels per row.
        tables: Mapping from splits to their tables.
        root: Cache folder.
        has_order: Whether the order of the names was configured or declared, and does not come from a search.
    """
    free = {split: table for split, table in tables.items() if column not in table.class_names}
    subject = f"dataset.{key}={column}"
    readers = {
        split: _build_declared_reader(names, list(table.class_names[column]), f"{subject}: {table.label}")
        for split, table in tables.items()
        if split not in free
    }
    if free:
        present = {text for table in free.values() for text in _find_labels(key, column, table, root)}
        reader = _build_name_reader(names, present, subject, has_order=has_order)
        readers |= dict.fromkeys(free, reader)
    return readers


def _number_names(names: Sequence[str]) -> dict[str, int]:
    return {str(format_label(name)): number for number, name in enumerate(names)}


def _build_declared_reader(names: tuple[str, ...], declared: list[str], subject: str) -> ClassReader:
    """Return the reader for integer labels that index the class names declared by the data set.

    Declared names are matched to the classes if at least one of them is a class.
    """
    numbers = _number_names(names)
    class_numbers = {str(index): numbers.get(str(format_label(name))) for index, name in enumerate(declared)}
    if all(class_number is None for class_number in class_numbers.values()) and len(declared) == len(names):
        logger.info("%s declares %s, renamed to %s, in this order", subject, _join_names(declared), _join_names(names))
        class_numbers = {str(index): index for index in range(len(names))}
    matches = {text: class_number for text, class_number in class_numbers.items() if class_number is not None}
    strangers = {str(index): name for index, name in enumerate(declared) if str(index) not in matches}
    return ClassReader.from_names(names, matches, _join_names(names), strangers)


def _build_name_reader(names: tuple[str, ...], present: set[str], subject: str, *, has_order: bool) -> ClassReader:
    """Return the reader for labels that are class names or, if no label is one, indices into the class names."""
    numbers, allowed = _number_names(names), _join_names(names)
    whole = {text for text in present if re.fullmatch(r"-?[0-9]+", text)}
    if (
        not has_order
        or whole < present
        or not whole
        or present & numbers.keys()
        or numbers.keys() <= _number_positions(names).keys()
    ):
        mixed = whole - numbers.keys() and present & numbers.keys() - whole
        allowed += "; numbers are indices in this list only if no label of the column is a name" if mixed else ""
        return ClassReader.from_names(names, numbers, allowed, {})
    logger.info(
        "%s: no label is the name of a class, so integers are indices in the list: %s",
        subject,
        _join_names([f"{text} is {names[number]}" for text, number in _number_positions(names).items()]),
    )
    return ClassReader.from_names(names, _number_positions(names) | numbers, f"0 to {len(names) - 1} or {allowed}", {})


def _number_positions(names: tuple[str, ...]) -> dict[str, int]:
    """Return the class number of each integer label that is a valid index into the list of class names.

    1 stands for true, and 0 for false.
    """
    truths = {name.casefold(): number for number, name in enumerate(names)}
    if truths.keys() == {"false", "true"}:
        return {"0": truths["false"], "1": truths["true"]}
    return {str(number): number for number in range(len(names))}


def read_value(value: Any) -> float:
    """Convert a regression label to a float.

    Raises:
        ValueError: If the label is not a finite number.
    """
    name = format_label(value)
    if name is None or not is_numeric(name):
        raise ValueError("a finite number is needed")
    return float(name)


# --- several labels a text


def with_lists(table: DataTable, column: str, separator: str) -> DataTable:
    """Return a copy of a table in which the cells of one column are parsed into lists of labels.

    A text in brackets is parsed as a Python or JSON list. Any other text is split at the separator. A missing cell is
    read as an empty list. While the table is read, a DataError names any row with brackets that do not contain a valid
    list.
    """

    def batches() -> Iterator[Rows]:
        for batch in table.read_batches():
            cells = zip(batch[column], batch[ROW_LOCATIONS], strict=True)
            yield {**batch, column: [_read_list(value, column, separator, location) for value, location in cells]}

    return replace(table, batches=batches, fingerprint=lambda: [*table.fingerprint(), column, separator, "lists"])


def _read_list(value: Any, column: str, separator: str, location: RowLocation) -> list[Any]:
    if isinstance(value, list):
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return []
    text = str(value).strip()
    if text[:1] + text[-1:] in ("[]", "()", "{}") and (labels := parse_list(text)) is not None:
        return labels
    if text.startswith("[") and text.endswith("]"):
        raise DataError(
            f"dataset.label_column={column}: {location} has the labels {text[:_CELL_SHOWN]!r}, which is not a "
            f"list; write ['a', 'b'], or the names separated by {separator!r} without brackets"
        )
    return [part for label in text.split(separator) if (part := label.strip())]


def parse_list(text: str) -> list[Any] | None:
    """Parse a list in JSON or Python notation into its texts and numbers, or return None for any other text.

    Quoted texts without commas between them, as numpy prints arrays, are not a list, because Python would join them
    into one text.
    """
    try:
        labels = json.loads(text)
    except ValueError:
        labels = None if _has_adjacent_texts(text) else _parse_literal(text)
    is_list = isinstance(labels, list | tuple | set)
    return list(labels) if is_list and all(isinstance(label, str | int | float) for label in labels) else None


def _parse_literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _has_adjacent_texts(text: str) -> bool:
    """Return whether a text contains two adjacent Python string literals."""
    try:
        kinds = [token.type for token in tokenize.generate_tokens(io.StringIO(text).readline)]
    except (tokenize.TokenError, SyntaxError):
        return False
    kinds = [kind for kind in kinds if kind not in (tokenize.NL, tokenize.NEWLINE)]
    return any(pair == (tokenize.STRING, tokenize.STRING) for pair in pairwise(kinds))
