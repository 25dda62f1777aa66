"""The controller against a plain loop and on simulated models; the schedule; smooth depths against closed forms."""

from __future__ import annotations

import pytest
import torch

from adadepth.budget.controller import (
    BIAS_GAIN,
    FAR_ABOVE,
    FAR_BELOW,
    INTEGRAL,
    LIMIT,
    PROPORTIONAL,
    SMOOTHING,
    BudgetController,
    BudgetSchedule,
    smooth_depth,
)
from tests.marks_support import quick_one_in


def controller(target=3.0, full=6.0, gain=1.0, moves_bias=False, **shares) -> BudgetController:
    return BudgetController(BudgetSchedule(target, full, int(full), **shares), gain, moves_bias=moves_bias)


def advance(found: BudgetController, mean: float, progress: float, units: int = 7) -> None:
    found.advance(torch.tensor(mean * units), torch.tensor(units), progress)


# ---- schedule


def test_a_schedule_grows_holds_falls_and_stays():
    schedule = BudgetSchedule(3.0, 12.0, 12, grow=0.5, hold=0.1, ramp=0.2, grow_from=2)
    assert [schedule.compute_forced_depth(progress) for progress in (0.0, 0.25, 0.4999)] == [2, 4, 12]
    assert [schedule.compute_target(progress) for progress in (0.0, 0.25)] == [2.0, 4.0]
    assert schedule.compute_forced_depth(0.5) is None
    assert schedule.compute_target(0.55) == 12.0
    assert schedule.compute_target(0.7) == pytest.approx(7.5)
    assert schedule.compute_target(0.8 + 1e-9) == schedule.compute_target(1.0) == 3.0


def test_without_phases_the_target_holds_from_the_start():
    schedule = BudgetSchedule(0.5, 1.0, 6)
    assert schedule.compute_forced_depth(0.0) is None
    assert schedule.compute_target(0.0) == 0.5


def test_growth_is_told_in_the_budgets_unit():
    assert BudgetSchedule(0.5, 1.0, 8, grow=1.0, grow_from=2).compute_target(0.0) == 0.25


# ---- control


def test_what_cannot_be_too_deep_is_only_brought_back():
    found = controller(target=2.0, full=6.0)
    assert found.reward(1.0).item() == 0.0, "nothing has been measured"
    for depth, reward in ((6.0, 0.0), (2.0, 0.0), (1.0, -PROPORTIONAL / 6.0), (0.0, -PROPORTIONAL / 3.0)):
        advance(found, depth, 1.0)
        assert found.reward(1.0).item() == pytest.approx(reward)


def test_the_controller_is_the_plain_loop():
    depths, multiplier, smoothed = [5.0, 4.5, 2.0, 2.5, 3.5], 0.0, None
    found = controller(ramp=0.5)
    assert found.price(0.0).item() == 0.0
    for step, depth in enumerate(depths):
        progress = step / len(depths)
        target = 6.0 + (3.0 - 6.0) * min(progress / 0.5, 1.0)
        advance(found, depth, progress)
        smoothed = depth if smoothed is None else SMOOTHING * smoothed + (1 - SMOOTHING) * depth
        multiplier += INTEGRAL * (smoothed - target) / 6.0
        following = (step + 1) / len(depths)
        wanted = 6.0 + (3.0 - 6.0) * min(following / 0.5, 1.0)
        price = multiplier + PROPORTIONAL * (depth - wanted) / 6.0
        assert found.price(following).item() == pytest.approx(price, rel=1e-5)
    assert found.figures(1.0) == pytest.approx({"target": 3.0, "measured": smoothed, "multiplier": multiplier})


def test_the_multiplier_has_a_limit():
    found = controller(gain=1e6)
    for depth, limit in ((6.0, LIMIT), (1.0, -LIMIT)):
        for _ in range(500):
            advance(found, depth, 0.5)
        assert found.figures(1.0)["multiplier"] == limit


def test_while_depth_grows_nothing_is_paid():
    found = controller(grow=0.5, grow_from=1)
    advance(found, 2.0, 0.1)
    assert found.price(0.2).item() == 0.0
    assert found.figures(0.1) == pytest.approx({"target": 1.0, "measured": 2.0, "multiplier": 0.0})


@pytest.mark.parametrize(
    ("target", "own_price", "stiffness"), quick_one_in(3, [(1.5, 0.02, 1.0), (3.0, -0.02, 0.5), (5.0, 0.03, 3.0)])
)
def test_a_simulated_model_is_brought_to_its_target(target, own_price, stiffness):
    """A model whose depth drifts down a slope that the price tilts: it rests where the price meets its own."""
    found, depth = controller(target, gain=3.0), 6.0
    for step in range(3000):
        advance(found, depth, step / 3000)
        slope = found.price(step / 3000).item() - own_price
        depth = min(max(depth - stiffness * slope, 1.0), 6.0)
    assert depth == pytest.approx(target, rel=0.05)


@pytest.mark.parametrize(("depth", "error"), [(6.0, 0.5), (4.0, 1 / 6), (3.8, 0.0), (1.3, 0.0), (1.0, -1 / 3)])
def test_far_from_the_target_the_bias_moves_and_the_loss_rests(depth, error):
    found = controller(target=3.0, full=6.0, moves_bias=True)
    assert found.compute_bias_shift(0.5).item() == 0.0, "nothing has been measured"
    advance(found, depth, 0.5)
    assert found.compute_bias_shift(0.5).item() == pytest.approx(BIAS_GAIN * error)
    near = 0.0 if error else (depth - 3.0) / 6.0
    assert found.price(0.5).item() == pytest.approx((INTEGRAL + PROPORTIONAL) * near)


def test_the_bias_rests_until_the_schedule_has_reached_its_target():
    found = controller(target=3.0, full=6.0, moves_bias=True, grow=0.3, hold=0.2, ramp=0.2)
    for progress, depth in ((0.1, 2.0), (0.4, 2.0), (0.65, 6.0)):
        advance(found, depth, progress)
        assert found.compute_bias_shift(progress).item() == 0.0
    assert found.figures(0.5)["multiplier"] != 0.0, "the integral counts the error"
    assert found.compute_bias_shift(0.8).item() == pytest.approx(BIAS_GAIN / 2)


@pytest.mark.parametrize("start", [-9.0, 6.0])
@pytest.mark.parametrize("moves_bias", [True, False])
def test_a_saturated_halting_unit_is_brought_back_by_its_bias_alone(start, moves_bias):
    """A halting logit z of gradient s(1 - s): depth 1 + 5 (1 - s(z)) falls with z, and the loss pulls z nowhere."""
    found, logit, steps = controller(target=3.8, full=6.0, moves_bias=moves_bias), torch.tensor(start), 200
    for step in range(steps):
        halting = torch.sigmoid(logit)
        advance(found, float(1 + 5 * (1 - halting)), step / steps)
        logit += (
            found.price(step / steps) * 5 * halting * (1 - halting)
            + found.compute_bias_shift(step / steps) * moves_bias
        )
    error = (float(1 + 5 * (1 - torch.sigmoid(logit))) - 3.8) / 6.0
    assert (-FAR_BELOW <= error <= FAR_ABOVE) == moves_bias


def test_a_state_goes_on_exactly():
    first = controller()
    for step, depth in enumerate((5.1, 4.3, 4.4)):
        advance(first, depth, step / 10)
    second = controller()
    second.load_state_dict(first.state_dict())
    for found in (first, second):
        advance(found, 3.7, 0.3)
    assert first.state_dict() == second.state_dict()
    assert torch.equal(first.price(0.4), second.price(0.4))


# ---- smooth depth


def test_a_smooth_depth_is_the_expected_one_at_exponent_one_and_the_hard_one_near_zero():
    survival = torch.tensor([[0.9, 0.5, 0.2, 0.0]])
    ran = torch.tensor([[True, True, True, False]])
    assert smooth_depth(survival, ran, 1.0).item() == pytest.approx(1.6)
    assert smooth_depth(survival, ran, 1e-6).item() == pytest.approx(3.0, abs=1e-4)
    assert smooth_depth(survival, ran).item() == pytest.approx(0.9**0.3 + 0.5**0.3 + 0.2**0.3)


def test_no_gradient_is_infinite_where_nothing_survives():
    survival = torch.tensor([0.0, 1e-9, 1.0, 1.0 + 1e-6], requires_grad=True)
    smooth_depth(survival).backward()
    assert survival.grad.isfinite().all()
