"""Expressions of Mano, compared with a plain evaluator of prefix expressions, and their published layout."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from adadepth.config import TokenizerConfig
from adadepth.config.data import ManoConfig
from adadepth.data import RunData, load_labelled_data
from tests.marks_support import keep_one_quick

FEW: dict[str, Any] = {"max_evaluation_examples": 200, "train_examples": 400}


def load_expressions(**settings: Any) -> RunData:
    return load_labelled_data(ManoConfig(name="mano", **{**FEW, **settings}), TokenizerConfig(), 0)


def evaluate_expression(symbols: list[str], modulus: int) -> int:
    """Return the value, read from the end: an operator takes the two values that came last."""
    stack: list[int] = []
    for symbol in reversed(symbols):
        if symbol.isdigit():
            assert 0 <= int(symbol) < modulus
            stack.append(int(symbol))
        else:
            a, b = stack.pop(), stack.pop()
            stack.append({"+": a + b, "-": a - b, "*": a * b}[symbol] % modulus)
    (value,) = stack
    return value


@pytest.mark.parametrize("length_token", [True, False])
@pytest.mark.parametrize(("modulus", "operations"), keep_one_quick(2, [(7, 3), (23, 10)]))
def test_labels_are_the_values_of_expressions(modulus: int, operations: int, length_token: bool) -> None:
    data, counts = load_expressions(modulus=modulus, operations=operations, length_token=length_token), Counter[int]()
    assert data.labels == tuple(str(number) for number in range(modulus))
    for name, examples in {"train": data.train, **data.evaluation}.items():
        for example in (examples[number] for number in range(200)):
            symbols = data.tokenizer.convert_ids_to_tokens(example["input_ids"])
            expression = symbols[2 if length_token else 1 : -1]
            done = sum(symbol in "+-*" for symbol in expression)
            assert (symbols[0], symbols[-1]) == ("<bos>", "=")
            assert symbols[1] == f"<len_{done}>" or not length_token
            assert example["labels"].tolist() == [-100] * (len(symbols) - 1) + [
                evaluate_expression(expression, modulus)
            ]
            assert example["difficulties"].tolist() == [-1] * (len(symbols) - 1) + [done]
            assert done == operations or name != "longest"
            counts[done] += name == "inside"
    assert set(counts) == set(range(1, operations + 1))
    assert min(counts.values()) > 0.4 * 200 / operations


def test_numbers_of_operations_in_the_left_part_are_equally_likely() -> None:
    data, lefts = load_expressions(modulus=5, operations=3), Counter[int]()
    for example in (data.evaluation["longest"][number] for number in range(200)):
        symbols = data.tokenizer.convert_ids_to_tokens(example["input_ids"])[3:-1]  # behind the first operator
        missing, left_count = 1, 0
        while missing:
            is_operator = symbols.pop(0) in "+-*"
            left_count, missing = left_count + is_operator, missing + (1 if is_operator else -1)
        lefts[left_count] += 1
    assert min(lefts[count] for count in range(3)) > 45


def test_all_tokens_can_be_predicted_in_training_and_answers_in_evaluation() -> None:
    data = load_expressions(modulus=7, operations=3, answers_only=False)
    example = data.train[3]
    symbols = data.tokenizer.convert_ids_to_tokens(example["input_ids"])
    assert [data.labels[label] for label in example["labels"][:-1]] == symbols[1:]
    assert data.labels[example["labels"][-1]] == str(evaluate_expression(symbols[2:-1], 7))
    assert (data.evaluation["inside"][3]["labels"] >= 0).sum() == 1
