"""The gate of early exits: its loss against a plain loop, its training, and exits decided by it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from adadepth.errors import ConfigError
from tests.marks_support import keep_one_quick
from tests.unit.models.early_exit.early_exit_support import (
    HEADS,
    IDS,
    LABELS,
    LAYERS,
    MASK,
    PADDED,
    build_early_exit,
    check_close,
)


def build(head: str, **fields: Any) -> Any:
    model_class, extra_fields, _ = HEADS[head]
    return build_early_exit(model_class, exit_gate=True, **{**extra_fields, **fields})


def collect(model: Any, head: str) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    """Return logits and gates of every exit, and targets, of all units with a target, by a plain loop."""
    logits, gates = [], []
    for exit in range(1, LAYERS + 1):
        output = model(PADDED, attention_mask=MASK, exit_rule=f"fixed:{exit}", run_all_steps=False)
        logits.append(output.logits)
        running = model.begin({"input_ids": PADDED, "attention_mask": MASK})
        states = model.run_to_exit(running, exit)
        if head.startswith("texts"):
            ends = MASK.sum(1) - 1 if head.endswith("decoder") else torch.zeros(3, dtype=torch.int64)
            states = states[torch.arange(3), ends]
        gates.append(states @ model.gate.weight[0] + model.gate.bias)
    labels = HEADS[head][2]
    if head.startswith("texts"):
        return logits, gates, labels
    real = MASK.bool()
    if head == "words":
        keep = real[:, 1:]
        return [part[:, :-1][keep] for part in logits], [part[:, :-1][keep] for part in gates], labels[:, 1:][keep]
    return [part[real] for part in logits], [part[real] for part in gates], labels[real]


@pytest.mark.parametrize("head", keep_one_quick(2, HEADS))
def test_the_gate_learns_whether_early_predictions_are_correct(head: str) -> None:
    model = build(head)
    logits, gates, targets = collect(model, head)
    losses = []
    for exit in range(LAYERS - 1):
        right = (logits[exit].argmax(-1) == targets).double()
        chance = gates[exit].double().sigmoid()
        losses.append(-(right * chance.log() + (1 - right) * (1 - chance).log()).mean())
    labels = HEADS[head][2]
    if head == "words" or head == "tokens":
        labels = torch.where(MASK.bool(), labels, -100)
    output = model(PADDED, attention_mask=MASK, labels=labels)
    check_close(output.loss_parts["gate"], torch.stack(losses).mean())
    output.loss_parts["gate"].backward()
    touched = {name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert touched == {"gate.weight", "gate.bias"}


@pytest.mark.parametrize("head", keep_one_quick(2, HEADS))
def test_units_exit_where_the_gate_predicts_correctness(head: str) -> None:
    model = build(head)
    _, gates, _ = collect(model, head)
    middle = gates[0].median().detach()
    model.gate.bias.data -= middle  # about half of the units exit at the first exit
    table = torch.stack(gates, dim=1) > middle
    table[:, -1] = True
    expected = table.long().argmax(dim=1) + 1
    exits = model(PADDED, attention_mask=MASK, exit_rule="correct:0.5").exit_steps
    if head == "words":
        exits = exits[:, :-1][MASK[:, 1:].bool()]
    assert torch.equal(exits.flatten(), expected)
    assert len(expected.unique()) > 1
    recorded = model(PADDED, attention_mask=MASK, exit_rule="correct:0.5", run_all_steps=True)
    assert recorded.halting_logits is not None


@pytest.mark.parametrize("policy", ["all", "deferred"])
def test_cached_tokens_exit_as_without_a_cache(policy: str) -> None:
    model = build("words")
    model.gate.weight.data *= 5
    whole = model(IDS, exit_rule="correct:0.5")
    first = model(IDS[:, :4], use_cache=True, cache_policy=policy, exit_rule="correct:0.5")
    rest = model(IDS[:, 4:], past_key_values=first.past_key_values, exit_rule="correct:0.5")
    assert torch.equal(torch.cat([first.exit_steps, rest.exit_steps], 1), whole.exit_steps)
    check_close(torch.cat([first.logits, rest.logits], 1), whole.logits)


def test_the_gate_alone_is_trained_on_a_frozen_network() -> None:
    model = build("texts", trains="exits")
    assert [name for name, weight in model.named_parameters() if weight.requires_grad] == ["gate.weight", "gate.bias"]
    model.train()(IDS, labels=LABELS).loss.backward()
    assert model.gate.weight.grad.any()


@pytest.mark.parametrize("fields", [{"num_labels": 1}, {"num_labels": 3, "problem_type": "multi_label_classification"}])
def test_invalid_labels_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="exit_gate=True: needs labels of one class"):
        build("texts", **fields)


def test_a_gate_without_an_early_exit_is_refused() -> None:
    with pytest.raises(ConfigError, match="exit_gate=True: needs at least 2 exits"):
        build("texts", exit_layers=[])
