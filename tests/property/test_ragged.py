"""Ragged execution against dense execution and a loop over tokens, for any depths, padding, batch and precision."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adadepth import AlbertActModel
from adadepth.halting.active_set import take
from adadepth.models.albert_act.ragged import _REPACK_SAVES
from tests.albert_act_support import compute_prescribed_probabilities, prescribe, repack_at_every_halt
from tests.models_support import make_small_config
from tests.parity.act_variants import encode_variant

MAX_UPDATES = 5
# Without influence on the softmax over keys: their true gradient is 0.
NO_GRADIENT = "attention.key.bias"


@pytest.fixture(autouse=True, scope="module")
def _force_repacking():
    with repack_at_every_halt():
        yield


@st.composite
def draw_batches(draw):
    """Draw ids, a mask with padding anywhere (each row has a token), segments, and the depth of each token."""
    rows, length = draw(st.integers(1, 4)), draw(st.integers(1, 7))

    def draw_table(values):
        return torch.tensor(draw(st.lists(values, min_size=rows * length, max_size=rows * length))).view(rows, length)

    mask = draw_table(st.integers(0, 1))
    mask[torch.arange(rows), draw_table(st.integers(0, length - 1))[:, 0]] = 1
    return {
        "input_ids": draw_table(st.integers(1, 119)) * mask,
        "attention_mask": mask,
        "token_type_ids": draw_table(st.integers(0, 1)) * mask,
    }, draw_table(st.integers(1, MAX_UPDATES))


def make_model(depths, **changes):
    torch.manual_seed(0)
    changes = {"num_hidden_layers": MAX_UPDATES, "initializer_range": 0.2} | changes
    model = AlbertActModel(make_small_config(**changes))
    prescribe(model, depths)
    return model


def compute_gradients(model, batch, name):
    """Return outputs and the gradient of a loss that reads states, remainders, probabilities and the pooled token."""
    model.config.execution = name
    model.zero_grad()
    outputs = model(**batch, output_hidden_states=True)
    weights = torch.linspace(-1.0, 1.0, outputs.last_hidden_state.shape[-1])
    loss = (outputs.last_hidden_state * weights * batch["attention_mask"].unsqueeze(-1)).sum()
    loss = loss + outputs.remainders.sum() + outputs.halting_probabilities.square().sum()
    (loss + outputs.pooler_output.square().sum()).backward()
    return outputs, {name: weight.grad.clone() for name, weight in model.named_parameters()}


def check_gradients(actual, expected):
    scale = max(gradient.norm() for gradient in expected.values())
    for name, gradient in expected.items():
        if not name.endswith(NO_GRADIENT):
            # A small gradient is a sum of larger numbers, each rounded to 1.2e-7.
            assert (actual[name] - gradient).norm() <= 1e-5 * gradient.norm() + 5e-7 * scale, name


@given(
    case=draw_batches(),
    rule=st.sampled_from(["single", "graves"]),
    cap=st.sampled_from(["reference", "penalty", "forced"]),
    reads=st.sampled_from(["block_output", "block_input"]),
    attention=st.sampled_from(["sdpa", "eager"]),
    saves=st.sampled_from([0, 3 * 8192, 1e12]),
)
def test_ragged_equals_dense(case, rule, cap, reads, attention, saves):
    batch, depths = case
    model = make_model(depths, state_rule=rule, cap_remainder=cap, halting_input=reads)
    model.set_attn_implementation(attention)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_REPACK_SAVES, "cpu", saves)
        (dense, expected), (ragged, actual) = (compute_gradients(model, batch, name) for name in ("dense", "ragged"))
    assert ragged.updates.equal(dense.updates)
    assert ragged.updates.equal(depths * batch["attention_mask"].float())
    for name in ("last_hidden_state", "remainders", "halting_probabilities", "ponder_cost", "pooler_output"):
        torch.testing.assert_close(getattr(ragged, name), getattr(dense, name), atol=1e-5, rtol=0)
    assert len(ragged.hidden_states) == len(dense.hidden_states)
    for one, other in zip(ragged.hidden_states, dense.hidden_states, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    check_gradients(actual, expected)


@settings(max_examples=10)
@given(case=draw_batches())
def test_ragged_equals_a_loop_over_tokens(case):
    """Compare outputs and gradients token by token with an implementation that only shares parameter names."""
    batch, depths = case
    model = make_model(depths)
    model.config.execution = "ragged"
    outputs = model(**batch)
    weights = torch.linspace(-1.0, 1.0, outputs.last_hidden_state.shape[-1])
    valid = batch["attention_mask"].bool()
    ((outputs.last_hidden_state * weights)[valid].sum() + outputs.remainders.sum()).backward()
    parameters = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
    total = 0.0
    for row, real in enumerate(valid):
        states, updates, remainders, _, _ = encode_variant(
            parameters,
            model.config,
            batch["input_ids"][row, real],
            batch["token_type_ids"][row, real],
            positions=real.nonzero().squeeze(1),
            prescribed=compute_prescribed_probabilities(depths)[row, real].tolist(),
        )
        assert outputs.updates[row, real].tolist() == updates
        torch.testing.assert_close(outputs.last_hidden_state[row, real], states, atol=1e-5, rtol=0)
        total = total + (states * weights).sum() + sum(remainders)
    total.backward()
    read = {name: weight.grad for name, weight in parameters.items() if weight.grad is not None}
    check_gradients({name: weight.grad for name, weight in model.named_parameters()}, read)


@settings(max_examples=15)
@given(case=draw_batches(), precision=st.sampled_from(["bfloat16", "float16", "float64", "autocast"]))
def test_ragged_equals_dense_in_other_precisions(case, precision):
    """Compare prescribed depths, which are equal in any precision; in half precision sums differ by roundings."""
    batch, depths = case
    model = make_model(depths).eval()
    if precision != "autocast":
        model.to(getattr(torch, precision))
    by_execution = {}
    for name in ("dense", "ragged"):
        model.config.execution = name
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            by_execution[name] = model(**batch)
    dense, ragged = by_execution["dense"], by_execution["ragged"]
    assert ragged.updates.equal(dense.updates)
    assert ragged.last_hidden_state.dtype == dense.last_hidden_state.dtype
    assert ragged.remainders.dtype == ragged.halting_probabilities.dtype == torch.float32
    atol = 1e-12 if precision == "float64" else 0.1
    torch.testing.assert_close(ragged.last_hidden_state, dense.last_hidden_state, atol=atol, rtol=0)


@settings(max_examples=15)
@given(case=draw_batches(), scale=st.floats(0.5, 4.0), bias=st.floats(-3.0, 1.0))
def test_ragged_equals_dense_with_computed_probabilities(case, scale, bias):
    """Check that depths are equal unless a sum is within rounding of the threshold; whole sequences halt, too."""
    batch, _ = case
    for scope in ("token", "sequence"):
        torch.manual_seed(0)
        config = make_small_config(num_hidden_layers=MAX_UPDATES, initializer_range=0.2, halting_scope=scope)
        model = AlbertActModel(config).eval()
        with torch.no_grad():
            model.encoder.albert_layer.act.dense.weight.mul_(scale)
            model.encoder.albert_layer.act.dense.bias.fill_(bias)
            dense, ragged = (_with(model, name)(**batch) for name in ("dense", "ragged"))
        if (dense.halting_probabilities.cumsum(-1) - 0.99).abs().min() < 1e-5:
            continue
        assert ragged.updates.equal(dense.updates)
        torch.testing.assert_close(ragged.last_hidden_state, dense.last_hidden_state, atol=1e-5, rtol=0)


def _with(model, name):
    model.config.execution = name
    return model


def test_the_gradient_of_gathering_reaches_its_source():
    values = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    positions = torch.tensor([4, 0, 2])
    assert torch.autograd.gradcheck(lambda x: take(x, positions).square(), values)
    assert torch.autograd.gradgradcheck(lambda x: take(x, positions).pow(3), values)
