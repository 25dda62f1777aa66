"""What exit rules read of a looped model: the same online and recorded, priced as it is computed, fitted to a depth."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from adadepth.evaluation.exit_cost import ExitCost
from adadepth.halting.exit_rules import apply_rule, parse_rule, state_moves
from adadepth.metrics.step_records import StepRecorder, merge
from adadepth.models.depth import engine
from adadepth.models.looped.heads import LoopedForSequenceClassification, LoopedForTokenClassification
from adadepth.models.looped.task_model import compute_layer_macs
from tests.marks_support import quick_one_in
from tests.unit.models.looped.looped_support import IDS, KINDS, LENGTH, OURO, WIDTH, small

RULES = ["kl:0.1", "kl:0.2", "distance:0.7", "acceleration:0.9:1", "acceleration:1.5", "patience:1", "margin:0.1"]


@pytest.mark.parametrize("kind", ["ouro", "huginn", "damped"])
def test_moves_are_those_of_the_states(kind: str) -> None:
    model = small(**KINDS[kind])
    with torch.no_grad():
        found = model(IDS, run_all_steps=True, output_hidden_states=True)
    states = found.hidden_states
    for step in range(1, len(states)):
        before = states[step - 2] if step > 1 else None
        expected = state_moves(states[step], states[step - 1], before)
        torch.testing.assert_close(found.state_moves[:, :, step - 1], expected, equal_nan=True)


@pytest.mark.parametrize("rule", RULES)
def test_online_decisions_are_those_on_what_was_recorded(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions are made of a few units at a time, whose memories grow with the first of them."""
    monkeypatch.setattr(engine, "ROWS", 4)
    model = small(**OURO)
    with torch.no_grad():
        every, online = model(IDS, run_all_steps=True), model(IDS, exit_rule=rule)
    logits, moves = every.step_logits[...].flatten(0, 1), every.state_moves.flatten(0, 1)
    expected = apply_rule(parse_rule(rule), logits, None, None, moves)
    assert online.exit_steps.flatten().tolist() == expected.tolist()
    assert online.state_moves is None
    assert len(expected.unique()) > 1


def test_two_numbers_of_a_state_are_recorded() -> None:
    model = small(LoopedForTokenClassification, **OURO, num_labels=3)
    labels = (IDS % 3).masked_fill(IDS % 5 == 0, -100)
    batch = {"attention_mask": torch.ones_like(IDS), "labels": labels}
    recorder = StepRecorder()
    with torch.no_grad():
        found = model(IDS, **batch, run_all_steps=True)
    recorder.add({**batch, "index": torch.arange(3)}, found)
    records = merge([recorder.parts()])
    assert records.state_moves is not None
    torch.testing.assert_close(records.state_moves, found.state_moves[labels.flatten() >= 0], equal_nan=True)
    assert records.state_moves.shape == (len(records), 4, 2)


def test_training_measures_no_states() -> None:
    model = small(**OURO, objective="mean").train()
    assert model(IDS, labels=IDS).state_moves is None


# ---- Work


@pytest.mark.parametrize(
    "rule",
    quick_one_in(
        3, ["fixed:2", "quantile:0.5", "confidence:0.4", "kl:0.3", "distance:0.7", "acceleration:0.9:1", "margin:1"]
    ),
)
def test_a_rule_pays_for_what_it_reads(rule: str) -> None:
    """Against torch's counter, which sees all pairs of tokens, of which a causal mask leaves half, and no lengths.

    The head runs once more at the end, on what was read at the exit.
    """
    parsed = parse_rule(rule)
    gate = "halting" in parsed.needs
    model = small(LoopedForSequenceClassification, prelude=1, core=2, coda=1, num_loops=4, num_labels=3, gate=gate)
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        exit_step = int(model(IDS[:1], exit_rule=rule).exit_steps)
    assert exit_step == (4 if rule == "margin:1" else exit_step)
    predicts = "logits" in parsed.reads
    lengths, steps = torch.tensor([LENGTH]), torch.tensor([exit_step])
    records: Any = SimpleNamespace(lengths=lengths, max_updates=4)
    macs = ExitCost(model, by_token=False).macs(records, steps, parsed.reads)
    layers = 1 + 2 * exit_step + (exit_step if predicts else 1)
    pairs = layers * compute_layer_macs(model.config)[1] * (LENGTH**2 - LENGTH * (LENGTH + 1) / 2)
    unseen = 3 * WIDTH * exit_step if "states" in parsed.reads else 0
    again = WIDTH * 3 if predicts and exit_step < 4 else 0
    assert counter.get_total_flops() == 2 * (macs + pairs - unseen + again)


def test_a_prediction_of_a_token_costs_its_own_coda_and_head() -> None:
    model = small(**KINDS["huginn"])
    token, pair = compute_layer_macs(model.config)
    (found,) = model.reading_work("logits", torch.tensor([LENGTH])).tolist()
    assert found == token + pair * (LENGTH + 1) / 2 + WIDTH * model.config.vocab_size
    assert model.reading_work("states", torch.tensor([LENGTH])) == 3 * WIDTH
    assert model.reading_work("halting", torch.tensor([LENGTH])) == WIDTH


# ---- Budgets


def mean_loops(model: Any) -> float:
    with torch.no_grad():
        return float(model(IDS).exit_steps.double().mean())


@pytest.mark.parametrize(
    ("given", "fitted"),
    quick_one_in(4, [
        (None, "quantile"), ("fixed:2", "quantile"), ("margin:0.3", "margin"), ("confidence:0.3", "confidence"),
        ("entropy:1", "entropy"), ("kl:0.1", "kl"), ("distance:1", "distance"), ("acceleration:1:1", "acceleration"),
    ]),
)  # fmt: skip
def test_the_rule_that_is_set_is_fitted_to_a_mean_number_of_loops(given: str | None, fitted: str) -> None:
    model = small(**OURO, exit_rule=given)
    assert model.depth_knob == f"exit_rule {fitted}"
    fit = model.fit_depth(2.5, lambda: mean_loops(model))
    assert model.config.exit_rule.partition(":")[0] == fitted
    assert mean_loops(model) == fit.depth == pytest.approx(2.5, abs=0.15)
    if given == "acceleration:1:1":
        assert model.config.exit_rule.endswith(":1")


@pytest.mark.parametrize(
    ("head", "fields", "rule"),
    [
        (LoopedForTokenClassification, {"num_labels": 3}, "margin"),
        (LoopedForSequenceClassification, {"num_labels": 1}, "distance"),
        (LoopedForSequenceClassification, {"num_labels": 1, "gate": True}, "quantile"),
    ],
)
def test_without_a_rule_the_one_that_the_task_allows_is_fitted(head: Any, fields: dict[str, Any], rule: str) -> None:
    model = small(head, core=1, **fields)
    model.set_depth_level(0.25)
    assert model.config.exit_rule.partition(":")[0] == rule
    assert model(IDS).exit_steps.max() <= 4
