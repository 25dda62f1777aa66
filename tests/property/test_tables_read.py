"""Tables read exactly as by independent readers of the same file, or refused with the file and the line."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from datasets import ClassLabel, Features, Sequence, Value
from hypothesis import assume, given
from hypothesis import strategies as st
from pyarrow import parquet

from adadepth.data.labelled.classes import build_class_readers, choose_class_names, parse_list, with_lists
from adadepth.data.labelled.splits import open_table
from adadepth.data.text.table import DataTable, build_table
from adadepth.errors import DataError

SPACES = "\u00a0\u1680\u2000\u2003\u2009\u200b\u2028\u2029\u202f\u205f\u3000\ufeff\x85\x0b\x0c\x1c\x1d\x1e\x1f"
MARKS = " ,;\t\"'\\|[]{}()=:#-+0123456789.eEnaN\r\n"
TEXTS = st.text(st.one_of(st.sampled_from(SPACES + MARKS), st.characters(exclude_categories=["Cs"])), max_size=12)
LONG = st.integers(131_000, 140_000).map(lambda length: "long cell, " * (length // 11))
NAMES = st.sampled_from(
    ["0", "1", "2", "3", "10", "-1", "n/a", "nan", "NaN", "None", "null", "true", "False", "a", "A", "a b", "b ", "1.0",
     "2.50", "01", "1e3", "é", "e\u0301", "x,y", "'q'", "[1]", "\u0661"]
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


def read(table: DataTable) -> dict[str, list[Any]]:
    """Return the columns of a table."""
    columns: dict[str, list[Any]] = {name: [] for name in table.columns}
    for batch in table.batches():
        for name in table.columns:
            columns[name] += batch[name]
    return columns


def read_or_refuse(file: Path) -> dict[str, list[Any]] | None:
    """Return the columns of a file; None: it is refused in one line that names the file and a line or a byte."""
    try:
        return read(open_table(file))
    except DataError as error:
        message = str(error)
    assert re.match(rf"dataset\.path={re.escape(str(file))}[:,] .*(line|row|byte|column) ", message)
    assert len(message.splitlines()) == 1
    return None


# --- CSV and TSV


def quote_cell(cell: str, delimiter: str, *, always: bool) -> str:
    needs = always or cell.startswith('"') or any(mark in cell for mark in (delimiter, "\r", "\n"))
    return '"' + cell.replace('"', '""') + '"' if needs else cell


@st.composite
def draw_csv(draw: st.DrawFn) -> tuple[list[list[str]], str, str]:
    """Draw rows, the text of a CSV that holds them, and its delimiter."""
    rows = draw(st.lists(st.tuples(TEXTS, TEXTS, NAMES).map(list), min_size=1, max_size=6))
    if draw(st.integers(0, 20)) == 0:
        rows[0][0] = draw(LONG)
    delimiter, end = draw(st.sampled_from(",;\t")), draw(st.sampled_from(["\n", "\r\n", "\r"]))
    always = draw(st.booleans())
    lines = [delimiter.join(quote_cell(cell, delimiter, always=always) for cell in row) for row in rows]
    header = delimiter.join(["text", "other", "label"])
    text = draw(st.sampled_from(["", "\ufeff"])) + end.join([header, *lines]) + draw(st.sampled_from(["", end]))
    return rows, text, delimiter


def read_with_pandas(file: Path, delimiter: str) -> dict[str, list[Any]]:
    table = pd.read_csv(file, sep=delimiter, dtype=str, keep_default_na=False, encoding="utf-8-sig", index_col=False)
    return {str(name): list(column) for name, column in table.items()}


@given(draw_csv())
def test_csv_is_read_as_written(folder: Path, csv: tuple[list[list[str]], str, str]) -> None:
    rows, text, delimiter = csv
    file = folder / "a.csv"
    file.write_bytes(text.encode())
    expected = dict(zip(["text", "other", "label"], map(list, zip(*rows, strict=True)), strict=True))
    assert read(open_table(file)) == expected
    if "\0" not in text:  # pandas reads it as the end of a line
        assert read_with_pandas(file, delimiter) == expected


@given(draw_csv(), st.integers(0, 10**6), st.sampled_from(['"', '""', ",", "\n", "\r", '"\n', ""]))
def test_a_damaged_csv_is_refused_or_read_as_pandas_reads_it(
    folder: Path, csv: tuple[list[list[str]], str, str], index: int, inserted: str
) -> None:
    """Insert characters, or delete one."""
    _, text, delimiter = csv
    start = text.index("label") + len("label")
    assume("\0" not in text)
    index = start + index % (len(text) - start + 1)
    file = folder / "damaged.csv"
    file.write_bytes((text[:index] + inserted + text[index + (not inserted) :]).encode())
    if (columns := read_or_refuse(file)) is not None:
        assert columns == read_with_pandas(file, delimiter)


@given(st.lists(st.tuples(TEXTS, NAMES), min_size=1, max_size=6), st.sampled_from(["\n", "\r\n", "\r"]), st.booleans())
def test_tsv_is_read_as_pandas_reads_it(folder: Path, rows: list[tuple[str, str]], end: str, has_mark: bool) -> None:
    cells = [[re.sub("[\t\r\n\0]", " ", cell) for cell in row] for row in rows]
    file = folder / "a.tsv"
    lines = ["\t".join(row) for row in [["text", "label"], *cells]]
    file.write_bytes(("\ufeff" * has_mark + end.join(lines) + end).encode())
    expected = dict(zip(["text", "label"], map(list, zip(*cells, strict=True)), strict=True))
    assert read(open_table(file)) == expected
    table = pd.read_csv(file, sep="\t", dtype=str, keep_default_na=False, quoting=3, encoding="utf-8-sig")
    assert table.to_dict(orient="list") == expected


# --- JSON

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS, NAMES,
        st.dates().map(str), st.datetimes().map(str),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=2)),
    max_leaves=5,
)  # fmt: skip
ROWS = st.lists(
    st.fixed_dictionaries({"text": TEXTS, "label": VALUES}, optional={"date": VALUES}), min_size=1, max_size=5
)


@given(ROWS, st.sampled_from(["\n", "\r\n", "\r", "\n\n"]), st.booleans(), st.booleans(), st.booleans())
def test_json_is_read_as_written(
    folder: Path, rows: list[dict[str, Any]], end: str, is_ascii: bool, has_mark: bool, one: bool
) -> None:
    lines = [json.dumps(row, ensure_ascii=is_ascii) for row in rows]
    text = json.dumps(rows, ensure_ascii=is_ascii, indent=1) if one else end.join(lines) + end
    file = folder / ("a.json" if one else "a.jsonl")
    file.write_bytes(("\ufeff" * has_mark + text).encode())
    columns = read(open_table(file))
    assert columns == {name: [row.get(name) for row in rows] for name in columns}
    assert set(columns) == {name for row in rows for name in row}


@given(ROWS, st.integers(0, 10**6), st.sampled_from(['"', "{", "\\", ",", "\n", "0", ""]))
def test_a_damaged_json_is_refused_or_read_as_json(
    folder: Path, rows: list[dict[str, Any]], index: int, inserted: str
) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    index %= len(text)
    text = text[:index] + inserted + text[index + (not inserted) :]
    file = folder / "damaged.jsonl"
    file.write_bytes(text.encode())
    if (columns := read_or_refuse(file)) is not None:
        parsed = [json.loads(line) for line in text.split("\n") if line.strip()]
        if text.lstrip().startswith("["):
            (parsed,) = parsed
        assert columns == {name: [row.get(name) for row in parsed] for name in columns}


# --- parquet and Arrow

TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.string(), TEXTS), (pa.large_string(), TEXTS), (pa.dictionary(pa.int8(), pa.string()), TEXTS),
    (pa.int8(), st.integers(-128, 127)), (pa.uint8(), st.integers(0, 255)), (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float64(), st.floats(allow_nan=False)), (pa.bool_(), st.booleans()),
    (pa.list_(pa.string()), st.lists(TEXTS, max_size=3)),
    (pa.list_(pa.list_(pa.int64())), st.lists(st.lists(st.integers(-9, 9)), max_size=2)),
    (pa.struct([("text", pa.list_(pa.string()))]), st.fixed_dictionaries({"text": st.lists(TEXTS, max_size=2)})),
    (pa.date32(), st.dates()), (pa.dictionary(pa.int32(), pa.int64()), st.integers(0, 5)),
]  # fmt: skip


VISIBLE = st.one_of(NAMES, TEXTS.filter(str.strip))


@st.composite
def draw_tables(draw: st.DrawFn) -> pa.Table:
    count = draw(st.integers(1, 6))
    columns = {}
    for name in ("text", "label"):
        kind, values = draw(st.sampled_from(TYPES))
        cells = draw(st.lists(st.one_of(st.none(), values), min_size=count, max_size=count))
        value_type = kind.value_type if pa.types.is_dictionary(kind) else kind
        column = pa.array(cells, value_type)
        columns[name] = column.dictionary_encode() if pa.types.is_dictionary(kind) else column
    return pa.table(columns)


def write_columns(table: pa.Table, file: Path) -> None:
    if file.suffix == ".parquet":
        parquet.write_table(table, file, row_group_size=2)
    else:
        make = pa.ipc.new_stream if "stream" in file.name else pa.ipc.new_file
        with make(str(file), table.schema) as writer:
            for batch in table.to_batches(max_chunksize=2):
                writer.write_batch(batch)


@given(draw_tables(), st.sampled_from(["a.parquet", "stream.arrow", "file.arrow"]))
def test_binary_columns_are_read_as_written(folder: Path, table: pa.Table, name: str) -> None:
    write_columns(table, folder / name)
    expected = parquet.read_table(folder / name).to_pydict() if name.endswith("parquet") else table.to_pydict()
    assert read(open_table(folder / name)) == expected == table.to_pydict()


@given(
    st.lists(VISIBLE, min_size=2, max_size=6, unique_by=lambda name: format_label(name)),
    st.data(),
    st.sampled_from(["a.parquet", "stream.arrow"]),
    st.booleans(),
)  # fmt: skip
def test_declared_classes_keep_their_numbers(
    folder: Path, names: list[str], data: st.DataObject, file: str, has_lists: bool
) -> None:
    """Check that a stored number is the index into the names, as in `int2str`, in any configured order."""
    feature = ClassLabel(names=names)
    numbers = data.draw(st.lists(st.integers(0, len(names) - 1), min_size=1, max_size=5))
    cells = [[number] for number in numbers] if has_lists else numbers
    features = Features(text=Value("string"), label=Sequence(feature) if has_lists else feature)
    table = pa.table({"text": ["some"] * len(numbers), "label": cells}, schema=features.arrow_schema)
    write_columns(table, folder / file)
    opened = open_table(folder / file)
    labels = data.draw(st.one_of(st.none(), st.permutations(names)))
    ordered = choose_class_names(labels, "label_column", "label", [opened], folder)
    assert list(ordered) == (labels or names)
    reader = build_class_readers(ordered, "label_column", "label", {"train": opened}, folder, has_order=True)["train"]
    stored = [number for cell in read(opened)["label"] for number in (cell if has_lists else [cell])]
    assert [ordered[reader(number)] for number in stored] == [feature.int2str(number) for number in numbers]


# --- undeclared classes


def format_label(label: Any) -> str:
    """Return the name of a class: its text without white space around it, whole numbers without a point."""
    text = str(int(label) if isinstance(label, bool) else label).strip()
    whole, point, rest = text.partition(".")
    is_whole = whole.lstrip("-").isdecimal() and whole[:1] in "-0123456789" and point and rest and not rest.strip("0")
    return whole if is_whole and whole.count("-") <= 1 else text


LABELS = st.one_of(NAMES, st.integers(-2, 12), st.booleans(), st.sampled_from([0.0, 1.0, 2.0, 10.0]))


@given(st.lists(LABELS, min_size=2, max_size=8))
def test_a_class_is_named_by_its_text(folder: Path, labels: list[Any]) -> None:
    texts = [format_label(label) for label in labels]
    table = build_table("dataset.path=here", [{"text": "some", "label": label} for label in labels])
    if len(set(texts)) < 2 or any(re.fullmatch(r"[0-9]+\.[0-9]+", text) for text in texts):
        with pytest.raises(
            DataError, match=r"at least two different classes are needed|holds values such as 2\.50, not classes"
        ):
            choose_class_names(None, "label_column", "label", [table], folder)
        return
    names = choose_class_names(None, "label_column", "label", [table], folder)
    assert sorted(names) == sorted(set(texts))
    reader = build_class_readers(names, "label_column", "label", {"train": table}, folder, has_order=False)["train"]
    assert [names[reader(label)] for label in labels] == texts


@given(st.lists(LABELS, min_size=1, max_size=6), st.lists(NAMES, min_size=2, max_size=5, unique_by=format_label))
def test_a_label_matches_a_configured_name_or_index(folder: Path, labels: list[Any], names: list[str]) -> None:
    """Check that a label is the class of its name, or of its index if all labels are indices and none is a name."""
    by_text = {format_label(name): name for name in names}
    texts = [format_label(label) for label in labels]
    table = build_table("dataset.path=here", [{"text": "some", "label": label} for label in labels])
    ordered = choose_class_names(names, "label_column", "label", [table], folder)
    reader = build_class_readers(ordered, "label_column", "label", {"train": table}, folder, has_order=True)["train"]
    is_named = any(text in by_text for text in texts)
    are_whole = all(re.fullmatch("-?[0-9]+", text) for text in texts)
    is_truth = {name.casefold() for name in names} == {"true", "false"}
    for label, text in zip(labels, texts, strict=True):
        try:
            class_name = ordered[reader(label)]
        except ValueError:
            is_place = are_whole and text in map(str, range(len(names)))
            assert text not in by_text
            assert is_named or not is_place or set(by_text) <= set(map(str, range(len(names))))
            continue
        if is_named or not are_whole:
            assert class_name == by_text[text]
        elif is_truth:
            assert class_name.casefold() == ("true" if text == "1" else "false")
        else:
            assert class_name == names[int(text)]


@given(st.lists(st.one_of(TEXTS, NAMES), max_size=4), st.sampled_from([repr, json.dumps, lambda x: repr(tuple(x))]))
def test_text_of_a_list_is_parsed(labels: list[str], write: Any) -> None:
    cell = write(labels)
    table = build_table("dataset.path=here", [{"label": cell}, {"label": labels}])
    assert read(with_lists(table, "label", ","))["label"] == [labels, labels]


@given(st.lists(st.one_of(TEXTS, NAMES), min_size=2, max_size=4))
def test_text_of_an_array_is_no_list(labels: list[str]) -> None:
    """Check arrays as `to_csv` of pandas writes them, whose texts Python would concatenate."""
    cell = str(np.array(labels, dtype=object))
    assert isinstance(ast.literal_eval(cell), list)
    assert parse_list(cell) is None
