"""Losses of early exits, their weights, curricula and layer dropout, against loops over exits and closed forms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from adadepth import (
    EarlyExitForCausalLM,
    EarlyExitForMaskedLM,
    EarlyExitForSequenceClassification,
    EarlyExitForTokenClassification,
)
from adadepth.models.early_exit.losses import dropout_probability, exit_weights
from adadepth.models.shared import causal
from tests.marks_support import keep_one_quick
from tests.unit.models.early_exit.early_exit_support import (
    IDS,
    LAYERS,
    MASK,
    PADDED,
    PIECES,
    build_config,
    build_early_exit,
    check_close,
)

LABELS = IDS.masked_fill(torch.rand(IDS.shape, generator=torch.Generator().manual_seed(5)) < 0.3, -100)
LANGUAGE, TEXTS, TOKENS = EarlyExitForCausalLM, EarlyExitForSequenceClassification, EarlyExitForTokenClassification
MASKED = EarlyExitForMaskedLM


def test_loss_weights_equal_layerskip() -> None:
    """Check e(l) = s sum_{i <= l} i of layers l = 0..L-2 and L - 1 + s sum_{i <= L-2} i of the last, normalised."""
    layers, scale = 6, 0.2
    terms = [scale * sum(range(layer + 1)) for layer in range(layers - 1)]
    terms.append(layers - 1 + scale * sum(range(layers - 1)))
    weights = exit_weights(build_config(layers, exit_weights="layerskip", exit_scale=scale))
    assert weights == pytest.approx([term / sum(terms) for term in terms])


@pytest.mark.parametrize(("fields", "expected"), [
    ({}, [1, 1, 1, 1]),
    ({"exit_scale": 0.5}, [0.5, 0.5, 0.5, 1]),
    ({"exit_weights": "linear"}, [1, 2, 3, 4]),
    ({"exit_weights": "linear", "exits": [2, 4], "exit_scale": 2.0}, [4, 4]),
    ({"exit_weights": "last"}, [0, 0, 0, 1]),
    ({"trains": "exits"}, [1, 1, 1, 0]),
])  # fmt: skip
def test_weights_are_normalised(fields: dict[str, Any], expected: list[float]) -> None:
    assert exit_weights(build_config(4, **fields)) == pytest.approx([weight / sum(expected) for weight in expected])


def test_the_gradual_curriculum_starts_with_the_last_exit() -> None:
    """Check that layer l of L, from 0, has a loss after half of (L - l) / L of the training."""
    config, total = build_config(5, exit_curriculum="gradual"), 100
    for step in range(total + 1):
        weights = exit_weights(config, step, total)
        on = {layer for layer in range(5) if (step - 1) / total >= 0.5 * (5 - layer) / 5} | {4}
        assert {layer for layer, weight in enumerate(weights) if weight} == on
        assert sum(weights) == pytest.approx(1)
    config = build_config(4, exits=[1, 4], exit_curriculum="gradual")
    assert [sum(map(bool, exit_weights(config, step, total))) for step in (50, 51)] == [1, 2]


@pytest.mark.parametrize("growth", ["none", "exponential"])
def test_layer_dropout_grows_with_depth_and_step(growth: str) -> None:
    layers, total = 9, 50
    config = build_config(layers, layer_dropout=0.2, dropout_growth=growth)
    for step in (0, 10, total - 1):
        by_step = 1.0 if growth == "none" else math.exp(step * math.log(2) / (total - 1)) - 1
        for layer in range(layers):
            expected = by_step * (math.exp(layer * math.log(2) / (layers - 1)) - 1) * 0.2
            assert dropout_probability(config, layer + 1, step, total) == pytest.approx(expected)
    assert dropout_probability(config, layers, None, 1) == pytest.approx(0.2)


def build_labels(head: Any) -> Tensor:
    words = LABELS.masked_fill(MASK == 0, -100)
    return {
        LANGUAGE: words,
        MASKED: words,
        TEXTS: torch.tensor([2, 0, 1]),
        TOKENS: torch.where(words < 0, words, words % 3),
    }[head]


def compute_expected(model: Any, weights: list[float], temperature: float) -> tuple[float, float]:
    """Compute weighted means of cross-entropies and of divergences from the last exit, target by target."""
    labels = build_labels(type(model))
    with torch.no_grad():
        logits = [model(PADDED, attention_mask=MASK, exit_rule=f"fixed:{step}").logits for step in range(1, LAYERS + 1)]
    if isinstance(model, EarlyExitForCausalLM):
        logits, labels = [part[:, :-1] for part in logits], labels[:, 1:]
    has_label = labels >= 0
    targets, rows = labels[has_label], [part[has_label].double() for part in logits]
    task = distillation = 0.0
    aim = (rows[-1] / temperature).softmax(dim=-1)
    for weight, row in zip(weights, rows, strict=True):
        for token, target in enumerate(targets):
            task -= weight * float(row[token].log_softmax(dim=-1)[target]) / len(targets)
            difference = (aim[token].log() - (row[token] / temperature).log_softmax(dim=-1)) * aim[token]
            distillation += weight * temperature**2 * float(difference.sum()) / len(targets)
    return task, distillation


@pytest.mark.parametrize(("head", "base"), keep_one_quick(2, [
    (LANGUAGE, "llama"), (TEXTS, "llama"), (TOKENS, "llama"), (MASKED, "roberta"), (MASKED, "albert"),
]))  # fmt: skip
def test_a_loss_equals_a_sum_over_exits(head: Any, base: str) -> None:
    fields = {"exit_weights": "layerskip", "exit_scale": 0.3, "distillation": 0.7, "distillation_temperature": 2.0}
    model = build_early_exit(head, base, num_labels=3, exit_heads="own", **fields)
    for part in model.modules():  # training then computes the same
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    part = "mlm" if head is MASKED else "task"
    task, distillation = compute_expected(model, exit_weights(model.config), 2.0)
    for training in (False, True):
        output = model.train(training)(PADDED, attention_mask=MASK, labels=build_labels(head))
        check_close(output.loss_parts[part], torch.tensor(task))
        check_close(output.loss_parts["distillation"], torch.tensor(0.7 * distillation))
        check_close(output.loss, sum(output.loss_parts.values()))
    counts = model.count_targets({"labels": build_labels(head)})
    halves = [model(PADDED[rows], attention_mask=MASK[rows], labels=build_labels(head)[rows], num_targets=counts).loss
              for rows in (slice(0, 1), slice(1, 3))]  # fmt: skip
    check_close(sum(halves), output.loss)


def test_chunked_logits_change_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    def compute_gradients(numbers: int) -> dict[str, Tensor]:
        monkeypatch.setattr(causal, "_MAX_LOGITS", numbers)
        model, sizes = build_early_exit(distillation=0.5).train(), []
        model.head.lm_head.register_forward_hook(lambda module, inputs, output: sizes.append(output.shape[1]))
        model(IDS, labels=LABELS).loss.backward()
        assert max(sizes) <= numbers // PIECES
        return {name: weight.grad for name, weight in model.named_parameters()}

    whole, parts = compute_gradients(10**9), compute_gradients(3 * PIECES)
    for name, gradient in whole.items():
        check_close(parts[name], gradient)


def test_exits_without_a_loss_in_a_step_have_no_gradient() -> None:
    model = build_early_exit(exit_heads="own", exit_curriculum="rotational", rotation=4).train()
    model.set_step(1, 10)
    model(IDS, labels=LABELS).loss.backward()
    learns = {name.split(".")[1] for name, weight in model.named_parameters() if name.startswith("exits.")
              and weight.grad is not None}  # fmt: skip
    assert learns == {"1"}


def test_frozen_layers_have_no_gradient_and_distillation_uses_the_last_exit() -> None:
    model = build_early_exit(TEXTS, "bert", num_labels=3, exit_heads="own", trains="exits", distillation=1.0).train()
    output = model(PADDED, attention_mask=MASK, labels=build_labels(TEXTS))
    output.loss.backward()
    assert model.training
    assert not model.model.training
    for name, weight in model.named_parameters():
        assert (weight.grad is not None) == name.startswith("exits."), name


def test_a_text_that_skips_layers_equals_the_remaining_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    from adadepth.models.early_exit import modeling

    model = build_early_exit(layer_dropout=0.5, exit_layers=[2]).train()
    skipped = torch.tensor([[False] * 4, [True, False, False, True], [True] * 4])
    monkeypatch.setattr(modeling, "draw_skipped", lambda probabilities, rows, device: skipped)
    with torch.no_grad():
        last_states = model(PADDED, attention_mask=MASK, run_all_steps=True, output_hidden_states=True).hidden_states[
            -1
        ]
        running = model.eval().begin({"input_ids": PADDED, "attention_mask": MASK})
        for row, skips in enumerate(skipped):
            states = running.states
            for layer, skip in enumerate(skips):
                arguments, options = running.inputs[layer]
                states = states if skip else model.layers.get_layer(layer)(states, *arguments, **options)
            check_close(last_states[row], states[row])


def test_distributed_training_runs_layers_that_all_texts_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_early_exit(layer_dropout=1.0).train()  # all texts skip the last layer

    def compute_gradients() -> tuple[Tensor, list[Tensor | None]]:
        model.zero_grad()
        torch.manual_seed(0)
        loss = model(IDS, labels=LABELS).loss
        loss.backward()
        return loss, [weight.grad for weight in model.layers[-1].parameters()]

    alone, skipped_gradients = compute_gradients()
    monkeypatch.setenv("WORLD_SIZE", "2")
    loss, gradients = compute_gradients()
    assert torch.equal(loss, alone)
    assert all(gradient is None for gradient in skipped_gradients)
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


def test_layers_are_skipped_with_the_configured_probability() -> None:
    from adadepth.models.depth.runner import draw_skipped

    torch.manual_seed(0)
    shares = draw_skipped([0.0, 0.3, 1.0], 20_000, torch.device("cpu")).float().mean(dim=0)
    check_close(shares, torch.tensor([0.0, 0.3, 1.0]), 0.02)
