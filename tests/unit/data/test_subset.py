"""Where few rows are used, only these are tokenised; which ones, and what becomes of them, is as if all had been."""

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
from tests.marks_support import quick_one_in

from .labelled_support import rows_of_pairs, write_splits
from .tokenizers_support import tokenizer

LIMITS: dict[str, Any] = {"max_train_examples": 5, "max_evaluation_examples": 3}
HELD_OUT: dict[str, Any] = {"held_out": 0.25, "evaluation_splits": ["held_out", "validation"]}
COUNT = 24


def sentence(number: int) -> list[str]:
    return ["they", "don't", *["stop"] * (number % 4), f"{number}"]


TABLES: dict[type[TableConfig], list[dict[str, Any]]] = {
    LabelledConfig: rows_of_pairs(COUNT),
    TaggingConfig: [{"tokens": sentence(n), "ner_tags": [*["O"] * (2 + n % 4), "B-X"]} for n in range(COUNT)],
    QuestionConfig: [
        {"id": f"q{n}", "question": f"who {n}?", "context": " ".join(sentence(n)),
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


def load(folder: Path, kind: str, **changes: Any) -> RunData:
    schema, settings = KINDS[kind]
    if not (folder / "table").exists():
        write_splits(folder / "table", train=TABLES[schema], validation=TABLES[schema][:10], test=TABLES[schema][:7])
        tokenizer("bert").save_pretrained(folder / "bert")
    common = {"name": kind, "source": Source.local, "path": str(folder / "table"), "cache_dir": str(folder / "cache")}
    dataset = schema(**{**common, **settings, **changes})
    return load_labelled_data(dataset, TokenizerConfig(path=str(folder / "bert")), 0)


def contents(data: RunData) -> list[list[dict[str, Any]]]:
    sets: list[Any] = [data.train, *data.evaluation.values(), *data.test.values()]
    return [[examples[index] for index in range(len(examples))] for examples in sets]


def tokenised(monkeypatch: pytest.MonkeyPatch, kind: str) -> list[str]:
    """The texts, or words, that are given to the tokenizer from now on; blank ones left out."""
    module: Any = ENCODERS[kind]
    name = "encode_words" if kind == "tags" else "encode_sentences"
    encode: Callable[..., Any] = getattr(module, name)
    seen: list[str] = []

    def spy(words_: Any, texts: list[Any]) -> Any:
        seen.extend(str(text) for text in texts if text and str(text).strip())
        return encode(words_, texts)

    monkeypatch.setattr(module, name, spy)
    return seen


@pytest.mark.parametrize("aside", [{}, HELD_OUT], ids=["splits", "held_out"])
@pytest.mark.parametrize("kind", quick_one_in(3, KINDS))
def test_the_same_examples_from_fewer_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, aside: dict[str, Any]
) -> None:
    load(
        tmp_path / "whole", kind, **aside, max_evaluation_examples=None
    )  # tokenises all rows, which the next call then finds
    expected = load(tmp_path / "whole", kind, **aside, **LIMITS)
    seen = tokenised(monkeypatch, kind)
    found = load(tmp_path / "few", kind, **aside, **LIMITS)
    np.testing.assert_equal(contents(found), contents(expected))
    assert found.summary | {"tokenizer": None} == expected.summary | {"tokenizer": None}
    assert found.summary["train"]["rows"] == COUNT
    texts_of_a_row = {"pairs": 2, "choices": 5}.get(kind, 1)
    used = 5 + 3 + 3 * bool(aside)
    unlabelled = 7 if kind in ("pairs", "values") else 0  # a test set is predicted in full
    assert len(seen) == (used + unlabelled) * texts_of_a_row


def test_what_is_tokenised_already_is_not_tokenised_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(tmp_path, "pairs", test_splits=[], **LIMITS)
    seen = tokenised(monkeypatch, "pairs")
    load(tmp_path, "pairs", test_splits=[], **LIMITS)
    assert seen == []
    load(tmp_path, "pairs", test_splits=[], **LIMITS | {"max_train_examples": 6})
    assert len(seen) == 2 * 6
    load(tmp_path, "pairs", test_splits=[], max_train_examples=None, max_evaluation_examples=None)
    assert len(seen) == 2 * (6 + COUNT + 10)
    load(tmp_path, "pairs", test_splits=[], **LIMITS | {"max_train_examples": 7})
    assert len(seen) == 2 * (6 + COUNT + 10)


def test_a_row_that_is_used_twice_is_there_for_both(tmp_path: Path) -> None:
    """The training rows may be evaluated on, too, and are then spread otherwise."""
    both = {"evaluation_splits": ["train"], **LIMITS}
    load(tmp_path / "whole", "pairs", evaluation_splits=["train"], max_evaluation_examples=None)
    expected = contents(load(tmp_path / "whole", "pairs", **both))
    np.testing.assert_equal(contents(load(tmp_path / "few", "pairs", **both)), expected)


def test_a_message_names_the_row_of_the_table(tmp_path: Path) -> None:
    table = [{**row, "premise": 3 if number == 9 else "a"} for number, row in enumerate(rows_of_pairs(10))]
    write_splits(tmp_path / "table", "jsonl", train=table, validation=table, test=table)
    tokenizer("bert").save_pretrained(tmp_path / "bert")
    with pytest.raises(DataError, match=r", line 10 holds int, not text"):
        load(tmp_path, "pairs", test_splits=[], max_train_examples=10, max_evaluation_examples=1)
