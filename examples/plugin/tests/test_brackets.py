"""Tests of the slice of nested brackets; `pytest` in the folder of the package."""

import numpy as np
import pytest
from adadepth_brackets.drawing import load_brackets
from adadepth_brackets.kind import BracketsConfig, check_brackets
from adadepth_brackets.training import Deepening


@pytest.mark.parametrize(("pairs", "deepest"), [(2, 1), (5, 2), (8, 8)])
def test_labels_are_the_open_brackets(pairs, deepest):
    data = load_brackets(BracketsConfig(pairs=pairs, deepest=deepest, train_examples=200, sequence_length=16), seed=3)
    reached = 0
    for index in range(200):
        example = data.train[index]
        text = data.tokenizer.convert_ids_to_tokens(example["input_ids"])
        steps = [1 if bracket == "(" else -1 for bracket in text]
        assert example["labels"].tolist() == np.cumsum(steps).tolist()
        assert example["labels"].min() == example["labels"][-1] == 0
        reached = max(reached, example["labels"].max())
    assert reached <= deepest
    assert pairs == 8 or reached == deepest


def test_what_does_not_fit_is_refused():
    assert list(check_brackets(BracketsConfig(sequence_length=16))) == []
    assert len(list(check_brackets(BracketsConfig(pairs=9, deepest=10, sequence_length=16)))) == 2


def test_the_depth_grows_with_success():
    rule = Deepening(stress=1.0, advance_at=0.5, deepest=2)
    for right, expected in ((1.0, 1), (3.0, 2), (4.0, 2)):
        rule._sums[0], rule._sums[1] = right, 4.0
        rule.on_step_end(None, type("State", (), {"global_step": 7})(), None)
        assert rule.depth == expected
