"""Exits by the expected gain: best where signals reveal the gain, and alike where they reveal nothing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from adadepth.errors import ConfigError
from adadepth.metrics.exit_study import study
from adadepth.metrics.expected_exits import EXPECTED, PRICES, find_expected_exits
from adadepth.metrics.step_records import StepRecords
from adadepth.metrics.step_scores import StepScores
from tests.unit.metrics.exits_support import count_macs

EXAMPLES, STEPS = 2000, 4


def make_records(reveals: bool) -> StepRecords:
    """Return examples, half of them right at every step, and the other half at the last step only.

    With `reveals`, the others are unsure from the first step on. Without it, all are equally sure at every step.
    """
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (EXAMPLES,), generator=generator)
    is_hard = torch.rand(EXAMPLES, generator=generator) < 0.5
    is_right = ~is_hard.unsqueeze(1) | (torch.arange(1, STEPS + 1) == STEPS)
    predicted = torch.where(is_right, labels.unsqueeze(1), (labels.unsqueeze(1) + 1) % 3)
    sureness = torch.where(is_hard, 0.2 if reveals else 3.0, 3.0)
    logits = torch.nn.functional.one_hot(predicted, 3) * sureness.reshape(-1, 1, 1)
    depth = torch.full((EXAMPLES,), float(STEPS))
    lengths = torch.full((EXAMPLES,), 4)
    return StepRecords(
        torch.arange(EXAMPLES), lengths, logits[:, -1], depth, STEPS, labels=labels, difficulty=is_hard.long(),
        step_logits=logits,
    )  # fmt: skip


def score(records: StepRecords) -> torch.Tensor:
    by_step = StepScores(records, "classification", ["accuracy"]).by_step
    assert by_step is not None
    return by_step


def test_examples_exit_where_the_gain_is_revealed() -> None:
    records = make_records(reveals=True)
    for share, exits in find_expected_exits(records, score(records)).items():
        expected = torch.where(records.difficulty == 1, STEPS, 1)
        if share < 2:  # the gain of three steps is twice their price at 1, and as much as their price at 2
            torch.testing.assert_close(exits, expected)


def test_all_examples_exit_alike_where_nothing_is_revealed() -> None:
    records = make_records(reveals=False)
    exits = find_expected_exits(records, score(records))
    for share in (0.1, 0.25, 0.5):  # the expected gain is above the price
        assert set(exits[share].tolist()) == {STEPS}
    assert set(exits[2.0].tolist()) == {1}


def test_trees_read_no_label_of_the_examples_that_they_decide() -> None:
    records = make_records(reveals=True)
    noise = torch.randint(0, 3, (EXAMPLES,), generator=torch.Generator().manual_seed(1))
    logits = torch.randn(EXAMPLES, STEPS, 3, generator=torch.Generator().manual_seed(2))
    drawn = dataclasses.replace(records, step_logits=logits, logits=logits[:, -1], labels=noise)
    by_step, rows = score(drawn), np.arange(EXAMPLES)
    fixed = float(by_step.mean(dim=0).max())
    for exits in find_expected_exits(drawn, by_step).values():
        assert float(by_step[rows, exits - 1].mean()) <= fixed + 0.05


def test_a_study_has_a_row_for_every_price() -> None:
    records = make_records(reveals=True)
    result = study(records, [], problem="classification", metrics=["accuracy"], macs=count_macs, expected=True)
    rows = {row["rule"]: row for row in result["rows"] if row["rule"].startswith(EXPECTED)}
    assert list(rows) == [f"{EXPECTED}:{share:g}" for share in PRICES]
    row = rows[f"{EXPECTED}:0.5"]
    assert row["kind"] == "ceiling"
    assert row["quality"]["accuracy"] == 1.0
    assert row["mean_updates"] == pytest.approx(float(torch.where(records.difficulty == 1, STEPS, 1).double().mean()))
    assert row["macs"] == pytest.approx(row["mean_updates"] * 11 * 4)  # with the predictions that are read
    assert not row["pareto"]


def test_one_example_and_grids_are_refused() -> None:
    records = make_records(reveals=True)
    with pytest.raises(ConfigError, match="needs at least two sequences"):
        find_expected_exits(records.select(torch.arange(EXAMPLES) == 0), score(records)[:1])
    cells = dataclasses.replace(records, step_logits=records.step_logits.unsqueeze(2))
    with pytest.raises(ConfigError, match="one prediction of each example"):
        find_expected_exits(cells, score(records))
