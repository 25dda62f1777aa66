"""Laws of the halting distribution, for any probabilities."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adadepth.halting.distribution import KL_DIRECTIONS, halting_distribution, halting_kl, halting_logits

PROBABILITIES = st.integers(1, 8).flatmap(
    lambda steps: st.lists(
        st.lists(st.floats(0.0, 1.0, width=32), min_size=steps, max_size=steps), min_size=1, max_size=5
    ).map(torch.tensor)
)
PROPER = st.sampled_from(["renormalise", "leftover"])
LEVELS = st.floats(0.0, 1.0, width=32)


def distribution(probabilities, truncation="leftover"):
    return halting_distribution(halting_logits(probabilities), truncation)


@given(probabilities=PROBABILITIES, truncation=PROPER)
def test_sums_to_one(probabilities, truncation):
    pmf = distribution(probabilities, truncation).pmf
    torch.testing.assert_close(pmf.sum(-1), torch.ones(len(pmf)), atol=1e-5, rtol=0)


@given(probabilities=PROBABILITIES)
def test_what_is_missing_is_the_leftover(probabilities):
    missing = 1 - distribution(probabilities, "none").pmf.double().sum(-1)
    torch.testing.assert_close(missing, (1 - probabilities.double()).prod(-1), atol=1e-5, rtol=0)


@given(probabilities=PROBABILITIES)
def test_renormalising_conditions_on_halting_in_time(probabilities):
    raw = distribution(probabilities, "none").pmf
    total = raw.sum(-1, keepdim=True)
    kept = (total > 1e-3).squeeze(-1)
    torch.testing.assert_close(
        distribution(probabilities, "renormalise").pmf[kept], (raw / total)[kept], atol=1e-4, rtol=1e-4
    )


@given(probabilities=PROBABILITIES, truncation=PROPER)
def test_expected_steps_is_the_sum_of_the_survivors(probabilities, truncation):
    found = distribution(probabilities, truncation)
    # E[X] = sum_{n >= 0} P(X > n), by another way than the definition.
    survivors = 1 + (1 - found.cdf()[..., :-1]).sum(-1)
    torch.testing.assert_close(found.expected_steps(), survivors, atol=1e-4, rtol=0)


@given(probabilities=PROBABILITIES, truncation=PROPER, direction=st.sampled_from(KL_DIRECTIONS))
def test_divergence_is_nonnegative_and_zero_from_itself(probabilities, truncation, direction):
    found = distribution(probabilities, truncation)
    other = distribution(probabilities.flip(0), truncation)
    assert (halting_kl(found, other, direction) >= -1e-5).all()
    assert (halting_kl(found, found, direction) == 0).all()


@given(probabilities=PROBABILITIES, q=LEVELS)
def test_a_quantile_is_the_first_step_above_its_level(probabilities, q):
    found = distribution(probabilities)
    for cdf, step in zip(found.cdf().tolist(), found.quantile(q).tolist(), strict=True):
        assert step == next((n for n, value in enumerate(cdf, 1) if value > q), len(cdf))


@given(probabilities=PROBABILITIES, levels=st.tuples(LEVELS, LEVELS))
def test_quantiles_rise_with_their_level(probabilities, levels):
    low, high = sorted(levels)
    found = distribution(probabilities)
    assert (found.quantile(low) <= found.quantile(high)).all()


@pytest.mark.parametrize("truncation", ["renormalise", "leftover"])
@given(probabilities=PROBABILITIES)
def test_gradients_are_those_of_double_precision(probabilities, truncation):
    """Against the product form differentiated in float64, away from its singularities."""
    probabilities = probabilities.clamp(0.02, 0.98)
    single, double = (probabilities.to(kind).clone().requires_grad_() for kind in (torch.float32, torch.float64))
    distribution(single, truncation).expected_steps().sum().backward()

    reached = torch.cat([torch.ones(len(double), 1, dtype=torch.float64), (1 - double).cumprod(-1)], dim=-1)
    pmf = double * reached[:, :-1]
    if truncation == "leftover":
        pmf = torch.cat([pmf[:, :-1], reached[:, -2:-1]], dim=-1)
    else:
        pmf = pmf / pmf.sum(-1, keepdim=True)
    (pmf * torch.arange(1, pmf.shape[-1] + 1)).sum().backward()
    torch.testing.assert_close(single.grad.double(), double.grad, atol=1e-3, rtol=1e-3)
