"""Sentences, documents of text files, and the embedded corpus."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from adadepth.data.text.corpora import read_embedded_documents
from adadepth.data.text.local_files import read_lines, split_documents
from adadepth.data.text.passages import split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? four", ["One.", "Two!", "Three? four"]),
        ("Mr. Smith met J. Doe in the U.S. Army. He left.", ["Mr. Smith met J. Doe in the U.S. Army.", "He left."]),
        ('He said "Go." Then 3 left.', ['He said "Go."', "Then 3 left."]),
        ("It weighs 3.5 kg, e.g. Iron. \n\n  New line", ["It weighs 3.5 kg, e.g. Iron.", "New line"]),
        (' found in Asia . It may grow . " Red " is', ["found in Asia .", "It may grow .", '" Red " is']),
        ("", []),
    ],
)
def test_texts_are_split_into_sentences(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


def test_only_white_space_is_lost() -> None:
    for document in read_embedded_documents():
        assert "".join("".join(split_sentences(document)).split()) == "".join(document.split())


WIKI = [
    " ",
    " = First = ",
    " ",
    " Text . ",
    " = = Part = = ",
    " a = b ",
    " = Not a title = ",
    " | c ",
    " ",
    " = Second = ",
    "",
]


@pytest.mark.parametrize(
    ("separator", "lines", "documents"),
    [
        ("auto", ["a", "b", "", " ", "c"], ["a\nb", "c"]),
        ("auto", WIKI, ["\n".join([" = First = ", " Text . ", *WIKI[4:8]]), " = Second = "]),
        ("heading", WIKI[3:], ["\n".join(WIKI[3:8]), " = Second = "]),
        ("file", ["a", "", "b"], ["a\nb"]),
        ("line", ["a", "", "b"], ["a", "b"]),
        ("blank_line", ["", ""], []),
        ("auto", [], []),
    ],
)
def test_texts_are_split_into_documents(separator: str, lines: list[str], documents: list[str]) -> None:
    assert list(split_documents(iter(lines), separator)) == documents


@pytest.mark.data
@pytest.mark.parametrize(("part", "articles"), [("train", 600), ("valid", 60), ("test", 60)])
def test_wikitext2_has_its_published_number_of_articles(data_root: Path, part: str, articles: int) -> None:
    file = data_root / "wikitext-2" / f"wiki.{part}.tokens"
    assert sum(1 for _ in split_documents(read_lines("path", file), "auto")) == articles


def test_embedded_corpus_is_english_prose_without_markup_or_repetition() -> None:
    documents = list(read_embedded_documents())
    assert documents == list(read_embedded_documents())
    assert 60 < len(documents) < 120
    assert sum(map(len, documents)) > 250_000
    paragraphs = [paragraph for document in documents for paragraph in document.split("\n") if len(paragraph) > 60]
    assert len(set(paragraphs)) > 0.99 * len(paragraphs)
    text = "\n".join(documents)
    assert not re.search(r"^(\W)\1{3,}$|^\|.*\|$|\+----.*\+$", text, re.MULTILINE)
    assert "Assert statements are a convenient way to insert debugging assertions into a program" in text
