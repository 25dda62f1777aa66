"""Closed forms, edges and samples of the halting distribution; tests/property compares it with a plain loop."""

from __future__ import annotations

import math

import pytest
import torch

from adadepth.halting.distribution import (
    KL_DIRECTIONS,
    TRUNCATIONS,
    HaltingDistribution,
    geometric_prior,
    halting_distribution,
    halting_kl,
    halting_logits,
    uniform_prior,
)


def build_distribution(probabilities, truncation="leftover"):
    return halting_distribution(halting_logits(torch.tensor(probabilities)), truncation)


def test_the_untruncated_geometric_has_its_textbook_moments():
    prior = geometric_prior(0.3, 200, "none")
    assert prior.expected_steps().item() == pytest.approx(1 / 0.3, abs=1e-4)
    entropy = -(0.3 * math.log(0.3) + 0.7 * math.log(0.7)) / 0.3
    assert prior.entropy().item() == pytest.approx(entropy, abs=1e-4)


@pytest.mark.parametrize("steps", [1, 2, 5, 200])
def test_the_uniform_prior_has_its_closed_forms(steps):
    prior = uniform_prior(steps)
    assert prior.pmf.tolist() == pytest.approx([1 / steps] * steps)
    assert prior.expected_steps().item() == pytest.approx((steps + 1) / 2, rel=1e-5)
    assert prior.entropy().item() == pytest.approx(math.log(steps), abs=1e-5)


@pytest.mark.parametrize("probability", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_a_prior_outside_the_open_interval_is_refused(probability):
    with pytest.raises(ValueError, match=f"probability={probability} "):
        geometric_prior(probability, 5, "leftover")


EDGES = [0.0, 1e-7, 0.5, 1 - 1e-7, 1.0]


@pytest.mark.parametrize("direction", KL_DIRECTIONS)
@pytest.mark.parametrize("truncation", TRUNCATIONS)
def test_certainty_gives_finite_values_and_gradients(truncation, direction):
    rows = torch.cartesian_prod(*[torch.tensor(EDGES)] * 3).requires_grad_()
    distribution = halting_distribution(halting_logits(rows), truncation)
    prior = geometric_prior(0.3, 3, "leftover")
    for value in (
        distribution.pmf,
        distribution.expected_steps(),
        distribution.entropy(),
        halting_kl(distribution, prior, direction),
    ):
        assert value.isfinite().all()
        (gradient,) = torch.autograd.grad(value.square().sum(), rows, retain_graph=True)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinite_logits_mean_certainty(value):
    logits = torch.full((2, 3), value, requires_grad=True)
    distribution = halting_distribution(logits, "leftover")
    expected = [1.0, 0.0, 0.0] if value > 0 else [0.0, 0.0, 1.0]
    torch.testing.assert_close(distribution.pmf, torch.tensor([expected] * 2), atol=1e-30, rtol=0)
    distribution.expected_steps().sum().backward()
    assert logits.grad.isfinite().all()


def test_never_halting_renormalises_to_uniform():
    assert build_distribution([0.0] * 5, "renormalise").pmf.tolist() == pytest.approx([0.2] * 5)


def test_halting_logits_invert_the_sigmoid():
    probabilities = torch.tensor([0.0, 1e-7, 0.2, 1 - 1e-7, 1.0])
    logits = halting_logits(probabilities)
    torch.testing.assert_close(logits.sigmoid(), probabilities, atol=1e-8, rtol=0)
    assert logits[1].item() == pytest.approx(math.log(1e-7), abs=1e-4)
    assert logits.isfinite().all()


def test_a_step_without_probability_contributes_nothing():
    p = HaltingDistribution(torch.tensor([0.5, 0.5, 0.0]).log().requires_grad_())
    q = HaltingDistribution(torch.tensor([0.25, 0.25, 0.5]).log())
    assert halting_kl(p, q, "posterior_prior").item() == pytest.approx(math.log(2))
    assert p.entropy().item() == pytest.approx(math.log(2))
    halting_kl(p, q, "posterior_prior").backward()
    assert p.log_pmf.grad.isfinite().all()


def test_half_precision_logits_are_raised_to_float32():
    logits = torch.randn(4, 24).bfloat16()
    distribution = halting_distribution(logits, "leftover")
    assert distribution.log_pmf.dtype == torch.float32
    assert torch.equal(distribution.log_pmf, halting_distribution(logits.float(), "leftover").log_pmf)


def test_quantiles_are_strict():
    distribution = HaltingDistribution(torch.tensor([0.5, 0.25, 0.25]).log())
    levels = torch.tensor([0.0, 0.49, 0.5, 0.74, 0.75, 1.0])
    assert [distribution.quantile(q).item() for q in levels.tolist()] == [1, 1, 2, 2, 3, 3]
    assert distribution.quantile(0.3).dtype == torch.int64
