"""Lines and columns of text with every Unicode space and line break, against readers of bytes written here."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from adadepth.data.text.local_files import open_conll_table, read_lines
from adadepth.errors import DataError
from adadepth.prediction.tabular import _iterate_rows
from adadepth.report.table import format_csv
from adadepth.tasks.predict import read_texts

BOM = b"\xef\xbb\xbf"
# Line breaks of `str.splitlines` except \n and \r, other Unicode white space, and similar characters.
BREAKS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
SPACES = "\x1f\xa0\u1680\u2000\u2003\u2007\u200a\u202f\u205f\u3000"
LIKE_SPACES = "\u200b\u2060\ufeff\u180e\xad\x00\x1a"
LETTERS = "ab1-é東😀"
INSIDE = st.text(LETTERS + SPACES + BREAKS + LIKE_SPACES, min_size=1, max_size=4)
WORDS = INSIDE | st.text(LETTERS + " " + SPACES + BREAKS + "#\"'", min_size=1, max_size=4)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])
ALL = st.text(LETTERS + " \t\n\r#=" + SPACES + BREAKS + LIKE_SPACES, max_size=30)


def split_lines(content: bytes) -> list[str]:
    """Split content as the reference does: a line ends at CR LF, LF or CR, and a byte-order mark is no text."""
    lines = content.removeprefix(BOM).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return [line.decode() for line in lines[: len(lines) - (lines[-1] == b"")]]


def split_sentences(lines: list[str], separator: str | None) -> Iterator[list[list[str]]]:
    """Split lines as the reference does: at empty lines into sentences, at tabs or runs of blanks into fields."""
    sentence: list[list[str]] = []
    for line in [*lines, ""]:
        if line.strip(" ") == "" and "\t" not in line:
            if sentence:
                yield sentence
            sentence = []
        else:
            sentence.append(line.split(separator) if separator else list(filter(None, line.split(" "))))


def read_column(file: Path, name: str) -> list[list[str]]:
    return [row for batch in open_conll_table(file).batches() for row in batch[name]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lines")


def write_lines(folder: Path, name: str, lines: list[str], end: str, mark: bool) -> tuple[Path, bytes]:
    content = BOM * mark + end.join([*lines, ""]).encode()
    (folder / name).write_bytes(content)
    return folder / name, content


# ---- text


@given(content=ALL, mark=st.booleans())
@example(content="a\r\r\nb\n\rc\u2028d\x85", mark=True)
@example(content="\ufeff\ufeffa", mark=False)
def test_lines_of_a_text_equal_the_reference(folder: Path, content: str, mark: bool) -> None:
    file = folder / "text.txt"
    file.write_bytes(BOM * mark + content.encode())
    expected = split_lines(file.read_bytes())
    assert list(read_lines("key", file)) == expected
    assert "".join(read_lines("key", file, with_ends=True)).encode() == file.read_bytes().removeprefix(BOM)
    if file.stat().st_size:
        rows = list(_iterate_rows(file, ["sentence"]))
        assert [row["sentence"] for _, row in rows] == expected
        assert [str(location) for location, _ in rows[:2]] == [f"input={file}, line {n}" for n in (1, 2)][: len(rows)]
    texts = [line for line in expected if line.strip(" \t")]
    assume(texts and all(line.count("\t") < 2 for line in texts))
    texts_read = read_texts(f"@{file}")
    assert ["\t".join(text) if isinstance(text, tuple) else text for text in texts_read] == texts


@given(
    content=st.binary(max_size=20)
    | st.lists(st.sampled_from([b"\xc3", b"\xa9", b"\n", b"\r", b"a", BOM])).map(b"".join)
)
def test_invalid_bytes_are_refused_with_their_offset(folder: Path, content: bytes) -> None:
    file = folder / "bytes.txt"
    file.write_bytes(content)
    try:
        content.decode()
    except UnicodeDecodeError as error:
        with pytest.raises(DataError, match=rf"^key={file}: not UTF-8 at byte {error.start} \(0x"):
            list(read_lines("key", file))
    else:
        assert list(read_lines("key", file)) == split_lines(content)


def test_line_ends_are_found_across_read_buffers(tmp_path: Path) -> None:
    for length in range(8180, 8200):
        content = b"a" * length + b"\r\n" + b"b" * 10 + b"\r" + "é\u2028".encode() * 5000
        (tmp_path / "text.txt").write_bytes(content)
        assert list(read_lines("key", tmp_path / "text.txt")) == split_lines(content)


# ---- CoNLL


@given(
    sentences=st.lists(st.lists(st.tuples(WORDS, INSIDE), min_size=1, max_size=3), min_size=1, max_size=3),
    end=ENDS,
    mark=st.booleans(),
    comment=st.sampled_from([[], ["# text = a\u2028b"], ["# sent_id = 1\tx", "#"], ["-DOCSTART- -X- O O", ""]]),
)
@example(sentences=[[("8\xa0375", "B-NUM"), (" ", "O"), ("\xa0", "O"), ("#", "O")]], end="\n", mark=False, comment=[])
@example(sentences=[[("#a", "O"), ("#", "O")]], end="\r", mark=True, comment=[])
def test_only_tabs_separate_fields_where_there_are_tabs(
    folder: Path, sentences: list[list[tuple[str, str]]], end: str, mark: bool, comment: list[str]
) -> None:
    lines = [*comment, *(line for rows in sentences for line in ["", *map("\t".join, rows)])]
    file, content = write_lines(folder, "tabs.conll", lines, end, mark)
    words = split_lines(content)[len(comment) :]
    expected = list(split_sentences(words, "\t"))
    assert expected == [[list(row) for row in rows] for rows in sentences]
    assert read_column(file, "tokens") == [[word for word, _ in rows] for rows in expected]
    assert read_column(file, "ner_tags") == [[tag for _, tag in rows] for rows in expected]


@given(
    sentences=st.lists(st.lists(st.lists(INSIDE, min_size=3, max_size=3), min_size=1, max_size=3), min_size=1),
    blanks=st.lists(st.sampled_from([" ", "   "]), min_size=3, max_size=3),
    end=ENDS,
    mark=st.booleans(),
)
def test_runs_of_blanks_separate_fields_without_tabs(
    folder: Path, sentences: list[list[list[str]]], blanks: list[str], end: str, mark: bool
) -> None:
    rows = [
        f"{word}{blanks[0]}{part}{blanks[1]}{tag}{blanks[2]}" for sentence in sentences for word, part, tag in sentence
    ]
    file, content = write_lines(folder, "blanks.conll", ["", *rows, "  ", rows[0]], end, mark)
    expected = list(split_sentences(split_lines(content), None))
    assert len(expected) == 2
    assert read_column(file, "tokens") == [[row[0] for row in sentence] for sentence in expected]
    assert read_column(file, "ner_tags") == [[row[-1] for row in sentence] for sentence in expected]


@given(
    lines=st.lists(st.lists(WORDS | st.sampled_from([" ", "\t", ""]), max_size=5).map("".join), max_size=4),
    mark=st.booleans(),
)
@example(lines=[" \t"], mark=False)
def test_any_columns_are_read_or_refused_with_their_line(folder: Path, lines: list[str], mark: bool) -> None:
    assume(not any(line.lstrip(" \ufeff").startswith("#") for line in lines))  # such lines may be comments
    file, content = write_lines(folder, "any.conll", lines, "\n", mark)
    words = [line for line in split_lines(content) if line.strip(" \t")]
    try:
        tokens = read_column(file, "tokens")
    except DataError:
        with pytest.raises(DataError, match=rf"^dataset.path={file}, line \d+ (has|is) "):
            read_column(file, "tokens")
        return
    tabs = bool(words) and "\t" in words[0]
    expected = list(
        split_sentences(
            ["" if not line.strip(" \t") else line for line in split_lines(content)], "\t" if tabs else None
        )
    )
    assert tokens == [[row[0] for row in rows] for rows in expected]
    assert len({len([field for field in row if field]) for rows in expected for row in rows}) <= 1


# ---- CoNLL-U


@given(data=st.data(), end=ENDS, mark=st.booleans())
def test_tabs_separate_the_fields_of_a_treebank(folder: Path, data: st.DataObject, end: str, mark: bool) -> None:
    lines, expected = [], []
    for _ in range(data.draw(st.integers(1, 3))):
        forms = data.draw(st.lists(WORDS, min_size=1, max_size=4))
        lines += data.draw(st.sampled_from([[], ["# text = a\x0cb", "#\tc"]]))
        for number, form in enumerate(forms, start=1):
            rest = data.draw(st.lists(INSIDE, min_size=8, max_size=8))
            if number < len(forms) and data.draw(st.booleans()):
                lines.append("\t".join([f"{number}-{number + 1}", "contracted", *"_" * 8]))
            lines.append("\t".join([str(number), form, *rest]))
            if data.draw(st.booleans()):
                lines.append("\t".join([f"{number}.1", "unwritten", *"_" * 8]))
            expected.append((form, rest))
        lines.append("")
    contractions = [line for line in lines if "-" in line.split("\t")[0] and line[:1].isdigit()]
    assume(len(contractions) < 2)  # two that overlap are refused
    file, content = write_lines(folder, "tree.conllu", lines, end, mark)
    rows = [line.split("\t") for line in split_lines(content) if line and line[0] != "#"]
    words = [row for row in rows if row[0].isdecimal()]
    assert [(row[1], row[2:]) for row in words] == expected
    for name, position in (("tokens", 1), ("lemmas", 2), ("upos", 3), ("head", 6), ("deprel", 7)):
        assert [value for sentence in read_column(file, name) for value in sentence] == [row[position] for row in words]


@given(content=ALL)
def test_an_invalid_treebank_is_refused_with_its_line(folder: Path, content: str) -> None:
    file = folder / "any.conllu"
    file.write_bytes(content.encode())
    lines = [line for line in split_lines(file.read_bytes()) if line.strip(" ") and line[0] != "#"]
    if not lines:
        assert read_column(file, "tokens") == []
    else:
        with pytest.raises(DataError, match=rf"^dataset.path={file}, line \d+ has "):
            read_column(file, "tokens")


# ---- tables that are written


CELLS = st.text(LETTERS + " ,;\t\n\r\"'" + SPACES + BREAKS, max_size=6) | st.sampled_from(
    ["-1,5", "nice ;-) film", "a;=1"]
)


@given(rows=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=4), delimiter=st.sampled_from(",;\t"))
def test_pandas_reads_the_cells_that_were_written(rows: list[tuple[Any, Any]], delimiter: str) -> None:
    written_rows = format_csv([("first", "second"), *rows], delimiter)
    read = pd.read_csv(io.StringIO(written_rows, newline=""), sep=delimiter, dtype=str, keep_default_na=False)
    for cells, row in zip(read.itertuples(index=False), rows, strict=True):
        for cell, text in zip(cells, row, strict=True):
            assert cell in (text, f"'{text}")
            assert cell == text or text.lstrip("\t\r\n").startswith("-")
