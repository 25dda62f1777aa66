"""Rows of predictions against hand-made outputs."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from adadepth.evaluation.evaluation import Evaluation
from adadepth.evaluation.predictions import build_example_rows, build_word_columns, build_word_row
from adadepth.halting.trace import DepthTrace
from adadepth.metrics.step_records import StepRecords
from tests.unit.evaluation.evaluation_support import Even, Fixed

THREE_QUARTERS = math.log(3.0)  # the logit, against 0, of a probability of 3/4


def make_records(logits, labels, exit_steps=None):
    index = torch.arange(len(logits)) * 2
    depth = torch.tensor([1.0, 2.5])
    return StepRecords(index, index, torch.tensor(logits), depth, 4, torch.tensor(labels), exit_steps=exit_steps)


def test_classes_have_names_and_probabilities():
    step_records = make_records([[0.0, THREE_QUARTERS], [THREE_QUARTERS, 0.0]], [1, 1], torch.tensor([1, 3]))
    assert build_example_rows(step_records, ("no", "yes")) == [
        {"id": 0, "label": "yes", "prediction": "yes", "probabilities": [0.25, 0.75], "updates": 1.0, "exit_step": 1},
        {"id": 2, "label": "yes", "prediction": "no", "probabilities": [0.75, 0.25], "updates": 2.5, "exit_step": 3},
    ]


def test_regression_values_have_no_names_or_probabilities():
    rows = build_example_rows(make_records([[3.5], [0.25]], [3.0, 1.5]), ())
    assert rows[1] == {"id": 2, "label": 1.5, "prediction": 0.25, "updates": 2.5, "exit_step": None}


def predict_tags(unit, updates, **fields):
    trace = DepthTrace(unit, updates, torch.ones_like(updates, dtype=torch.bool), max_updates=4)
    logits = torch.tensor([[[0.0, 0.0], [0.0, THREE_QUARTERS], [5.0, 0.0], [THREE_QUARTERS, 0.0]]])
    return build_word_columns(SimpleNamespace(logits=logits, trace=trace, **fields), [np.array([1, 3])])


def test_words_are_read_at_their_first_pieces():
    (sentence,) = predict_tags("token", torch.tensor([[4.0, 3.0, 2.0, 1.0]]))
    assert sentence == {"probabilities": [[0.25, 0.75], [0.75, 0.25]], "updates": [3.0, 1.0]}


def test_words_have_the_depth_of_their_task():
    (sentence,) = predict_tags("task", torch.tensor([3.0]))
    assert sentence["updates"] == [3.0, 3.0]


def test_words_have_their_exit_steps():
    exits = {"unit_slots": torch.tensor([1, 3]), "exit_steps": torch.tensor([4, 2])}
    (sentence,) = predict_tags("token", torch.tensor([[0.0, 4.0, 0.0, 2.0]]), **exits)
    assert sentence["exit_step"] == [4, 2]


def test_a_word_that_was_cut_off_has_no_depth():
    row = build_word_row(7, ["N", "V"], ["N", "O"], {"updates": [2.0], "probabilities": [[1.0, 0.0]]})
    assert (row["id"], row["updates"], row["probabilities"]) == (7, [2.0, None], [[1.0, 0.0], None])


class RowScorer(Even):
    def rows(self):
        return [{"id": 0}]


@pytest.mark.parametrize("unit", ["sequence", "task"])
@pytest.mark.parametrize("wants_rows", [True, False])
def test_a_report_has_rows_only_on_request(unit, wants_rows):
    model = Fixed(unit)
    evaluation = Evaluation(model, RowScorer(), torch.device("cpu"), wants_statistics=True, wants_rows=wants_rows)
    batch = {"depth": torch.tensor([1, 2])}
    evaluation.update(batch | {"inputs": batch["depth"]}, model(**batch))
    assert evaluation.report().rows == ([{"id": 0}] if wants_rows else [])
