"""Legal but suspicious input, which is named once with its count; input without a meaning is a one-line error."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from adadepth.config import ChoiceConfig, QuestionConfig, Source
from adadepth.data import load_labelled_data, load_pretraining_data
from adadepth.data.run_data import RunData
from adadepth.data.text import hub
from tests.unit.data.labelled_support import load, make_labelled_config, write_splits
from tests.unit.data.support import make_corpus_config, make_tokenizer_config

TEXTS = [f"The cat sees dog number {number}. It was a fine day in story {number}." for number in range(40)]


@pytest.fixture(autouse=True)
def _reset_warnings() -> None:
    hub._warned.clear()


def write_rows(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return file


def load_sentences(folder: Path) -> RunData:
    return load(
        make_labelled_config(folder, folder / "cache", text_columns=["sentence"], label_column="label"),
        make_tokenizer_config(),
    )


def list_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    return [message for message in messages if "vocab_size" not in message]


@pytest.mark.parametrize(
    ("nothing", "says"),
    [
        (None, "dataset.text_column=text: {}: 8 of 40 rows contain no text and are skipped"),
        (" \n", "dataset.name=test: 8 of 40 documents are blank and are skipped"),
    ],
)
def test_rows_of_a_corpus_without_text_are_counted(
    tmp_path: Path, nothing: str | None, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"text": text if number % 5 else nothing} for number, text in enumerate(TEXTS)]
    file = write_rows(tmp_path / "a.jsonl", rows)
    load_pretraining_data(make_corpus_config(file, tmp_path / "cache"), make_tokenizer_config(), 0)
    assert list_warnings(caplog) == [says.format(f"dataset.path={file}")]


def test_a_class_that_may_mean_none_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"sentence": text, "label": (-1, 0, 1)[number % 3]} for number, text in enumerate(TEXTS)]
    write_splits(tmp_path, train=rows, validation=rows[::-1])
    assert load_sentences(tmp_path).labels == ("-1", "0", "1")
    (warning,) = list_warnings(caplog)
    assert warning.startswith("dataset.label_column=label: -1 is read as a class;")


@pytest.mark.parametrize("nothing", [None, " "])
def test_missing_texts_of_a_table_are_counted(
    tmp_path: Path, nothing: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"sentence": text if number % 5 else nothing, "label": number % 2} for number, text in enumerate(TEXTS)]
    write_splits(tmp_path, train=rows, validation=rows[::-1])
    load_sentences(tmp_path)
    assert len(list_warnings(caplog)) == 2
    assert all(message.endswith("lacks 8 texts, which are read as empty texts") for message in list_warnings(caplog))


@pytest.mark.parametrize("limit", [None, 10])
def test_missing_texts_of_choices_are_counted(
    tmp_path: Path, limit: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Count texts of the used rows: the others are not read."""
    rows: list[dict[str, Any]] = [
        {"sent1": text, "sent2": "a", "label": number % 2, "ending0": "b" if number % 5 else None, "ending1": "c"}
        for number, text in enumerate(TEXTS)
    ]
    rows[39]["sent1"] = "  "
    write_splits(tmp_path, train=rows, validation=rows[::-1])
    dataset = ChoiceConfig(
        name="table", source=Source.local, path=str(tmp_path), ending_columns=["ending0", "ending1"],
        sequence_length=32, cache_dir=str(tmp_path / "cache"), max_train_examples=limit, max_evaluation_examples=limit,
    )  # fmt: skip
    data = load_labelled_data(dataset, make_tokenizer_config(), 0)
    used = data.train.rows.tolist()
    assert len(used) == (limit or len(TEXTS))
    missing = sum((row % 5 == 0) + (row == 39) for row in used)
    warning, _ = list_warnings(caplog)
    assert warning.startswith("columns sent1, sent2, ending0, ending1: dataset.path=")
    assert warning.endswith(f"train.jsonl lacks {missing} texts, which are read as empty texts")


def test_missing_texts_of_questions_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [
        {"id": str(number), "question": "Which cat?" if number % 5 else None, "context": text if number % 8 else " ",
         "answers": {"text": [], "answer_start": []}}
        for number, text in enumerate(TEXTS)
    ]  # fmt: skip
    write_splits(tmp_path, train=rows, validation=rows[::-1])
    dataset = QuestionConfig(
        name="table", source=Source.local, path=str(tmp_path), sequence_length=64, stride=8, max_question_length=16,
        cache_dir=str(tmp_path / "cache"), unanswerable=True,
    )  # fmt: skip
    load_labelled_data(dataset, make_tokenizer_config(), 0)
    assert len(list_warnings(caplog)) == 2
    assert all("lacks 13 texts, which are read as empty texts" in message for message in list_warnings(caplog))
