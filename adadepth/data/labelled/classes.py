"""Classes of a table: their names, and which class each label of a column is."""

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

from adadepth.data.cache import CACHE_FORMAT, cached_folder, digest
from adadepth.data.text.data_table import ROW_PLACES, DataTable, RowPlace, Rows
from adadepth.errors import DataError, nearest

logger = logging.getLogger(__name__)

_SUSPICIOUS = {
    "-1": "-1 is taken for a class; data sets that mark rows without a label by it need these left out",
    "nan": "the text nan is taken for a class; rows without a label need these left out, or an empty cell",
}
_READING = 2  # raise it when labels are read otherwise
_LONGEST_LIST = 10  # classes that a message names
_CELL_SHOWN = 60  # characters of a cell in a message


@dataclass(frozen=True)
class ClassReader:
    """The class number of every label that a column may hold.

    Attributes:
        names: Names of the classes in order.
        numbers: Text of a label (`label_text`) to its class number.
        allowed: The labels that are allowed, for messages.
        strangers: Text of a label to the name that the data declare for it and the configuration does not have.
    """

    names: tuple[str, ...]
    numbers: Mapping[str, int]
    allowed: str
    strangers: Mapping[str, str]

    def __call__(self, value: Any) -> int:
        """Return the class number of a label.

        Raises:
            ValueError: It is none; the message says what is allowed.
        """
        text = label_text(value) or ""
        if text in self.numbers:
            return self.numbers[text]
        if text in self.strangers:
            raise ValueError(f"the data call it {self.strangers[text]!r}; allowed are {self.allowed}")
        raise ValueError(f"allowed are {self.allowed}{nearest(text, self.names)}")

    def read_several(self, values: list[Any]) -> np.ndarray:
        """Return 1 for the classes among the labels of a row and 0 for the others, (C,)."""
        marks = np.zeros(len(self.names))
        marks[[self(value) for value in values]] = 1.0
        return marks

    def key(self) -> list[Any]:
        """Return what identifies the reading in names of prepared data."""
        return [_READING, list(self.names), sorted(self.numbers.items())]


def class_names(
    labels: Sequence[str] | None, key: str, column: str, tables: Sequence[DataTable], root: Path
) -> tuple[str, ...]:
    """Return the classes in order: those configured, those the data declare, or all that some tables hold.

    Args:
        labels: The configured names of classes, if any.
        key: Setting that names the column, for messages.
        column: Where the labels are, one a row or a list of them.
        tables: The first one declares the classes, or all are searched.
        root: Cache folder.

    Raises:
        DataError: There are fewer than two, or one twice.
    """
    if labels:
        source, names = f"dataset.labels={list(labels)}", list(labels)
    elif declared := tables[0].class_names.get(column):
        source, names = f"dataset.{key}={column}: {tables[0].label} declares the classes", list(declared)
    else:
        names = _search_names(key, column, tables, root)
        source = f"dataset.{key}={column}: {tables[0].label} has the classes {', '.join(names) or 'none'}"
    if len(names) < 2 or len(set(map(label_text, names))) < len(names):
        raise DataError(f"{source}; at least two different ones are needed")
    return tuple(names)


def _search_names(key: str, column: str, tables: Sequence[DataTable], root: Path) -> list[str]:
    """Return the different labels of some tables in order, and warn of those that are suspicious."""
    names = _ordered(name for table in tables for name in _distinct(key, column, table, root))
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
    for pair in _lookalikes(names):
        logger.warning("dataset.%s=%s: the classes %r and %r differ by case or Unicode form only", key, column, *pair)
    return names


def _lookalikes(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return pairs of names that people take for one."""
    first: dict[str, str] = {}
    pairs = []
    for name in names:
        form = unicodedata.normalize("NFKC", name).casefold()
        if form in first:
            pairs.append((first[form], name))
        first.setdefault(form, name)
    return pairs


def _distinct(key: str, column: str, table: DataTable, root: Path) -> list[str]:
    """Return the different labels of a table in order; searched once and cached."""
    if column in table.class_names:
        return list(table.class_names[column])

    def build(folder: Path) -> None:
        values = (value for batch in table.batches() for value in batch[column])
        flat = (label for value in values for label in (value if isinstance(value, list) else [value]))
        try:
            ordered = _ordered(_unspaced_texts(flat, f"dataset.{key}={column}: {table.label}"))
        except DataError:  # of the file
            raise
        except ValueError as error:
            raise DataError(f"dataset.{key}={column}: {table.label}: {error}") from error
        (folder / "names.json").write_text(json.dumps(ordered), encoding="utf-8")

    name = f"classes-{digest(CACHE_FORMAT, _READING, table.fingerprint(), column)}"
    folder = cached_folder(root, name, build, sources=table.sources)
    names: list[str] = json.loads((folder / "names.json").read_text(encoding="utf-8"))
    return names


def _unspaced_texts(labels: Iterable[Any], subject: str) -> set[str]:
    """Return the different texts of labels; warn where white space around them was all that told some apart."""
    texts: dict[str, Any] = {}
    merged: set[str] = set()
    for label in labels:
        if (text := label_text(label)) is not None:
            first = texts.setdefault(text, label)
            if first != label and isinstance(first, str) and isinstance(label, str) and first.strip() == label.strip():
                merged.add(text)
    if merged:
        logger.warning(
            "%s: labels that differ by the white space around them are one class: %s", subject, _listed(sorted(merged))
        )
    return set(texts)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_LONGEST_LIST]) + (", ..." if len(names) > _LONGEST_LIST else "")


def _ordered(names: Iterable[str]) -> list[str]:
    """Return the different names, numbers in numerical order."""
    different = set(names)
    are_numbers = all(map(is_numeric, different))
    return sorted(different, key=(lambda name: (float(name), name)) if are_numbers else None)


def label_text(value: Any) -> str | None:
    """Return the text of a label: 3.0, "3.0" and True are ``3``, ``3`` and ``1``; None where there is none.

    Raises:
        ValueError: It is bytes, which could be text in any encoding.
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


def class_readers(
    names: tuple[str, ...],
    key: str,
    column: str,
    tables: Mapping[str, DataTable],
    root: Path,
    *,
    has_order: bool,
) -> dict[str, ClassReader]:
    """Return how the labels of every split are read.

    Where a table declares its classes, a stored integer is the index into the declared names. Elsewhere a label is the
    name of a class. Only where no label of any of these tables is a name, whole numbers are places in ``names``.

    Args:
        names: The classes in order.
        key: Setting that names the column, for messages.
        column: Where the labels are, one a row or a list of them.
        tables: Split to its table.
        root: Cache folder.
        has_order: Whether somebody chose the order of the names, which a search of the labels does not.
    """
    free = {split: table for split, table in tables.items() if column not in table.class_names}
    subject = f"dataset.{key}={column}"
    readers = {
        split: _declared_reader(names, list(table.class_names[column]), f"{subject}: {table.label}")
        for split, table in tables.items()
        if split not in free
    }
    if free:
        present = {text for table in free.values() for text in _distinct(key, column, table, root)}
        reader = _free_reader(names, present, subject, has_order=has_order)
        readers |= dict.fromkeys(free, reader)
    return readers


def _numbers_of(names: Sequence[str]) -> dict[str, int]:
    return {str(label_text(name)): number for number, name in enumerate(names)}


def _declared_reader(names: tuple[str, ...], declared: list[str], subject: str) -> ClassReader:
    """Return the reader of stored indices into declared names, which are matched by name where any of them is known."""
    numbers = _numbers_of(names)
    places = {str(index): numbers.get(str(label_text(name))) for index, name in enumerate(declared)}
    if all(place is None for place in places.values()) and len(declared) == len(names):
        logger.info("%s declares %s, which are called %s, in this order", subject, _listed(declared), _listed(names))
        places = {str(index): index for index in range(len(names))}
    known = {text: place for text, place in places.items() if place is not None}
    strangers = {str(index): name for index, name in enumerate(declared) if str(index) not in known}
    return ClassReader(names, known, _listed(names), strangers)


def _free_reader(names: tuple[str, ...], present: set[str], subject: str, *, has_order: bool) -> ClassReader:
    """Return the reader of labels that are names or, where none of them is, places in the list of names."""
    numbers, allowed = _numbers_of(names), _listed(names)
    whole = {text for text in present if re.fullmatch(r"-?[0-9]+", text)}
    if (
        not has_order
        or whole < present
        or not whole
        or present & numbers.keys()
        or numbers.keys() <= _places(names).keys()
    ):
        mixed = whole - numbers.keys() and present & numbers.keys() - whole
        allowed += "; numbers are places in this list only where no label of the column is a name" if mixed else ""
        return ClassReader(names, numbers, allowed, {})
    logger.info(
        "%s: no label is the name of a class, so that whole numbers are places in the list: %s",
        subject,
        _listed([f"{text} is {names[number]}" for text, number in _places(names).items()]),
    )
    return ClassReader(names, _places(names) | numbers, f"0 to {len(names) - 1} or {allowed}", {})


def _places(names: tuple[str, ...]) -> dict[str, int]:
    """Return what whole numbers mean that are places in a list of names; 1 is always true, and 0 false."""
    truths = {name.casefold(): number for number, name in enumerate(names)}
    if truths.keys() == {"false", "true"}:
        return {"0": truths["false"], "1": truths["true"]}
    return {str(number): number for number in range(len(names))}


def read_value(value: Any) -> float:
    """Return the value of a regression.

    Raises:
        ValueError: It is not a finite number.
    """
    name = label_text(value)
    if name is None or not is_numeric(name):
        raise ValueError("a finite number is needed")
    return float(name)


# --- several labels a text


def with_lists(table: DataTable, column: str, separator: str) -> DataTable:
    """Return a table whose column holds lists of labels.

    A text is read as a list of Python or JSON if it is in brackets, and else cut at a separator; what is missing is an
    empty list. While it is read, a DataError names the row whose brackets hold no list.
    """

    def batches() -> Iterator[Rows]:
        for batch in table.read_batches():
            cells = zip(batch[column], batch[ROW_PLACES], strict=True)
            yield {**batch, column: [_read_list(value, column, separator, place) for value, place in cells]}

    return replace(table, batches=batches, fingerprint=lambda: [*table.fingerprint(), column, separator, "lists"])


def _read_list(value: Any, column: str, separator: str, place: RowPlace) -> list[Any]:
    if isinstance(value, list):
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return []
    text = str(value).strip()
    if text[:1] + text[-1:] in ("[]", "()", "{}") and (labels := parse_list(text)) is not None:
        return labels
    if text.startswith("[") and text.endswith("]"):
        raise DataError(
            f"dataset.label_column={column}: {place} has the labels {text[:_CELL_SHOWN]!r}, which is no list; "
            f"write ['a', 'b'], or the names with {separator!r} between them and no brackets"
        )
    return [part for label in text.split(separator) if (part := label.strip())]


def parse_list(text: str) -> list[Any] | None:
    """Return the texts and numbers of a list as JSON or Python writes it; None: it is none, or holds something else.

    Texts without a comma between them, as numpy prints arrays, are no list: Python would join them to one text.
    """
    try:
        labels = json.loads(text)
    except ValueError:
        labels = None if _joins_texts(text) else _literal(text)
    is_list = isinstance(labels, list | tuple | set)
    return list(labels) if is_list and all(isinstance(label, str | int | float) for label in labels) else None


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _joins_texts(text: str) -> bool:
    """Whether a text has two quoted texts of Python side by side."""
    try:
        kinds = [token.type for token in tokenize.generate_tokens(io.StringIO(text).readline)]
    except (tokenize.TokenError, SyntaxError):
        return False
    kinds = [kind for kind in kinds if kind not in (tokenize.NL, tokenize.NEWLINE)]
    return any(pair == (tokenize.STRING, tokenize.STRING) for pair in pairwise(kinds))
