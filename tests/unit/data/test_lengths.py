"""Parity, copy and addition against Python's own arithmetic, and the number of loops that texts carry to the model."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from adadepth.config import TokenizerConfig
from adadepth.config.data import LengthsConfig
from adadepth.data import RunData, load_labelled_data
from adadepth.data.generated.lengths import PROPAGATED, draw_bits

FEW: dict[str, Any] = {"train_examples": 300, "max_evaluation_examples": 100, "train_lengths": [2, 6]}


def load_algorithm(algorithm: str) -> RunData:
    settings = {"algorithm": algorithm, "beyond_lengths": [9], "sequence_length": 32, **FEW}
    return load_labelled_data(LengthsConfig(name="lengths", **settings), TokenizerConfig(), 0)


def answer(algorithm: str, symbols: list[str]) -> tuple[int, list[str]]:
    """Return the length of a text and the labels of its last tokens, from its symbols alone."""
    if algorithm == "parity":
        assert symbols[0] == "<"
        bits = symbols[1:]
        return len(bits), [("even", "odd")[bits[: end + 1].count("1") % 2] for end in range(len(bits))]
    if algorithm == "copy":
        copied, rest = symbols[: symbols.index("=")], symbols[symbols.index("=") + 1 :]
        assert rest == ["_"] * (len(copied) - 1)
        return len(copied), copied
    assert (symbols[0], symbols[-1]) == ("<", "0+0")
    first, second = (int("".join(column[digit] for column in reversed(symbols[1:])), 2) for digit in (0, 2))
    return len(symbols) - 2, list(reversed(f"{first + second:0{len(symbols) - 1}b}"))


@pytest.mark.parametrize("algorithm", ["parity", "copy", "addition"])
def test_labels_are_the_answers(algorithm: str) -> None:
    data, lengths = load_algorithm(algorithm), dict[str, Counter[int]]()
    tokenizer: Any = data.tokenizer
    for name, examples in {"train": data.train, **data.evaluation}.items():
        counted = lengths.setdefault(name, Counter[int]())
        for example in (examples[number] for number in range(100)):
            length, answers = answer(algorithm, tokenizer.convert_ids_to_tokens(example["input_ids"]))
            labels = [-100] * (len(example["input_ids"]) - len(answers)) + [data.labels.index(text) for text in answers]
            assert example["labels"].tolist() == labels
            assert example["difficulties"].tolist() == [length if label >= 0 else -1 for label in labels]
            assert example["text_loops"] == length
            counted[length] += 1
    assert set(lengths["train"]) == set(lengths["inside"]) == set(range(2, 7))
    assert min(lengths["inside"].values()) > 8
    assert set(lengths["beyond_9"]) == {9}
    batch = data.collate([data.train[number] for number in range(5)])
    assert batch["text_loops"].tolist() == [data.train[number]["text_loops"] for number in range(5)]


def test_most_columns_of_an_addition_propagate_a_carry() -> None:
    bits = draw_bits("addition", 200, 50, np.random.default_rng(0))
    assert (bits[:, 0] != bits[:, 1]).mean() == pytest.approx(PROPAGATED, abs=0.02)
    assert bits.mean() == pytest.approx(0.5, abs=0.02)
