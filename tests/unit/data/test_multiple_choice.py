"""Texts with several endings, from files to batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from adadepth.config import ChoiceConfig, Source, TokenizerConfig
from adadepth.data import RunData, load_labelled_data

from .labelled_support import write_table
from .tokenizers_support import tokenizer

ROWS = [
    {"sent1": "they said: stop", "sent2": "a cat", "label": number % 4}
    | {f"ending{choice}": "don't stop " * (choice + number) + "now!" for choice in range(4)}
    for number in range(6)
]


def load_endings(folder: Path, rows: list[dict[str, Any]] = ROWS, suffix: str = "jsonl", **changes: Any) -> RunData:
    for split in ("train", "validation"):
        write_table(folder / "table" / f"{split}.{suffix}", rows)
    tokenizer("bert").save_pretrained(folder / "bert")
    settings: dict[str, Any] = {
        "name": "endings", "source": Source.local, "path": str(folder / "table"), "cache_dir": str(folder / "cache"),
        "sequence_length": 32,
    }  # fmt: skip
    return load_labelled_data(ChoiceConfig(**{**settings, **changes}), TokenizerConfig(path=str(folder / "bert")), 0)


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_choices_equal_the_pairs_of_the_library(suffix: str, tmp_path: Path) -> None:
    data, words = load_endings(tmp_path, suffix=suffix), tokenizer("bert")
    batch = data.collate([data.train[(0, number)] for number in range(6)])
    expected = words(
        [row["sent1"] for row in ROWS for _ in range(4)],
        [f"{row['sent2']} {row[f'ending{choice}']}" for row in ROWS for choice in range(4)],
        truncation="longest_first", max_length=32, padding="longest", pad_to_multiple_of=8, return_tensors="pt",
        return_token_type_ids=True,
    )  # fmt: skip
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        torch.testing.assert_close(batch[name], expected[name].view(6, 4, -1), msg=name)
    owners = [[{None: 0, 0: 1, 1: 2}[owner] for owner in expected.sequence_ids(row)] for row in range(24)]
    assert batch["token_text"].flatten(0, 1).tolist() == owners
    assert batch["labels"].tolist() == [row["label"] for row in ROWS]
    assert data.train.lengths().tolist() == batch["attention_mask"].sum(-1).max(dim=1).values.tolist()
    assert data.summary["train"]["choices"] == 24
    lengths = [len(words(*pair)["input_ids"]) for pair in list_pairs()]  # with three special tokens
    assert data.summary["train"]["cut"] == sum(length > 32 for length in lengths)
    assert data.summary["train"]["tokens"] == sum(length - 3 for length in lengths)
    assert data.summary["train"]["tokens_used"] == sum(min(length, 32) - 3 for length in lengths)


def list_pairs() -> list[tuple[str, str]]:
    return [(row["sent1"], f"{row['sent2']} {row[f'ending{choice}']}") for row in ROWS for choice in range(4)]


def test_one_context_column_and_other_labels_are_read(tmp_path: Path) -> None:
    rows = [{"question": "stop?", "a": "a cat", "b": "lots", "right": name} for name in ("A", "B", "A")]
    columns = {"context_columns": ["question"], "ending_columns": ["a", "b"], "label_column": "right"}
    data = load_endings(tmp_path, rows, labels=["A", "B"], **columns)
    batch = data.collate([data.train[0], data.train[1]])
    assert batch["input_ids"].shape[:2] == (2, 2)
    assert batch["labels"].tolist() == [0, 1]
    words = tokenizer("bert")
    ids = batch["input_ids"][0, 1][batch["attention_mask"][0, 1] > 0]
    assert ids.tolist() == words("stop?", "lots")["input_ids"]
