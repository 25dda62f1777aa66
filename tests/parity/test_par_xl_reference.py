"""The PAR Transformer-XL against the plain loop, with the defaults and with the choices of the original code."""

import math

import pytest
import torch

from adadepth.models.par_xl.modeling import Context
from adadepth.models.par_xl.reference import compute_log_probabilities
from tests.marks_support import keep_one_quick
from tests.parity.par_xl_variants import run_plain_supernet
from tests.unit.models.par_xl_support import ORIGINAL, build_network, build_supernet, draw_words

BLOCKS, HEADS, WIDTH = 4, 2, 16


def run_plain(model, ids, mixes, memory, context=None):
    """Return log-probabilities (B, T, V) and the blocks' inputs after their memory, computed by the plain loop."""
    config = model.config
    weights = {name: weight.double() for name, weight in model.state_dict().items()}
    context = context or Context(config.memory_length, config.clamp_length, config.same_length)
    states, inputs = run_plain_supernet(
        weights,
        ids,
        mixes,
        torch.zeros(BLOCKS, len(ids), 0, WIDTH, dtype=torch.float64) if memory is None else memory.double(),
        heads=HEADS,
        scale=WIDTH // HEADS if config.attention_scale == "linear" else math.sqrt(WIDTH // HEADS),
        relu=config.attention_out_act == "relu",
        norm=config.branch_norm,
        epsilon=config.layer_norm_eps,
        clamp=context.clamp_length,
        window=max(context.memory_length, 1) if context.same_length else None,
    )
    logits = [[compute_log_probabilities(weights, state, config.cutoffs) for state in row] for row in states]
    return torch.stack([torch.stack(row) for row in logits]), inputs


@pytest.mark.parametrize("attention", keep_one_quick(2, ["sdpa", "eager"]))
@pytest.mark.parametrize(
    "changes",
    [
        {},
        ORIGINAL | {"cutoffs": [10, 25]},
        {"branch_norm": "paper", "clamp_length": 2},
        {"same_length": True, "memory_length": 3},
        {"same_length": True, "memory_length": 0},
    ],
    ids=["default", "original", "paper and clamp", "same length", "no memory"],
)
def test_supernet_over_segments_of_several_lengths(changes, attention):
    model = build_supernet(**changes)
    model.set_attn_implementation(attention)
    mixes = model.gate_probabilities().tolist()
    memory = None
    for number, length in enumerate((4, 3, 1, 5)):
        ids = draw_words(length=length, seed=number)
        with torch.no_grad():
            outputs = model(ids, memory=memory)
        logits, inputs = run_plain(model, ids, mixes, memory)
        torch.testing.assert_close(outputs.logits.double(), logits, atol=1e-4, rtol=1e-4)
        remembered = model.config.memory_length
        expected_memory = inputs[:, :, -remembered:] if remembered else inputs[:, :, :0]
        torch.testing.assert_close(outputs.memory.double(), expected_memory, atol=1e-4, rtol=1e-4)
        memory = outputs.memory


@pytest.mark.parametrize("changes", [{}, ORIGINAL, {"branch_norm": "paper"}], ids=["default", "original", "paper"])
def test_noisy_mix_and_argmax(changes):
    model = build_supernet(gate_seed=3, **changes)
    model.set_step(2, 5)
    tau = 1.0 * (0.1 / 1.0) ** (2 / 4)
    noisy = ((model.gates + model._noise) / tau).softmax(-1)
    hard = torch.nn.functional.one_hot(model.gates.argmax(-1), 3)
    assert noisy.amax(-1).min() < 0.99, "the operations must be mixed"
    ids = draw_words(length=5)
    for gates, mixes in (("noisy", noisy), ("argmax", hard)):
        with torch.no_grad():
            outputs = model(ids, gates=gates)
        logits, _ = run_plain(model, ids, mixes.tolist(), None)
        torch.testing.assert_close(outputs.logits.double(), logits, atol=1e-4, rtol=1e-4)


def test_fixed_network_with_another_context_than_configured():
    model = build_network("ssss", clamp_length=None, memory_length=2)
    context = Context(memory_length=6, clamp_length=3, same_length=True)
    memory, full = None, None
    for number in range(3):
        ids = draw_words(length=4, seed=number)
        with torch.no_grad():
            outputs = model(ids, memory=memory, context=context)
        plain_model = _build_supernet(model)
        logits, full = run_plain(plain_model, ids, [[1, 0, 0]] * BLOCKS, memory, context)
        torch.testing.assert_close(outputs.logits.double(), logits, atol=1e-4, rtol=1e-4)
        memory = outputs.memory
        assert memory.shape[2] == min(4 * (number + 1), 6)
    torch.testing.assert_close(memory.double(), full[:, :, -6:], atol=1e-4, rtol=1e-4)


def _build_supernet(network):
    """Build a supernet with the network's weights; weights that the network lacks are arbitrary."""
    model = build_supernet(**{name: getattr(network.config, name) for name in ("memory_length", "clamp_length")})
    model.load_state_dict(network.state_dict(), strict=False)
    return model


def test_losses_are_those_of_the_targets():
    model = build_supernet(cutoffs=[10, 25])
    ids, targets = draw_words(length=6), draw_words(length=6, seed=1)
    targets[0, 2] = targets[1, :3] = -100
    with torch.no_grad():
        outputs = model(ids, targets=targets)
    logits, _ = run_plain(model, ids, model.gate_probabilities().tolist(), None)
    expected = [-float(logits[b, t, targets[b, t]]) for b in range(2) for t in range(6) if targets[b, t] >= 0]
    assert outputs.token_losses.tolist() == pytest.approx(expected, rel=1e-4)
    assert outputs.loss.item() == pytest.approx(sum(expected) / 8, rel=1e-4)
    assert outputs.logits is None
