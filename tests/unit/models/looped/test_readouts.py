"""Signals that exit rules read of looped models: online and recorded, with their compute, and fitted to a depth."""

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
from tests.marks_support import keep_one_quick
from tests.unit.models.looped.looped_support import IDS, KINDS, LENGTH, OURO, WIDTH, build_looped

RULES = ["kl:0.1", "kl:0.2", "distance:0.7", "acceleration:0.9:1", "acceleration:1.5", "patience:1", "margin:0.1"]


@pytest.mark.parametrize("kind", ["ouro", "huginn", "damped"])
def test_moves_equal_differences_of_states(kind: str) -> None:
    model = build_looped(**KINDS[kind])
    with torch.no_grad():
        output = model(IDS, run_all_steps=True, output_hidden_states=True)
    states = output.hidden_states
    for step in range(1, len(states)):
        before = states[step - 2] if step > 1 else None
        expected = state_moves(states[step], states[step - 1], before)
        torch.testing.assert_close(output.state_moves[:, :, step - 1], expected, equal_nan=True)


@pytest.mark.parametrize("rule", RULES)
def test_online_decisions_equal_those_on_records(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict a few units at a time, whose memories grow with the first of them."""
    monkeypatch.setattr(engine, "ROWS", 4)
    model = build_looped(**OURO)
    with torch.no_grad():
        every, online = model(IDS, run_all_steps=True), model(IDS, exit_rule=rule)
    logits, moves = every.step_logits[...].flatten(0, 1), every.state_moves.flatten(0, 1)
    expected = apply_rule(parse_rule(rule), logits, None, None, moves)
    assert online.exit_steps.flatten().tolist() == expected.tolist()
    assert online.state_moves is None
    assert len(expected.unique()) > 1


def test_moves_of_states_are_recorded() -> None:
    model = build_looped(LoopedForTokenClassification, **OURO, num_labels=3)
    labels = (IDS % 3).masked_fill(IDS % 5 == 0, -100)
    batch = {"attention_mask": torch.ones_like(IDS), "labels": labels}
    recorder = StepRecorder()
    with torch.no_grad():
        output = model(IDS, **batch, run_all_steps=True)
    recorder.add({**batch, "index": torch.arange(3)}, output)
    records = merge([recorder.parts()])
    assert records.state_moves is not None
    torch.testing.assert_close(records.state_moves, output.state_moves[labels.flatten() >= 0], equal_nan=True)
    assert records.state_moves.shape == (len(records), 4, 2)


def test_training_computes_no_moves() -> None:
    model = build_looped(**OURO, objective="mean").train()
    assert model(IDS, labels=IDS).state_moves is None


# ---- Compute


@pytest.mark.parametrize(
    "rule",
    keep_one_quick(
        3, ["fixed:2", "quantile:0.5", "confidence:0.4", "kl:0.3", "distance:0.7", "acceleration:0.9:1", "margin:1"]
    ),
)
def test_macs_of_a_rule_include_its_readouts(rule: str) -> None:
    """Compare with torch's counter, which counts all pairs of tokens (half of them masked), and no lengths.

    The head runs once more at the end, on what was read at the exit.
    """
    parsed = parse_rule(rule)
    gate = "halting" in parsed.needs
    model = build_looped(
        LoopedForSequenceClassification, prelude=1, core=2, coda=1, num_loops=4, num_labels=3, gate=gate
    )
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
    last_readout = WIDTH * 3 if predicts and exit_step < 4 else 0
    assert counter.get_total_flops() == 2 * (macs + pairs - unseen + last_readout)


def test_a_prediction_counts_coda_and_head_of_its_token() -> None:
    model = build_looped(**KINDS["huginn"])
    token, pair = compute_layer_macs(model.config)
    (macs,) = model.reading_work("logits", torch.tensor([LENGTH])).tolist()
    assert macs == token + pair * (LENGTH + 1) / 2 + WIDTH * model.config.vocab_size
    assert model.reading_work("states", torch.tensor([LENGTH])) == 3 * WIDTH
    assert model.reading_work("halting", torch.tensor([LENGTH])) == WIDTH


# ---- Budgets


def mean_loops(model: Any) -> float:
    with torch.no_grad():
        return float(model(IDS).exit_steps.double().mean())


@pytest.mark.parametrize(
    ("configured", "fitted"),
    keep_one_quick(4, [
        (None, "quantile"), ("fixed:2", "quantile"), ("margin:0.3", "margin"), ("confidence:0.3", "confidence"),
        ("entropy:1", "entropy"), ("kl:0.1", "kl"), ("distance:1", "distance"), ("acceleration:1:1", "acceleration"),
    ]),
)  # fmt: skip
def test_the_configured_rule_is_fitted_to_a_mean_number_of_loops(configured: str | None, fitted: str) -> None:
    model = build_looped(**OURO, exit_rule=configured)
    assert model.depth_knob == f"exit_rule {fitted}"
    fit = model.fit_depth(2.5, lambda: mean_loops(model))
    assert model.config.exit_rule.partition(":")[0] == fitted
    assert mean_loops(model) == fit.depth == pytest.approx(2.5, abs=0.15)
    if configured == "acceleration:1:1":
        assert model.config.exit_rule.endswith(":1")


@pytest.mark.parametrize(
    ("head", "fields", "rule"),
    [
        (LoopedForTokenClassification, {"num_labels": 3}, "margin"),
        (LoopedForSequenceClassification, {"num_labels": 1}, "distance"),
        (LoopedForSequenceClassification, {"num_labels": 1, "gate": True}, "quantile"),
    ],
)
def test_without_a_rule_the_supported_one_is_fitted(head: Any, fields: dict[str, Any], rule: str) -> None:
    model = build_looped(head, core=1, **fields)
    model.set_depth_level(0.25)
    assert model.config.exit_rule.partition(":")[0] == rule
    assert model(IDS).exit_steps.max() <= 4
