"""The gates of the supernet: which branches run, with which weights, and their gradients."""

from __future__ import annotations

import math

import pytest
import torch

from adadepth import ParXLConfig, ParXLSupernet
from adadepth.errors import ConfigError
from adadepth.models.par_xl.gates import gate_weights
from tests.unit.models.par_xl_support import ORIGINAL, SMALL, SPREAD, build_network, build_supernet, draw_words

PATH = [0, 1, 2, 1]


def test_initial_gates_are_uniform():
    model = ParXLSupernet(ParXLConfig(**SMALL))
    assert not model.gates.any()
    assert model.gate_probabilities().tolist() == [pytest.approx([1 / 3] * 3)] * 4
    assert model.architecture() == "ssss"
    biases = [model.model.position_bias_u, model.model.position_bias_v]
    assert all(0.1 < bias.std() < 0.6 for bias in biases), "they are initialised like weights"


def test_the_number_of_parameters_is_that_of_the_original():
    config = ParXLConfig(cutoffs=[250, 2500], **ORIGINAL)
    # The original's 3,023,682 include a temperature for each of the six blocks.
    assert sum(weight.numel() for weight in ParXLSupernet(config).parameters()) == 3_023_682 - 6


def test_glorot_weights_use_the_shapes_of_the_original():
    torch.manual_seed(0)
    original = ORIGINAL | {"vocab_size": 5000, "cutoffs": [250, 2500], "num_hidden_layers": 1}
    model = ParXLSupernet(ParXLConfig(initializer="glorot", **original))
    linears = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    assert len(linears) == 4 + 2 + 1 + 1 + 2 * 2, "attention, feed-forward, words, tails' entries, tails"
    # The original has one matrix for queries, keys and values, and one for the frequent words and the tails' entries.
    fused = {"query": 3 * 128, "key_value": 3 * 128, "tables.0": 250 + 2, "tail_entries": 250 + 2}
    for name, linear in linears.items():
        outputs = next((fans for part, fans in fused.items() if name.endswith(part)), linear.out_features)
        bound = math.sqrt(6 / (linear.in_features + outputs))
        assert bound * 0.97 < linear.weight.abs().max() <= bound, name
        assert linear.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1), name
        assert not linear.bias.any(), name
    words = model.get_input_embeddings().weight
    assert 0.0499 < words.abs().max() <= 0.05
    attention = model.model.blocks[0].attention
    biases = torch.stack([attention.position_bias_u, attention.position_bias_v])
    assert biases.std().item() == pytest.approx(math.sqrt(2 / (4 + 128)), rel=0.15)


@pytest.mark.parametrize("changes", [{}, ORIGINAL, {"branch_norm": "paper"}, {"cutoffs": [9, 30]}])
def test_every_parameter_has_a_gradient(changes):
    model, ids = build_supernet(**changes).train(), draw_words()
    memory = model(ids).memory
    model(ids, memory=memory, targets=ids).loss.backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []
    assert model.gates.grad.abs().min() > 0 or changes.get("branch_norm") == "paper"


@pytest.mark.parametrize(
    ("hidden", "output", "dropped"), [(0.5, 0.0, 0.0), (0.0, 0.5, 0.5), (0.3, None, 0.3), (0.3, 0.5, 0.5)], ids=str
)
def test_dropout_acts_before_the_output_layer(hidden, output, dropped):
    """Check that a share of the entries of the last state is zero and the others are scaled up."""
    model = build_network(hidden_dropout_prob=hidden, output_dropout_prob=output).train()
    torch.manual_seed(0)
    stack = model.model(draw_words(rows=20, length=20), output_hidden_states=True)
    mask = stack.last_hidden_state != 0
    assert 1 - mask.float().mean().item() == pytest.approx(dropped, abs=0.02)
    rounded = round(dropped * 2**16) / 2**16  # precision of the random masks
    torch.testing.assert_close(stack.last_hidden_state[mask], stack.hidden_states[-1][mask] / (1 - rounded))


@pytest.mark.parametrize("padded", [False, True])
def test_composed_attention_in_training_equals_eager_attention(padded):
    """Compare the composed attention of a CPU with gradients, which sums in another order."""
    ids, results = draw_words(), []
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    for name in ("sdpa", "eager"):
        model = build_network()
        model.set_attn_implementation(name)
        loss = model(ids, attention_mask=mask if padded else None, targets=ids).loss
        results.append([loss, *torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)])
    for composed, eager in zip(*results, strict=True):
        torch.testing.assert_close(composed, eager, rtol=1e-4, atol=1e-6)


def test_evaluation_has_no_noise():
    model, ids = build_supernet(straight_through=True, gate_path="sampled"), draw_words()
    logits = []
    for step in (0, 7):
        model.set_step(step, 10)
        logits.append(model(ids).logits)
    assert torch.equal(*logits)
    assert torch.equal(logits[0], model(ids, gates="soft").logits)
    assert not torch.equal(logits[0], model(ids, gates="noisy").logits)


def test_training_mixes_with_the_noise_of_its_step():
    model, ids = build_supernet().train(), draw_words()
    model.set_step(3, 10)
    noisy = model(ids, targets=ids)
    assert torch.equal(noisy.loss, model(ids, targets=ids).loss), "micro-batches of an update share the noise"
    assert torch.equal(noisy.loss, model(ids, targets=ids, gates="noisy").loss)
    model.set_step(4, 10)
    assert not torch.equal(noisy.loss, model(ids, targets=ids).loss)


def test_noise_depends_on_seed_and_step_alone():
    def draw_noise(step, seed=0, disturbance=0):
        torch.manual_seed(disturbance)
        model = build_supernet(gate_seed=seed)
        for before in range(disturbance):
            model.set_step(before, 10)
        model.set_step(step, 10)
        return model._noise

    assert torch.equal(draw_noise(5), draw_noise(5, disturbance=3))
    other_noises = [draw_noise(6), draw_noise(5, seed=1), draw_noise(2**33 + 5), draw_noise(5, seed=2**33)]
    assert not any(torch.equal(draw_noise(5), other) for other in other_noises)


def test_set_step_sets_the_temperature():
    model = build_supernet(tau_start=2.0, tau_end=0.5, tau_schedule="linear")
    assert model.temperature == 2.0
    temperatures = []
    for step in range(4):
        model.set_step(step, 4)
        temperatures.append(model.temperature)
    assert temperatures == pytest.approx([2.0, 1.5, 1.0, 0.5])


def record_branches(model):
    """Record block and branch of every branch that runs from now on."""
    calls = []
    for number, block in enumerate(model.model.blocks):
        for name in ("attention", "feed_forward"):
            branch = getattr(block, name)
            branch.register_forward_hook(lambda *_, number=number, name=name: calls.append((number, name)))
    return calls


@pytest.mark.parametrize("gates", ["argmax", PATH, (2, 2, 2, 2)])
def test_a_path_runs_one_branch_per_block(gates):
    model = build_supernet(gates=[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    calls = record_branches(model)
    trace = model(draw_words(), gates=gates).trace
    path = PATH if gates == "argmax" else list(gates)
    expected = [(block, ("attention", "feed_forward")[o]) for block, o in enumerate(path) if o != 2]
    assert calls == expected
    one_hot = torch.nn.functional.one_hot(torch.tensor(path), 3)
    assert torch.equal(trace.operations.weights, one_hot.float())
    assert torch.equal(trace.operations.executed, one_hot.bool())
    assert trace.updates.tolist() == [len(expected)]
    assert trace.execution.steps == len(expected)
    assert model.architecture() == "sf-f"


def test_the_trace_of_a_mix_contains_all_branches():
    model, ids = build_supernet().train(), draw_words(rows=3, length=5)
    model.set_step(1, 4)
    calls = record_branches(model)
    first = model(ids)
    trace = model(ids, memory=first.memory[:, :, 1:]).trace
    weights = gate_weights(model.gates, model.temperature, model._noise)
    assert len(calls) == 2 * 2 * 4
    torch.testing.assert_close(trace.operations.weights, weights.detach())
    assert not trace.operations.weights.requires_grad
    assert trace.operations.executed.all()
    assert trace.operations.executed.shape == (4, 3)
    assert trace.updates.item() == pytest.approx(4 - weights[:, 2].sum().item())
    assert (trace.unit, trace.max_updates, trace.execution.steps, trace.execution.width) == ("architecture", 4, 4, 5)
    assert trace.execution.tokens.tolist() == [5, 5, 5]
    assert trace.valid.tolist() == [True]
    assert (first.trace.execution.memory_length, trace.execution.memory_length) == (0, 4)


def test_the_trace_of_a_fixed_network_contains_its_branches():
    trace = build_network("sf--")(draw_words(rows=3, length=5)).trace
    assert trace.operations.weights.argmax(-1).tolist() == [0, 1, 2, 2]
    assert trace.operations.executed.sum().item() == 4
    assert (trace.updates.item(), trace.execution.steps, trace.max_updates) == (2.0, 2, 4)


def compute_slopes(model, ids, weights, mixes_of):
    """Return the derivative of the likelihood by weights that are detached from the gates."""
    weights = weights.detach().clone().requires_grad_()
    state = model.model(ids, mixes=mixes_of(weights)).last_hidden_state
    loss = model.head(state.flatten(0, 1), ids.flatten()).mean()
    return torch.autograd.grad(loss, weights)[0]


@pytest.mark.parametrize("changes", [{}, {"branch_norm": "paper"}], ids=["per branch", "paper"])
def test_a_sampled_path_has_the_gradient_of_the_plain_formula(changes):
    """Check dL/da_k = dL/df p_o (1[k = o] - p_k) / tau for the executed operation o with factor f."""
    model, ids = build_supernet(gate_path="sampled", tau_start=0.8, **changes).double().train(), draw_words(length=5)
    model.set_step(0, 10)
    calls = record_branches(model)
    outputs = model(ids, targets=ids)
    outputs.loss.backward()
    path = model._path
    assert len(calls) == sum(operation != 2 for operation in path)
    assert outputs.trace.operations.weights.argmax(-1).tolist() == path
    assert torch.equal(outputs.loss, model(ids, targets=ids, gates=path).loss), "the factors are exactly one"
    slopes = compute_slopes(model, ids, torch.ones(4, 1), lambda f: [{o: f[block]} for block, o in enumerate(path)])
    soft = ((model.gates + model._noise) / 0.8).softmax(-1).detach()
    hot = torch.nn.functional.one_hot(torch.tensor(path), 3)
    factor = (soft * hot).sum(-1, keepdim=True)
    expected = slopes * factor * (hot - soft) / 0.8
    assert len(set(path)) > 1
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(model.gates.grad, expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("hard", [False, True])
def test_a_mix_has_the_gradient_of_the_plain_formula(hard):
    """Check dL/da_k = sum_j dL/dw_j p_j (1[k = j] - p_k) / tau, with dL/dw at one-hot weights if straight-through."""
    model, ids = build_supernet(straight_through=hard).double().train(), draw_words(length=5)
    model.set_step(2, 5)
    outputs = model(ids, targets=ids)
    outputs.loss.backward()
    tau = model.temperature
    soft = ((model.gates + model._noise) / tau).softmax(-1).detach()
    used = torch.nn.functional.one_hot(soft.argmax(-1), 3) if hard else soft
    slopes = compute_slopes(model, ids, used.double(), lambda weights: [dict(enumerate(row)) for row in weights])
    expected = soft * (slopes - (slopes * soft).sum(-1, keepdim=True)) / tau
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(model.gates.grad, expected, atol=1e-6, rtol=1e-4)


def test_sampled_paths_follow_the_gates():
    model = build_supernet(gate_path="sampled")
    seen = torch.zeros(4, 3)
    for step in range(600):
        model.set_step(step, 600)
        seen += torch.nn.functional.one_hot(torch.tensor(model._path), 3)
    torch.testing.assert_close(seen / 600, model.gate_probabilities().detach(), atol=0.08, rtol=0)


def test_the_expected_cost_is_a_part_of_the_loss():
    model, ids = build_supernet(latency_weight=0.5, operation_costs=[3.0, 2.0, 0.0]).train(), draw_words()
    targets = ids.clone()
    targets[0, :4] = -100
    outputs = model(ids, targets=targets)
    probabilities = torch.tensor(SPREAD).softmax(-1)
    cost = (probabilities @ torch.tensor([3.0, 2.0, 0.0])).sum().item() / (3 + 2 + 3 + 2)
    assert outputs.loss_parts["latency"].item() == pytest.approx(0.5 * cost, rel=1e-5)
    assert outputs.loss.item() == pytest.approx(sum(part.item() for part in outputs.loss_parts.values()))
    counts = model.count_targets({"targets": targets})
    assert {name: int(count) for name, count in counts.items()} == {"lm": 20, "latency": 20}
    halved = model(ids, targets=targets, num_targets={name: torch.tensor(40.0) for name in counts})
    assert halved.loss.item() == pytest.approx(outputs.loss.item() / 2, rel=1e-5)


def test_without_a_cost_weight_the_loss_is_the_likelihood():
    model, ids = build_supernet(), draw_words()
    assert set(model(ids, targets=ids).loss_parts) == set(model.count_targets({"targets": ids})) == {"lm"}


def test_a_batch_without_targets_has_a_loss_of_zero():
    model, ids = build_supernet(cutoffs=[9, 30]).train(), draw_words()
    outputs = model(ids, targets=torch.full_like(ids, -100))
    assert outputs.loss.item() == 0.0
    assert outputs.token_losses.shape == (0,)
    outputs.loss.backward()
    assert model.gates.grad.isfinite().all()


@pytest.mark.parametrize(
    ("gates", "message"),
    [
        ("sotf", r"gates='sotf' must be one of soft, argmax, noisy, or a path \(did you mean 'soft'\?\)"),
        ([0, 1], r"gates=\[0, 1\]: must be 4 operation numbers, each 0, 1 or 2"),
        ([0, 1, 2, 3], r"gates=\[0, 1, 2, 3\]: must be 4 operation numbers"),
    ],
)
def test_invalid_gates_are_refused(gates, message):
    with pytest.raises(ConfigError, match=message):
        build_supernet()(draw_words(), gates=gates)
