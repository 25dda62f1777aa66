"""Exits of a looped model on packed text: studied as a plain loop over tokens would, of places drawn alike for all."""

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


def batches() -> Iterator[dict[str, Tensor]]:
    """Three blocks, the last one shorter; the second has a start of a document in its middle."""
    labels = IDS.clone()
    labels[:, 0] = labels[1, 4] = -100
    mask = torch.ones_like(IDS)
    mask[2, 6:] = 0
    labels[2, 6:] = -100
    documents = torch.zeros_like(IDS)
    documents[1, 4:], documents[2, 6:] = 1, -1
    for rows in ([0], [1, 2]):
        found = {"input_ids": IDS, "labels": labels, "documents": documents, "attention_mask": mask}
        yield {name: value[rows] for name, value in found.items()} | {"index": torch.tensor(rows)}


def blocks() -> Any:
    return SimpleNamespace(lengths=lambda: np.array([LENGTH, LENGTH, 6]))


@pytest.fixture(scope="module")
def model() -> Any:
    return build_looped(**OURO)


@pytest.fixture(scope="module")
def records(model: Any) -> StepRecords:
    return recorded(model, sample_positions(blocks(), LOOPS * PIECES))


@torch.no_grad()
def recorded(model: Any, places: Tensor) -> StepRecords:
    given = (({k: v for k, v in batch.items() if k != "index"}, batch) for batch in batches())
    return text_records(((batch, model(**inputs, run_all_steps=True)) for inputs, batch in given), places)


def predicted() -> list[tuple[int, int, int]]:
    """(block, place, what follows) of every prediction, from the labels alone."""
    rows = [pair for batch in batches() for pair in zip(batch["index"].tolist(), batch["labels"], strict=True)]
    return [
        (row, place, int(labels[place + 1]))
        for row, labels in rows
        for place in range(LENGTH - 1)
        if labels[place + 1] >= 0
    ]


def macs(records: StepRecords, steps: Tensor, reads: Collection[str]) -> float:
    return float((steps.double() * (10 + ("logits" in reads)) * records.lengths).sum())


def losses_of(model: Any) -> list[list[float]]:
    """Cross-entropy after every loop, of one token of one text at a time, with a loop per model's number of loops."""
    found = []
    for row, place, following in predicted():
        first = 4 if row == 1 and place >= 4 else 0
        text, steps = IDS[row : row + 1, first : place + 1], []
        for loops in range(1, LOOPS + 1):
            with torch.no_grad():
                logits = model(text, num_loops=loops, exit_rule=f"fixed:{loops}").logits[0, -1].double()
            steps.append(float(logits.logsumexp(0) - logits[following]))
        found.append(steps)
    return found


def test_every_prediction_is_recorded_with_its_losses(model: Any, records: StepRecords) -> None:
    assert records.index.tolist() == [row * POSITIONS + place for row, place, _ in predicted()]
    assert records.labels is not None
    assert records.labels.tolist() == [following for *_, following in predicted()]
    assert records.lengths.tolist() == [6 if row == 2 else LENGTH for row, *_ in predicted()]
    assert records.step_logits is not None
    found = records.step_logits.double().log_softmax(-1)
    found = -found.gather(2, records.labels.view(-1, 1, 1).expand(-1, LOOPS, 1)).squeeze(2)
    torch.testing.assert_close(found, torch.tensor(losses_of(model), dtype=torch.float64), atol=1e-5, rtol=1e-5)


def test_fewer_places_are_drawn_where_logits_would_be_too_many(
    model: Any, records: StepRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "NUMBERS", 10 * LOOPS * PIECES + 1)
    places = sample_positions(blocks(), LOOPS * PIECES)
    assert len(places) == 10
    assert places.tolist() == sample_positions(blocks(), LOOPS * PIECES).tolist() == sorted(set(places.tolist()))
    assert all(place % POSITIONS < (5 if place // POSITIONS == 2 else LENGTH - 1) for place in places.tolist())
    few = recorded(model, places)
    assert set(few.index.tolist()) == set(places.tolist()) & set(records.index.tolist())
    monkeypatch.setattr(recording, "NUMBERS", 1)
    assert len(sample_positions(blocks(), LOOPS * PIECES)) == 1


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_told_by_the_loss_at_the_exits_that_the_model_runs_to(
    model: Any, records: StepRecords, rule: str
) -> None:
    row = study(records, [parse_rule(rule)], macs=macs, **MEASURED)["rows"][0]
    with torch.no_grad():
        runs = [model(**{k: v for k, v in batch.items() if k != "index"}, exit_rule=rule) for batch in batches()]
    losses = torch.cat([run.token_losses for run in runs])
    exits = [
        int(run.exit_steps[position, place])
        for run, batch in zip(runs, batches(), strict=True)
        for position in range(len(batch["index"]))
        for place in range(LENGTH - 1)
        if batch["labels"][position, place + 1] >= 0
    ]
    assert len(set(exits)) > 1
    assert row["quality"]["loss"] == pytest.approx(float(losses.double().mean()), rel=1e-5)
    assert row["quality"]["score"] == -row["quality"]["loss"]
    assert row["mean_updates"] == pytest.approx(sum(exits) / len(exits))


def test_oracles_and_overthinking_are_of_losses(model: Any, records: StepRecords) -> None:
    found = study(records, [parse_rule("margin:0.1")], macs=macs, **MEASURED)
    rows, losses = {row["rule"]: row for row in found["rows"]}, losses_of(model)
    count = len(losses)
    least = [min(range(LOOPS), key=lambda loop, own=own: own[loop]) for own in losses]
    stays = [next(n for n in range(LOOPS) if all(later <= own[-1] + NEAR for later in own[n:])) for own in losses]
    assert rows["oracle"]["mean_updates"] == pytest.approx(1 + sum(least) / count)
    assert rows["oracle"]["quality"]["loss"] == pytest.approx(sum(map(min, losses)) / count, rel=1e-5)
    assert rows["oracle:stays"]["mean_updates"] == pytest.approx(1 + sum(stays) / count)
    means = [sum(own[loop] for own in losses) / count for loop in range(LOOPS)]
    assert found["overthinking"]["step"] == 1 + means.index(min(means))
    assert found["overthinking"]["gap"] == pytest.approx(means[-1] - min(means), abs=1e-5)
    assert rows["margin:0.1"]["permuted"]["macs"] > 0
    text = format_exit_study({**found, "drawn_of": 50})
    assert f"{count} tokens, a sample of 50" in text
    assert "minus the loss" in text


def test_advice_keeps_the_likelihood_of_a_token(records: StepRecords) -> None:
    found = advise(records, get_sequence_numbers(records.index), [parse_rule("margin:0.5")], macs=macs, **MEASURED)
    assert found["chosen_on"] + found["told_on"] == len(records)
    assert pytest.approx(-math.log(KEEP)) == NEAR
    assert found["difference"] == pytest.approx(found["rule"]["score"] - found["full"])
