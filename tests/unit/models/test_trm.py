"""Tiny recursive models against a plain loop and published counts, and invariance under slots and exits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from adadepth.errors import CheckpointError, ConfigError, DataError
from adadepth.models.shared.convert import convert_reference_state_dict
from adadepth.models.trm.configuration import TrmConfig
from adadepth.models.trm.modeling import (
    TrmForPuzzles,
    answer_losses,
    block_macs,
    decide_halting,
    stablemax_log_probabilities,
    step_macs,
)
from adadepth.models.trm.network import init_truncated_normal
from tests.marks_support import keep_one_quick
from tests.unit.models.trm_support import CELLS, HEADS, SYMBOLS, WIDTH, build_trm, draw_puzzles

MIXINGS = ["attention", "positions"]
# ---- an independent implementation: one puzzle, loops, no shared code


def apply_plain_norm(states: Tensor, dim: int) -> Tensor:
    return states / (states.square().mean(dim=dim, keepdim=True) + 1e-5).sqrt()


def apply_plain_swiglu(states: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    projected = states @ weights[f"{name}.gate_up_proj.weight"].T
    half = projected.shape[-1] // 2
    return (functional.silu(projected[..., :half]) * projected[..., half:]) @ weights[f"{name}.down_proj.weight"].T


def rotate_plainly(vectors: Tensor) -> Tensor:
    half = vectors.shape[1] // 2
    columns = [torch.zeros(len(vectors))] * (2 * half)
    for pair in range(half):
        angles = torch.arange(len(vectors)) * 10000.0 ** (-pair / half)
        first, second = vectors[:, pair], vectors[:, pair + half]
        columns[pair] = first * angles.cos() - second * angles.sin()
        columns[pair + half] = second * angles.cos() + first * angles.sin()
    return torch.stack(columns, dim=1)


def compute_plain_attention(states: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    size = WIDTH // HEADS
    query, key, value = (states @ weights[f"{name}.qkv_proj.weight"].T).split(WIDTH, dim=1)
    heads = []
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        turned = [rotate_plainly(vectors[:, part]) for vectors in (query, key)]
        scores = turned[0] @ turned[1].T / math.sqrt(size)
        heads.append(scores.softmax(dim=1) @ value[:, part])
    return torch.cat(heads, dim=1) @ weights[f"{name}.o_proj.weight"].T


def run_plain_network(states: Tensor, weights: dict[str, Tensor], mixing: str) -> Tensor:
    for layer in range(2):
        name = f"network.layers.{layer}"
        if mixing == "attention":
            states = apply_plain_norm(states + compute_plain_attention(states, weights, f"{name}.self_attn"), 1)
        else:
            states = apply_plain_norm(states + apply_plain_swiglu(states.T, weights, f"{name}.mlp_t").T, 0)
        states = apply_plain_norm(states + apply_plain_swiglu(states, weights, f"{name}.mlp"), 1)
    return states


def run_plain_step(
    cells: Tensor, answer: Tensor, reasoning: Tensor, weights: dict[str, Tensor], mixing: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y, z, logits and q after a step of one puzzle; T 2, n 3, P 2."""
    kind = torch.cat([weights["prefix.weight"], torch.zeros(1, WIDTH, dtype=torch.float64)])
    embedded = math.sqrt(WIDTH) * torch.cat([kind, weights["embed_tokens.weight"][cells]])
    for cycle in range(2):
        with torch.set_grad_enabled(cycle == 1):
            for _ in range(3):
                reasoning = run_plain_network(reasoning + answer + embedded, weights, mixing)
            answer = run_plain_network(answer + reasoning, weights, mixing)
    logits = answer[2:] @ weights["lm_head.weight"].T
    q = answer[0] @ weights["q_head.weight"][0] + weights["q_head.bias"][0]
    return answer, reasoning, logits, q


def compute_plain_loss(logits: Tensor, q: Tensor, labels: Tensor) -> Tensor:
    total, right = torch.zeros((), dtype=torch.float64), True
    labelled = [cell for cell in range(CELLS) if labels[cell] >= 0]
    for cell in labelled:
        scores = torch.stack([value + 1 if value >= 0 else 1 / (1 - value) for value in logits[cell]])
        total = total - (scores[labels[cell]] / scores.sum()).log() / len(labelled)
        right = right and int(logits[cell].argmax()) == int(labels[cell])
    return total + 0.5 * functional.binary_cross_entropy_with_logits(q, q.new_tensor(float(right)))


@pytest.mark.parametrize("mixing", keep_one_quick(2, MIXINGS))
def test_training_in_slots_equals_a_plain_loop(mixing: str) -> None:
    """Compare states, loss and gradients of every update; a slot is refilled after its puzzle has halted."""
    model, rows = build_trm(mixing=mixing).double().train(), 3  # in float32 rounding errors grow from cycle to cycle
    weights = dict(model.named_parameters())
    slots: list[Any] = [None] * rows
    carry: dict[str, Tensor] = {}
    replaced = 0
    for update in range(5):
        cells, labels = draw_puzzles(rows, seed=update)
        for row in range(rows):
            if slots[row] is None:
                shape = (2 + CELLS, WIDTH)
                starts = (model.answer_init.expand(shape), model.reasoning_init.expand(shape))
                slots[row] = [cells[row], labels[row], *starts, 0]
        losses = []
        for row, (slot_cells, target, answer, reasoning, steps) in enumerate(slots):
            answer, reasoning, logits, q = run_plain_step(slot_cells, answer, reasoning, weights, mixing)
            losses.append(compute_plain_loss(logits, q, target))
            halts = steps + 1 >= 4 or float(q.detach()) > 0
            slots[row] = None if halts else [slot_cells, target, answer.detach(), reasoning.detach(), steps + 1]
            replaced += halts
        expected = torch.stack(losses).mean()
        gradients = torch.autograd.grad(expected, list(weights.values()), allow_unused=True)

        output = model(input_ids=cells, labels=labels, carry=carry)
        assert output.loss is not None
        actual = torch.autograd.grad(output.loss, list(weights.values()), allow_unused=True)
        carry = output.carry
        torch.testing.assert_close(output.loss, expected.float())
        assert carry["halted"].tolist() == [state is None for state in slots]
        for row, state in enumerate(slots):
            if state is not None:
                torch.testing.assert_close(carry["answer"][row], state[2], atol=1e-5, rtol=1e-5)
        for name, target, gradient in zip(weights, gradients, actual, strict=True):
            assert (target is None) == (gradient is None), name
            if target is not None:
                torch.testing.assert_close(gradient, target, atol=1e-5, rtol=1e-3, msg=f"gradient of {name}")
    assert 0 < replaced < 15, "some slots must be refilled, but not all of them in every step"


def test_patience_is_that_of_the_whole_answer() -> None:
    model = build_trm(num_steps=6).eval()
    cells, _ = draw_puzzles(8)
    with torch.no_grad():
        output = model(input_ids=cells, exit_rule="patience:2", run_all_steps=True)
    answers = output.step_logits.argmax(dim=-1)
    for row in range(8):
        agreements, expected = 0, 6
        for step in range(1, 6):
            agreements = agreements + 1 if torch.equal(answers[row, step], answers[row, step - 1]) else 0
            if agreements >= 2:
                expected = step + 1
                break
        assert int(output.exit_steps[row]) == expected


def test_the_loss_without_slots_is_the_mean_over_the_steps() -> None:
    model = build_trm().eval()
    cells, labels = draw_puzzles(4)
    output = model(input_ids=cells, labels=labels)
    carry: dict[str, Tensor] = {}
    losses = []
    for _ in range(4):
        carry = carry and {**carry, "halted": torch.zeros(4, dtype=torch.bool)}
        step = model(input_ids=cells, labels=labels, carry=carry)
        losses.append(step.loss)
        carry = step.carry
    torch.testing.assert_close(output.loss, torch.stack(losses).mean())
    counts = {name: 2 * count for name, count in model.count_targets({"labels": labels}).items()}
    halved = model(input_ids=cells, labels=labels, num_targets=counts)
    torch.testing.assert_close(2 * halved.loss, output.loss)


PUBLISHED = {
    "sudoku": ({}, 6_828_034),
    "sudoku mlp_t": ({"mixing": "positions"}, 5_028_866),
    "maze": ({"vocab_size": 6, "cells": 900}, 6_822_914),
    "maze mlp_t": ({"vocab_size": 6, "cells": 900, "mixing": "positions"}, 18_795_522),
    "arc": ({"vocab_size": 12, "cells": 900}, 6_829_058),
    "arc mlp_t": ({"vocab_size": 12, "cells": 900, "mixing": "positions"}, 18_801_666),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_numbers_of_parameters_are_published_ones(name: str) -> None:
    """Count without the vectors of puzzle kinds, which the published code stores as a buffer."""
    fields, expected = PUBLISHED[name]
    with torch.device("meta"):
        model = TrmForPuzzles(TrmConfig(**fields))
    assert sum(weight.numel() for key, weight in model.named_parameters() if key != "prefix.weight") == expected


def test_macs_are_published_ones() -> None:
    assert block_macs(TrmConfig()) / 1e6 == pytest.approx(340.2, abs=0.05)
    assert step_macs(TrmConfig()) / 1e9 == pytest.approx(14.3, abs=0.05)


def count_stored(model: TrmForPuzzles, rows: int) -> int:
    """Count the activations that a training step stores for its backward pass, which is then run."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    stored: dict[int, Tensor] = {}

    def keep(values: Tensor) -> Tensor:
        stored[values.untyped_storage().data_ptr()] = values
        return values

    cells, labels = draw_puzzles(rows)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda values: values):
        loss = model(cells, labels, carry={}).loss
    loss.backward()
    return sum(tensor.untyped_storage().nbytes() // 4 for pointer, tensor in stored.items() if pointer not in weights)


@pytest.mark.parametrize("mixing", MIXINGS)
def test_least_activations_is_a_lower_bound(mixing: str) -> None:
    model = build_trm(mixing=mixing).train()
    least = model.least_activations([CELLS] * 40, recomputed=False)
    assert 0.2 * count_stored(model, 40) < sum(least.values()) < count_stored(model, 40)


@pytest.mark.parametrize("mixing", MIXINGS)
def test_checkpointing_changes_no_gradient(mixing: str) -> None:
    model = build_trm(mixing=mixing).train()
    num_stored = count_stored(model, 40)
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    assert count_stored(model, 40) < 0.5 * num_stored
    for name, gradient in expected.items():
        torch.testing.assert_close(dict(model.named_parameters())[name].grad, gradient, msg=name)


def test_stablemax_equals_hand_computed_values() -> None:
    probabilities = stablemax_log_probabilities(torch.tensor([3.0, -3.0, 0.0])).exp()
    torch.testing.assert_close(probabilities, torch.tensor([4 / 5.25, 0.25 / 5.25, 1 / 5.25], dtype=torch.float64))
    for value in (0.0, 1.0, -1.0, 1e30, -1e30):
        logits = torch.tensor([value, 0.5], requires_grad=True)
        (gradient,) = torch.autograd.grad(stablemax_log_probabilities(logits).sum(), logits)
        assert gradient.isfinite().all(), value


def test_cells_without_a_label_do_not_count() -> None:
    logits = torch.randn(2, CELLS, SYMBOLS)
    labels = torch.randint(0, SYMBOLS, (2, CELLS))
    labels[1] = -100
    labels[0, 3:] = -100
    losses = answer_losses(logits, labels, "softmax")
    assert float(losses[0]) == pytest.approx(float(functional.cross_entropy(logits[0, :3], labels[0, :3])))
    assert float(losses[1]) == 0.0


def test_exploration_only_delays_halting() -> None:
    """Check that a halting puzzle continues after step s with probability e (N - s) / (N - 1), never after N."""
    config = TrmConfig(num_steps=16, exploration=0.1)
    draws = torch.rand(200_000, 2, generator=torch.Generator().manual_seed(0))
    certain = torch.ones(len(draws))
    for step in (1, 5, 15, 16):
        steps = torch.full((len(draws),), step)
        stayed = 1.0 - float(decide_halting(config, steps, certain, draws).float().mean())
        assert stayed == pytest.approx(0.1 * (16 - step) / 15, abs=0.003)
        unsure = decide_halting(config, steps, -certain, draws)
        assert bool(unsure.all()) == (step == 16)
        assert bool(unsure.any()) == (step == 16)


def test_initial_weights_have_the_published_distribution() -> None:
    weight = torch.empty(400, 500)
    init_truncated_normal(weight, 0.3)
    assert float(weight.std()) == pytest.approx(0.3, rel=0.01)
    assert float(weight.abs().max()) <= 2 * 0.3 / 0.8796 + 1e-6
    torch.manual_seed(0)
    model = TrmForPuzzles(TrmConfig(hidden_size=64, num_attention_heads=4, cells=9, intermediate_size=64))
    assert model.q_head.bias.tolist() == [-5.0, -5.0]
    assert not model.q_head.weight.any()
    assert not model.prefix.weight.any()
    assert float(model.answer_init.std()) == pytest.approx(1.0, abs=0.3)
    assert "answer_init" in model.state_dict()
    assert "answer_init" not in dict(model.named_parameters())


@pytest.mark.parametrize("mixing", MIXINGS)
def test_a_published_checkpoint_loads_by_its_names(mixing: str) -> None:
    model = build_trm(mixing=mixing)
    published = {
        "embed_tokens.weight": "embed_tokens.embedding_weight", "prefix.weight": "puzzle_emb.weights",
        "answer_init": "H_init", "reasoning_init": "L_init",
    }  # fmt: skip
    theirs = {
        f"_orig_mod.model.inner.{published.get(name, name.replace('network.', 'L_level.'))}": weight
        for name, weight in model.state_dict().items()
    }
    converted = convert_reference_state_dict("trm", theirs)
    assert converted.keys() == model.state_dict().keys()
    with pytest.raises(CheckpointError, match="not a parameter of the published model"):
        convert_reference_state_dict("trm", {"_orig_mod.model.inner.rotary": torch.zeros(1)})


def test_a_model_is_saved_and_loaded(tmp_path: Any) -> None:
    model = build_trm(num_steps=6).eval()
    model.set_depth_level(0.75)
    model.save_pretrained(tmp_path)
    loaded = TrmForPuzzles.from_pretrained(tmp_path)
    cells, _ = draw_puzzles(3)
    assert loaded.config.exit_rule == "correct:0.75"
    with torch.no_grad():
        torch.testing.assert_close(loaded(input_ids=cells).logits, model(input_ids=cells).logits)


def test_more_steps_than_in_training_are_supported() -> None:
    model = build_trm(num_steps=4).eval()
    cells, _ = draw_puzzles(3)
    with torch.no_grad():
        step_logits = model(input_ids=cells, run_all_steps=True).step_logits
        model.config.num_steps = 7
        more_step_logits = model(input_ids=cells, run_all_steps=True).step_logits
    assert more_step_logits.shape[1] == 7
    torch.testing.assert_close(more_step_logits[:, :4], step_logits)


def test_invalid_inputs_and_settings_are_refused() -> None:
    with pytest.raises(DataError, match=r"input_ids of shape \(2, 8\): must be \(batch, 9\)"):
        build_trm()(input_ids=torch.ones(2, 8, dtype=torch.long))
    with pytest.raises(ConfigError, match="num_attention_heads=5"):
        TrmConfig(hidden_size=16, num_attention_heads=5)
    with pytest.raises(ConfigError, match="needs halting probabilities, which trm does not have"):
        build_trm()(input_ids=draw_puzzles(1)[0], exit_rule="quantile:0.5")
