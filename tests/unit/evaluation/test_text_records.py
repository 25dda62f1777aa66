"""Exits of a looped model on packed text, compared with a plain loop over tokens, at positions drawn alike for all."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from adadepth.evaluation import text_records as recording
from adadepth.evaluation.text_records import sample_positions, text_records
from adadepth.halting.exit_rules import parse_rule
from adadepth.metrics.exit_rule_selection import KEEP, advise
from adadepth.metrics.exit_study import study
from adadepth.metrics.step_records import POSITIONS, StepRecords, get_sequence_numbers
from adadepth.metrics.step_scores import NEAR
from adadepth.report.exits import format_exit_study
from tests.unit.models.looped.looped_support import IDS, LENGTH, OURO, PIECES, build_looped

LOOPS, ROWS = 4, len(IDS)
MEASURED: dict[str, Any] = {"problem": "language_model", "metrics": ("loss",)}
RULES = ["margin:0.1", "kl:0.1", "quantile:0.4", "distance:0.7"]


def make_batches() -> Iterator[dict[str, Tensor]]:
    """Yield three blocks, the last one shorter; the second has a start of a document in its middle."""
    labels = IDS.clone()
    labels[:, 0] = labels[1, 4] = -100
    mask = torch.ones_like(IDS)
    mask[2, 6:] = 0
    labels[2, 6:] = -100
    documents = torch.zeros_like(IDS)
    documents[1, 4:], documents[2, 6:] = 1, -1
    for rows in ([0], [1, 2]):
        columns = {"input_ids": IDS, "labels": labels, "documents": documents, "attention_mask": mask}
        yield {name: value[rows] for name, value in columns.items()} | {"index": torch.tensor(rows)}


def make_blocks() -> Any:
    return SimpleNamespace(lengths=lambda: np.array([LENGTH, LENGTH, 6]))


@pytest.fixture(scope="module")
def model() -> Any:
    return build_looped(**OURO)


@pytest.fixture(scope="module")
def records(model: Any) -> StepRecords:
    return record_positions(model, sample_positions(make_blocks(), LOOPS * PIECES))


@torch.no_grad()
def record_positions(model: Any, positions: Tensor) -> StepRecords:
    pairs = (({k: v for k, v in batch.items() if k != "index"}, batch) for batch in make_batches())
    return text_records(((batch, model(**inputs, run_all_steps=True)) for inputs, batch in pairs), positions)


def list_predictions() -> list[tuple[int, int, int]]:
    """Return (block, position, next token) of every prediction, from the labels alone."""
    rows = [pair for batch in make_batches() for pair in zip(batch["index"].tolist(), batch["labels"], strict=True)]
    return [
        (row, position, int(labels[position + 1]))
        for row, labels in rows
        for position in range(LENGTH - 1)
        if labels[position + 1] >= 0
    ]


def count_macs(records: StepRecords, steps: Tensor, reads: Collection[str]) -> float:
    return float((steps.double() * (10 + ("logits" in reads)) * records.lengths).sum())


def compute_losses(model: Any) -> list[list[float]]:
    """Return the cross-entropy after every loop, token by token, with one model per number of loops."""
    losses = []
    for row, position, following in list_predictions():
        first = 4 if row == 1 and position >= 4 else 0
        text, steps = IDS[row : row + 1, first : position + 1], []
        for loops in range(1, LOOPS + 1):
            with torch.no_grad():
                logits = model(text, num_loops=loops, exit_rule=f"fixed:{loops}").logits[0, -1].double()
            steps.append(float(logits.logsumexp(0) - logits[following]))
        losses.append(steps)
    return losses


def test_every_prediction_is_recorded_with_its_losses(model: Any, records: StepRecords) -> None:
    assert records.index.tolist() == [row * POSITIONS + position for row, position, _ in list_predictions()]
    assert records.labels is not None
    assert records.labels.tolist() == [following for *_, following in list_predictions()]
    assert records.lengths.tolist() == [6 if row == 2 else LENGTH for row, *_ in list_predictions()]
    assert records.step_logits is not None
    log_probabilities = records.step_logits.double().log_softmax(-1)
    losses = -log_probabilities.gather(2, records.labels.view(-1, 1, 1).expand(-1, LOOPS, 1)).squeeze(2)
    torch.testing.assert_close(losses, torch.tensor(compute_losses(model), dtype=torch.float64), atol=1e-5, rtol=1e-5)


def test_fewer_positions_are_drawn_if_logits_exceed_the_limit(
    model: Any, records: StepRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "NUMBERS", 10 * LOOPS * PIECES + 1)
    positions = sample_positions(make_blocks(), LOOPS * PIECES)
    assert len(positions) == 10
    assert (
        positions.tolist()
        == sample_positions(make_blocks(), LOOPS * PIECES).tolist()
        == sorted(set(positions.tolist()))
    )
    assert all(
        position % POSITIONS < (5 if position // POSITIONS == 2 else LENGTH - 1) for position in positions.tolist()
    )
    few = record_positions(model, positions)
    assert set(few.index.tolist()) == set(positions.tolist()) & set(records.index.tolist())
    monkeypatch.setattr(recording, "NUMBERS", 1)
    assert len(sample_positions(make_blocks(), LOOPS * PIECES)) == 1


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_has_the_loss_at_the_exits_that_the_model_executes(model: Any, records: StepRecords, rule: str) -> None:
    row = study(records, [parse_rule(rule)], macs=count_macs, **MEASURED)["rows"][0]
    with torch.no_grad():
        runs = [model(**{k: v for k, v in batch.items() if k != "index"}, exit_rule=rule) for batch in make_batches()]
    losses = torch.cat([run.token_losses for run in runs])
    exits = [
        int(run.exit_steps[row_number, column])
        for run, batch in zip(runs, make_batches(), strict=True)
        for row_number in range(len(batch["index"]))
        for column in range(LENGTH - 1)
        if batch["labels"][row_number, column + 1] >= 0
    ]
    assert len(set(exits)) > 1
    assert row["quality"]["loss"] == pytest.approx(float(losses.double().mean()), rel=1e-5)
    assert row["quality"]["score"] == -row["quality"]["loss"]
    assert row["mean_updates"] == pytest.approx(sum(exits) / len(exits))


def test_oracles_and_overthinking_follow_from_losses(model: Any, records: StepRecords) -> None:
    content = study(records, [parse_rule("margin:0.1")], macs=count_macs, **MEASURED)
    rows, losses = {row["rule"]: row for row in content["rows"]}, compute_losses(model)
    count = len(losses)
    least = [min(range(LOOPS), key=lambda loop, step_losses=step_losses: step_losses[loop]) for step_losses in losses]
    stays = [
        next(n for n in range(LOOPS) if all(later <= step_losses[-1] + NEAR for later in step_losses[n:]))
        for step_losses in losses
    ]
    assert rows["oracle"]["mean_updates"] == pytest.approx(1 + sum(least) / count)
    assert rows["oracle"]["quality"]["loss"] == pytest.approx(sum(map(min, losses)) / count, rel=1e-5)
    assert rows["oracle:stays"]["mean_updates"] == pytest.approx(1 + sum(stays) / count)
    means = [sum(step_losses[loop] for step_losses in losses) / count for loop in range(LOOPS)]
    assert content["overthinking"]["step"] == 1 + means.index(min(means))
    assert content["overthinking"]["gap"] == pytest.approx(means[-1] - min(means), abs=1e-5)
    assert rows["margin:0.1"]["permuted"]["macs"] > 0
    text = format_exit_study({**content, "drawn_of": 50})
    assert f"{count} tokens, a sample of 50" in text
    assert "minus the loss" in text


def test_advice_keeps_the_likelihood_of_a_token(records: StepRecords) -> None:
    advice = advise(
        records, get_sequence_numbers(records.index), [parse_rule("margin:0.5")], macs=count_macs, **MEASURED
    )
    assert advice["chosen_on"] + advice["told_on"] == len(records)
    assert pytest.approx(-math.log(KEEP)) == NEAR
    assert advice["difference"] == pytest.approx(advice["rule"]["score"] - advice["full"])
