"""Gates against closed forms, and against sampled frequencies."""

from __future__ import annotations

import math

import pytest
import torch

from adadepth.errors import ConfigError
from adadepth.models.par_xl.gates import (
    SCHEDULES,
    gate_temperature,
    gate_weights,
    gumbel_noise,
    sample_path,
)

LOGITS = torch.tensor([[0.0, 0.0, 0.0], [2.0, -1.0, 0.5]])


def build_generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("start", "end"), [(1.0, 0.1), (2.0, 0.2), (0.3, 5.0), (0.7, 0.7)])
def test_the_temperature_goes_from_start_to_end(schedule, start, end):
    assert gate_temperature(0, 50, start, end, schedule) == start
    assert gate_temperature(49, 50, start, end, schedule) == end
    assert gate_temperature(80, 50, start, end, schedule) == end
    assert gate_temperature(0, 1, start, end, schedule) == start


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("exponential", 4.0 * (0.25 / 4.0) ** 0.25),
        ("linear", 4.0 - 0.25 * 3.75),
        ("cosine", 0.25 + 3.75 * (1 + math.cos(math.pi / 4)) / 2),
    ],
)
def test_the_temperature_after_a_quarter_equals_its_formula(schedule, expected):
    assert gate_temperature(25, 101, 4.0, 0.25, schedule) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": 0.0}, r"tau_start=0\.0 must be greater than 0"),
        ({"end": -0.1}, r"tau_end=-0\.1 must be greater than 0"),
        ({"end": math.nan}, "tau_end=nan must be greater than 0"),
        ({"schedule": "cosin"}, r"tau_schedule='cosin' must be one of .* \(did you mean 'cosine'\?\)"),
    ],
)
def test_a_temperature_must_be_positive(changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        gate_temperature(0, 10, **({"start": 1.0, "end": 0.1, "schedule": "linear"} | changes))
    assert "\n" not in str(caught.value)


def test_weights_equal_a_plain_softmax():
    noise = torch.tensor([[0.1, 0.7, -0.4], [-0.3, 1.5, 0.2]])
    weights = gate_weights(LOGITS, 0.5, noise)
    for row, scores in zip(weights.tolist(), (LOGITS + noise).tolist(), strict=True):
        powers = [math.exp(score / 0.5) for score in scores]
        assert row == pytest.approx([power / sum(powers) for power in powers], rel=1e-5)
    assert torch.equal(gate_weights(LOGITS), LOGITS.softmax(-1))


def test_straight_through_has_hard_values_and_soft_gradients():
    direction = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.1, -1.0]])
    gradients = []
    for hard in (False, True):
        logits = LOGITS.clone().requires_grad_()
        weights = gate_weights(logits, 0.7, straight_through=hard)
        (weights * direction).sum().backward()
        gradients.append(logits.grad)
        if hard:
            assert weights.tolist() == [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    torch.testing.assert_close(*gradients)
    assert gradients[0].abs().max() > 0.1


def test_noise_has_the_moments_of_the_gumbel_distribution():
    noise = gumbel_noise((200_000,), build_generator())
    assert noise.dtype == torch.float32
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, rel=0.02)


def test_noise_of_extreme_uniform_numbers_is_finite(monkeypatch):
    edges = torch.tensor([0.0, 1e-45, 1.0 - 2.0**-24, 1.0])
    monkeypatch.setattr(torch, "rand", lambda *_, **__: edges)
    noise = gumbel_noise((4,), build_generator())
    assert noise.isfinite().all()
    assert noise[0] == noise[1] == pytest.approx(-math.log(-math.log(1e-10)), rel=1e-5)
    # The largest number that float32 keeps apart from one is 1 - 2^-23 after the clamp.
    assert noise[-1].item() == pytest.approx(-math.log(-math.log(1.0 - 2.0**-23)), rel=1e-5)


def test_paths_are_drawn_from_the_softmax():
    draws = 40_000
    path = sample_path(LOGITS[1].expand(draws, 3), build_generator())
    expected = LOGITS[1].softmax(-1).tolist()
    for operation, probability in enumerate(expected):
        deviation = math.sqrt(probability * (1 - probability) / draws)
        assert path.count(operation) / draws == pytest.approx(probability, abs=4 * deviation)


def test_a_path_is_the_largest_of_logits_and_noise_at_any_temperature():
    logits = torch.randn(30, 3, generator=build_generator(1))
    path, noise = sample_path(logits, build_generator(2)), gumbel_noise((30, 3), build_generator(2))
    for temperature in (0.05, 1.0, 9.0):
        assert gate_weights(logits, temperature, noise).argmax(-1).tolist() == path
    assert len(set(path)) == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_logits_give_float32(dtype):
    logits = LOGITS.to(dtype)
    assert gate_weights(logits, 0.1).dtype == torch.float32
    with torch.autocast("cpu", dtype=dtype):
        weights = gate_weights(LOGITS, 0.3, gumbel_noise((2, 3), build_generator()))
    assert torch.equal(weights, gate_weights(LOGITS, 0.3, gumbel_noise((2, 3), build_generator())))
