"""Properties of the gates, for any logits and temperatures."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adadepth.models.par_xl.gates import SCHEDULES, gate_temperature, gate_weights, gumbel_noise, sample_path

LOGITS = st.lists(st.lists(st.floats(-30.0, 30.0, width=32), min_size=3, max_size=3), min_size=1, max_size=6).map(
    torch.tensor
)
TEMPERATURES = st.floats(0.01, 10.0)
SEEDS = st.integers(0, 2**31)


def draw_noise(logits, seed):
    return gumbel_noise(logits.shape, torch.Generator().manual_seed(seed))


@given(logits=LOGITS, temperature=TEMPERATURES, seed=SEEDS, hard=st.booleans())
def test_rows_sum_to_one_and_gradients_are_finite(logits, temperature, seed, hard):
    logits.requires_grad_()
    weights = gate_weights(logits, temperature, draw_noise(logits, seed), hard)
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(logits)), atol=1e-5, rtol=0)
    assert ((weights >= 0) & (weights <= 1)).all()
    (weights * torch.tensor([1.0, -1.0, 3.0])).sum().backward()
    assert logits.grad.isfinite().all()
    # Adding a constant to all logits of a block changes nothing.
    torch.testing.assert_close(logits.grad.sum(-1), torch.zeros(len(logits)), atol=1e-3, rtol=0)


@given(logits=LOGITS, seed=SEEDS)
def test_straight_through_is_one_hot_at_the_sampled_path(logits, seed):
    weights = gate_weights(logits, 0.5, draw_noise(logits, seed), straight_through=True)
    path = sample_path(logits, torch.Generator().manual_seed(seed))
    assert weights.sum(-1).tolist() == weights.amax(-1).tolist() == [1.0] * len(logits)
    assert weights.gather(1, torch.tensor(path).unsqueeze(1)).flatten().tolist() == [1.0] * len(logits)


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(steps=st.integers(2, 50), start=TEMPERATURES, end=TEMPERATURES)
def test_the_temperature_is_monotonic(schedule, steps, start, end):
    path = [gate_temperature(step, steps, start, end, schedule) for step in range(steps)]
    assert (path[0], path[-1]) == (start, end)
    assert path == pytest.approx(sorted(path, reverse=start > end), rel=1e-12)
