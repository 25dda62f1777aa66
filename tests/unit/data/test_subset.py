"""Limits on examples: only used rows are tokenised, and they equal those of the whole table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adadepth.config import (
    ChoiceConfig,
    LabelledConfig,
    QuestionConfig,
    Source,
    TableConfig,
    TaggingConfig,
    TokenizerConfig,
)
from adadepth.config.data import SequenceProblem
from adadepth.data import RunData, load_labelled_data
from adadepth.data.stores import questions, rows
from adadepth.errors import DataError
from tests.marks_support import keep_one_quick

from .labelled_support import make_pair_rows, write_splits
from .tokenizers_support import tokenizer

LIMITS: dict[str, Any] = {"max_train_examples": 5, "max_evaluation_examples": 3}
HELD_OUT: dict[str, Any] = {"held_out": 0.25, "evaluation_splits": ["held_out", "validation"]}
COUNT = 24


def make_sentence(number: int) -> list[str]:
    return ["they", "don't", *["stop"] * (number % 4), f"{number}"]


TABLES: dict[type[TableConfig], list[dict[str, Any]]] = {
    LabelledConfig: make_pair_rows(COUNT),
    TaggingConfig: [{"tokens": make_sentence(n), "ner_tags": [*["O"] * (2 + n % 4), "B-X"]} for n in range(COUNT)],
    QuestionConfig: [
        {"id": f"q{n}", "question": f"who {n}?", "context": " ".join(make_sentence(n)),
         "answers": {"text": ["don't"], "answer_start": [5]}} for n in range(COUNT)
    ],
    ChoiceConfig: [
        {"sent1": f"they {n}", "sent2": "a cat", "label": n % 4, **{f"ending{i}": f"stop {n + i}" for i in range(4)}}
        for n in range(COUNT)
    ],
}  # fmt: skip
KINDS: dict[str, tuple[type[TableConfig], dict[str, Any]]] = {
    "pairs": (LabelledConfig, {"text_columns": ["premise", "hypothesis"]}),
    "values": (
        LabelledConfig,
        {
            "text_columns": ["premise"],
            "problem": SequenceProblem.regression,
            "metrics": ["mse"],
            "label_column": "number",
        },
    ),
    "tags": (TaggingConfig, {"labels": ["O", "B-X", "I-X"]}),
    "questions": (QuestionConfig, {"sequence_length": 32, "stride": 5, "max_question_length": 12}),
    "choices": (ChoiceConfig, {}),
}
ENCODERS = {"pairs": rows, "values": rows, "choices": rows, "questions": questions, "tags": rows}


def load_kind(folder: Path, kind: str, **changes: Any) -> RunData:
    schema, settings = KINDS[kind]
    if not (folder / "table").exists():
        write_splits(folder / "table", train=TABLES[schema], validation=TABLES[schema][:10], test=TABLES[schema][:7])
        tokenizer("bert").save_pretrained(folder / "bert")
    common = {"name": kind, "source": Source.local, "path": str(folder / "table"), "cache_dir": str(folder / "cache")}
    dataset = schema(**{**common, **settings, **changes})
    return load_labelled_data(dataset, TokenizerConfig(path=str(folder / "bert")), 0)


def list_contents(data: RunData) -> list[list[dict[str, Any]]]:
    sets: list[Any] = [data.train, *data.evaluation.values(), *data.test.values()]
    return [[examples[index] for index in range(len(examples))] for examples in sets]


def record_tokenised(monkeypatch: pytest.MonkeyPatch, kind: str) -> list[str]:
    """Record the texts, or words, that are given to the tokenizer from now on, without blank ones."""
    module: Any = ENCODERS[kind]
    name = "encode_words" if kind == "tags" else "encode_sentences"
    encode: Callable[..., Any] = getattr(module, name)
    seen: list[str] = []

    def record_call(words_: Any, texts: list[Any]) -> Any:
        seen.extend(str(text) for text in texts if text and str(text).strip())
        return encode(words_, texts)

    monkeypatch.setattr(module, name, record_call)
    return seen


@pytest.mark.parametrize("aside", [{}, HELD_OUT], ids=["splits", "held_out"])
@pytest.mark.parametrize("kind", keep_one_quick(3, KINDS))
def test_fewer_texts_give_the_same_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, aside: dict[str, Any]
) -> None:
    load_kind(
        tmp_path / "whole", kind, **aside, max_evaluation_examples=None
    )  # tokenises all rows, which the next call then finds
    expected = load_kind(tmp_path / "whole", kind, **aside, **LIMITS)
    seen = record_tokenised(monkeypatch, kind)
    loaded = load_kind(tmp_path / "few", kind, **aside, **LIMITS)
    np.testing.assert_equal(list_contents(loaded), list_contents(expected))
    assert loaded.summary | {"tokenizer": None} == expected.summary | {"tokenizer": None}
    assert loaded.summary["train"]["rows"] == COUNT
    texts_of_a_row = {"pairs": 2, "choices": 5}.get(kind, 1)
    used = 5 + 3 + 3 * bool(aside)
    unlabelled = 7 if kind in ("pairs", "values") else 0  # a test set is predicted in full
    assert len(seen) == (used + unlabelled) * texts_of_a_row


def test_tokenised_texts_are_not_tokenised_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_kind(tmp_path, "pairs", test_splits=[], **LIMITS)
    seen = record_tokenised(monkeypatch, "pairs")
    load_kind(tmp_path, "pairs", test_splits=[], **LIMITS)
    assert seen == []
    load_kind(tmp_path, "pairs", test_splits=[], **LIMITS | {"max_train_examples": 6})
    assert len(seen) == 2 * 6
    load_kind(tmp_path, "pairs", test_splits=[], max_train_examples=None, max_evaluation_examples=None)
    assert len(seen) == 2 * (6 + COUNT + 10)
    load_kind(tmp_path, "pairs", test_splits=[], **LIMITS | {"max_train_examples": 7})
    assert len(seen) == 2 * (6 + COUNT + 10)


def test_a_row_used_by_two_sets_is_in_both(tmp_path: Path) -> None:
    """Evaluate on training rows, too, which are then spread otherwise."""
    both = {"evaluation_splits": ["train"], **LIMITS}
    load_kind(tmp_path / "whole", "pairs", evaluation_splits=["train"], max_evaluation_examples=None)
    expected = list_contents(load_kind(tmp_path / "whole", "pairs", **both))
    np.testing.assert_equal(list_contents(load_kind(tmp_path / "few", "pairs", **both)), expected)


def test_a_message_names_the_row_of_the_table(tmp_path: Path) -> None:
    table = [{**row, "premise": 3 if number == 9 else "a"} for number, row in enumerate(make_pair_rows(10))]
    write_splits(tmp_path / "table", "jsonl", train=table, validation=table, test=table)
    tokenizer("bert").save_pretrained(tmp_path / "bert")
    with pytest.raises(DataError, match=r", line 10 holds int, not text"):
        load_kind(tmp_path, "pairs", test_splits=[], max_train_examples=10, max_evaluation_examples=1)
