"""Properties of the halting arithmetic, for any probabilities."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adadepth.config.choices import CapRemainder, StateRule
from adadepth.halting.act import act_step, init_act, update_result, update_stream
from tests.marks_support import keep_one_quick

PROBABILITIES = st.lists(st.lists(st.floats(0.0, 1.0, width=32), min_size=5, max_size=5), min_size=1, max_size=7).map(
    lambda rows: torch.tensor(rows, dtype=torch.float32)
)


def roll(probabilities, epsilon=0.01, cap="reference", valid=None):
    """Run the arithmetic over (tokens, steps); returns the final sums and the weights (tokens, steps)."""
    probabilities = probabilities.unsqueeze(0)
    valid = torch.ones(probabilities.shape[:2], dtype=torch.bool) if valid is None else valid
    state, weights, steps = init_act(valid), [], probabilities.shape[-1]
    for step in range(steps):
        state, weight = act_step(
            state,
            probabilities[..., step],
            threshold=1.0 - epsilon,
            is_last=step == steps - 1,
            cap_remainder=cap,
        )
        weights.append(weight)
    return state, torch.stack(weights, dim=-1)


def compute_by_definition(row, epsilon, cap):
    """Compute updates, remainder and weights of one token from the definition."""
    total, weights = 0.0, [0.0] * len(row)
    for step, p in enumerate(row):
        last = step == len(row) - 1
        if total + p > 1.0 - epsilon or (last and cap == "forced"):
            weights[step] = 1.0 - total
            return step + 1, 1.0 - total, weights
        weights[step], total = p, total + p
    return len(row), (1.0 - total if cap == "penalty" else 0.0), weights


@pytest.mark.parametrize("cap", CapRemainder)
@given(probabilities=PROBABILITIES)
def test_equals_the_definition(probabilities, cap):
    # Sums of the definition in float64 cross the threshold where float32 sums do, except within rounding of it.
    margin = (probabilities.double().cumsum(-1) - 0.99).abs().min()
    state, weights = roll(probabilities, cap=cap)
    if margin < 1e-5:
        return
    for token, row in enumerate(probabilities.tolist()):
        updates, remainder, expected = compute_by_definition(row, 0.01, cap)
        assert state.updates[0, token] == updates
        assert state.remainders[0, token].item() == pytest.approx(remainder, abs=1e-5)
        assert weights[0, token].tolist() == pytest.approx(expected, abs=1e-5)


@given(probabilities=PROBABILITIES, epsilons=st.tuples(st.floats(0.001, 0.9), st.floats(0.001, 0.9)))
def test_a_larger_epsilon_never_increases_updates(probabilities, epsilons):
    small, large = sorted(epsilons)
    assert (roll(probabilities, large)[0].updates <= roll(probabilities, small)[0].updates).all()


@given(probabilities=PROBABILITIES)
def test_padding_starts_halted_and_stays_halted(probabilities):
    valid = torch.zeros(1, probabilities.shape[0], dtype=torch.bool)
    state, weights = roll(probabilities, valid=valid)
    assert not (state.updates.any())
    assert not (state.remainders.any())
    assert not (weights.any())


def test_capped_tokens_have_a_gradient_except_in_the_reference():
    for cap, pushed in (("reference", False), ("penalty", True), ("forced", True)):
        probabilities = torch.full((1, 3), 0.1, requires_grad=True)
        state, _ = roll(probabilities, cap=cap)
        cost = (state.updates + state.remainders).sum()
        gradient = torch.autograd.grad(cost, probabilities, allow_unused=True)[0]
        assert (gradient is not None and bool(gradient.any())) == pushed, cap


def test_remainder_has_equal_gradients_for_earlier_probabilities():
    probabilities = torch.tensor([[0.3, 0.4, 0.9]], requires_grad=True)
    state, _ = roll(probabilities)
    gradient = torch.autograd.grad(state.remainders.sum(), probabilities)[0]
    torch.testing.assert_close(gradient, torch.tensor([[-1.0, -1.0, 0.0]]))


@given(probabilities=PROBABILITIES, seed=st.integers(0, 1000))
def test_single_stream_unrolls_to_a_sum(probabilities, seed):
    """Compare with x_final = sum_n w_n prod_{m>n}(1 - w_m) y_n + prod_m (1 - w_m) x_0 for constant outputs."""
    generator = torch.Generator().manual_seed(seed)
    tokens, steps = probabilities.shape
    outputs = torch.randn(steps, 1, tokens, 3, generator=generator)
    first = torch.randn(1, tokens, 3, generator=generator)
    _, weights = roll(probabilities)
    state = first
    for step in range(steps):
        state = update_stream("single", state, outputs[step], weights[..., step], weights[..., step] > 0)
    w = weights[0].double()
    expected = (1 - w).prod(-1, keepdim=True) * first[0].double()
    for step in range(steps):
        expected += (w[:, step] * (1 - w[:, step + 1 :]).prod(-1)).unsqueeze(-1) * outputs[step, 0].double()
    torch.testing.assert_close(state[0].double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("rule", keep_one_quick(2, StateRule))
@given(probabilities=PROBABILITIES)
def test_which_rules_freeze_a_halted_state(rule, probabilities):
    state, halted = torch.randn(1, 1, 4), torch.zeros(1, 1)
    after = update_stream(rule, state, torch.randn(1, 1, 4), halted, halted > 0)
    assert torch.equal(after, state) == (rule in ("single", "graves"))


def test_weighted_sum_is_graves_equation():
    probabilities = torch.tensor([[0.25, 0.5, 0.75]])
    outputs = torch.tensor([1.0, 10.0, 100.0])
    _, weights = roll(probabilities, cap="forced")
    result = torch.zeros(1, 1, 1)
    for step in range(3):
        result = update_result("graves", result, outputs[step].view(1, 1, 1), weights[..., step])
    assert result.item() == pytest.approx(0.25 * 1 + 0.5 * 10 + 0.25 * 100)
