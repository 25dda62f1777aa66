"""The halting distribution against a plain loop in double precision, for any probabilities."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adadepth.halting.distribution import (
    KL_DIRECTIONS,
    TRUNCATIONS,
    geometric_prior,
    halting_distribution,
    halting_kl,
    halting_logits,
    uniform_prior,
)
from tests.parity.ponder_variants import compute_plain_pmf

PROBABILITIES = st.integers(1, 8).flatmap(
    lambda steps: st.lists(
        st.lists(st.floats(0.0, 1.0, width=32), min_size=steps, max_size=steps), min_size=1, max_size=5
    ).map(torch.tensor)
)
LEVELS = st.floats(0.0, 1.0, width=32)


def build_distribution(probabilities, truncation="leftover"):
    return halting_distribution(halting_logits(probabilities), truncation)


def compute_plain_kl(p, q):
    return sum(a * (math.log(a) - math.log(b)) for a, b in zip(p, q, strict=True) if a > 0)


@pytest.mark.parametrize("truncation", TRUNCATIONS)
@given(probabilities=PROBABILITIES)
def test_every_quantity_equals_a_plain_loop(truncation, probabilities):
    distribution = build_distribution(probabilities, truncation)
    for row, lambdas in enumerate(probabilities.tolist()):
        if truncation == "renormalise" and math.prod(1 - p for p in lambdas) > 0.999:
            continue  # the loop divides by almost zero
        reached = [1 - math.prod(1 - p for p in lambdas[:n]) for n in range(len(lambdas))]
        if truncation == "palbert" and any(abs(value - 0.95) < 1e-5 for value in reached):
            continue  # the result depends on rounding
        pmf = compute_plain_pmf(lambdas, truncation)
        cdf = [sum(pmf[: n + 1]) for n in range(len(pmf))]
        assert distribution.pmf[row].tolist() == pytest.approx(pmf, abs=1e-4)
        assert distribution.cdf()[row].tolist() == pytest.approx(cdf, abs=1e-4)
        assert distribution.expected_steps()[row].item() == pytest.approx(
            sum(n * p for n, p in enumerate(pmf, 1)), abs=1e-3
        )
        assert distribution.entropy()[row].item() == pytest.approx(
            -sum(p * math.log(p) for p in pmf if p > 0), abs=1e-3
        )


@pytest.mark.parametrize("direction", KL_DIRECTIONS)
@pytest.mark.parametrize("truncation", ["renormalise", "leftover"])
@given(probabilities=PROBABILITIES)
def test_divergence_equals_a_plain_loop(truncation, direction, probabilities):
    probabilities = probabilities.clamp(1e-4, 1 - 1e-4)
    distribution, steps = build_distribution(probabilities, truncation), probabilities.shape[1]
    priors = [
        (geometric_prior(0.2, steps, truncation), compute_plain_pmf([0.2] * steps, truncation)),
        (uniform_prior(steps), [1 / steps] * steps),
    ]
    for prior, plain_prior in priors:
        assert prior.pmf.tolist() == pytest.approx(plain_prior, abs=1e-6)
        for row, lambdas in enumerate(probabilities.tolist()):
            posterior = compute_plain_pmf(lambdas, truncation)
            pair = (posterior, plain_prior) if direction == "posterior_prior" else (plain_prior, posterior)
            assert halting_kl(distribution, prior, direction)[row].item() == pytest.approx(
                compute_plain_kl(*pair), abs=1e-3
            )
    assert (halting_kl(distribution, distribution, direction) == 0).all()


@given(probabilities=PROBABILITIES, q=LEVELS)
def test_a_quantile_is_the_first_step_above_its_level(probabilities, q):
    distribution = build_distribution(probabilities)
    for cdf, step in zip(distribution.cdf().tolist(), distribution.quantile(q).tolist(), strict=True):
        assert step == next((n for n, value in enumerate(cdf, 1) if value > q), len(cdf))


@pytest.mark.parametrize("truncation", ["renormalise", "leftover"])
@given(probabilities=PROBABILITIES)
def test_gradients_are_those_of_double_precision(probabilities, truncation):
    """Compare with the product form differentiated in float64, away from its singularities."""
    probabilities = probabilities.clamp(0.02, 0.98)
    single, double = (probabilities.to(kind).clone().requires_grad_() for kind in (torch.float32, torch.float64))
    build_distribution(single, truncation).expected_steps().sum().backward()

    reached = torch.cat([torch.ones(len(double), 1, dtype=torch.float64), (1 - double).cumprod(-1)], dim=-1)
    pmf = double * reached[:, :-1]
    if truncation == "leftover":
        pmf = torch.cat([pmf[:, :-1], reached[:, -2:-1]], dim=-1)
    else:
        pmf = pmf / pmf.sum(-1, keepdim=True)
    (pmf * torch.arange(1, pmf.shape[-1] + 1)).sum().backward()
    torch.testing.assert_close(single.grad.double(), double.grad, atol=1e-3, rtol=1e-3)
