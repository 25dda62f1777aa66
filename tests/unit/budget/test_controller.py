"""The budget controller against a plain loop and on simulated models, its schedule, and smooth depths."""

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
from tests.marks_support import keep_one_quick


def build_controller(target=3.0, full=6.0, gain=1.0, moves_bias=False, **shares) -> BudgetController:
    return BudgetController(BudgetSchedule(target, full, int(full), **shares), gain, moves_bias=moves_bias)


def advance(controller: BudgetController, mean: float, progress: float, units: int = 7) -> None:
    controller.advance(torch.tensor(mean * units), torch.tensor(units), progress)


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


def test_growth_targets_are_in_the_unit_of_the_budget():
    assert BudgetSchedule(0.5, 1.0, 8, grow=1.0, grow_from=2).compute_target(0.0) == 0.25


# ---- control


def test_the_reward_only_acts_below_the_target():
    controller = build_controller(target=2.0, full=6.0)
    assert controller.reward(1.0).item() == 0.0, "nothing has been measured"
    for depth, reward in ((6.0, 0.0), (2.0, 0.0), (1.0, -PROPORTIONAL / 6.0), (0.0, -PROPORTIONAL / 3.0)):
        advance(controller, depth, 1.0)
        assert controller.reward(1.0).item() == pytest.approx(reward)


def test_the_controller_equals_a_plain_loop():
    depths, multiplier, smoothed = [5.0, 4.5, 2.0, 2.5, 3.5], 0.0, None
    controller = build_controller(ramp=0.5)
    assert controller.price(0.0).item() == 0.0
    for step, depth in enumerate(depths):
        progress = step / len(depths)
        target = 6.0 + (3.0 - 6.0) * min(progress / 0.5, 1.0)
        advance(controller, depth, progress)
        smoothed = depth if smoothed is None else SMOOTHING * smoothed + (1 - SMOOTHING) * depth
        multiplier += INTEGRAL * (smoothed - target) / 6.0
        following = (step + 1) / len(depths)
        next_target = 6.0 + (3.0 - 6.0) * min(following / 0.5, 1.0)
        price = multiplier + PROPORTIONAL * (depth - next_target) / 6.0
        assert controller.price(following).item() == pytest.approx(price, rel=1e-5)
    assert controller.figures(1.0) == pytest.approx({"target": 3.0, "measured": smoothed, "multiplier": multiplier})


def test_the_multiplier_has_a_limit():
    controller = build_controller(gain=1e6)
    for depth, limit in ((6.0, LIMIT), (1.0, -LIMIT)):
        for _ in range(500):
            advance(controller, depth, 0.5)
        assert controller.figures(1.0)["multiplier"] == limit


def test_the_multiplier_is_zero_while_depth_grows():
    controller = build_controller(grow=0.5, grow_from=1)
    advance(controller, 2.0, 0.1)
    assert controller.price(0.2).item() == 0.0
    assert controller.figures(0.1) == pytest.approx({"target": 1.0, "measured": 2.0, "multiplier": 0.0})


@pytest.mark.parametrize(
    ("target", "own_price", "stiffness"), keep_one_quick(3, [(1.5, 0.02, 1.0), (3.0, -0.02, 0.5), (5.0, 0.03, 3.0)])
)
def test_a_simulated_model_reaches_its_target(target, own_price, stiffness):
    """Run a model whose depth follows the slope of the multiplier: it is stationary where the slope is zero."""
    controller, depth = build_controller(target, gain=3.0), 6.0
    for step in range(3000):
        advance(controller, depth, step / 3000)
        slope = controller.price(step / 3000).item() - own_price
        depth = min(max(depth - stiffness * slope, 1.0), 6.0)
    assert depth == pytest.approx(target, rel=0.05)


@pytest.mark.parametrize(("depth", "error"), [(6.0, 0.5), (4.0, 1 / 6), (3.8, 0.0), (1.3, 0.0), (1.0, -1 / 3)])
def test_far_from_the_target_only_the_bias_moves(depth, error):
    controller = build_controller(target=3.0, full=6.0, moves_bias=True)
    assert controller.compute_bias_shift(0.5).item() == 0.0, "nothing has been measured"
    advance(controller, depth, 0.5)
    assert controller.compute_bias_shift(0.5).item() == pytest.approx(BIAS_GAIN * error)
    error_near_target = 0.0 if error else (depth - 3.0) / 6.0
    assert controller.price(0.5).item() == pytest.approx((INTEGRAL + PROPORTIONAL) * error_near_target)


def test_the_bias_is_constant_until_the_schedule_ends():
    controller = build_controller(target=3.0, full=6.0, moves_bias=True, grow=0.3, hold=0.2, ramp=0.2)
    for progress, depth in ((0.1, 2.0), (0.4, 2.0), (0.65, 6.0)):
        advance(controller, depth, progress)
        assert controller.compute_bias_shift(progress).item() == 0.0
    assert controller.figures(0.5)["multiplier"] != 0.0, "the integral counts the error"
    assert controller.compute_bias_shift(0.8).item() == pytest.approx(BIAS_GAIN / 2)


@pytest.mark.parametrize("start", [-9.0, 6.0])
@pytest.mark.parametrize("moves_bias", [True, False])
def test_only_the_bias_recovers_a_saturated_halting_unit(start, moves_bias):
    """Run a halting logit z with gradient s(1 - s) and depth 1 + 5 (1 - s(z)), without another loss."""
    controller, logit, steps = build_controller(target=3.8, full=6.0, moves_bias=moves_bias), torch.tensor(start), 200
    for step in range(steps):
        halting = torch.sigmoid(logit)
        advance(controller, float(1 + 5 * (1 - halting)), step / steps)
        logit += (
            controller.price(step / steps) * 5 * halting * (1 - halting)
            + controller.compute_bias_shift(step / steps) * moves_bias
        )
    error = (float(1 + 5 * (1 - torch.sigmoid(logit))) - 3.8) / 6.0
    assert (-FAR_BELOW <= error <= FAR_ABOVE) == moves_bias


def test_a_loaded_state_continues_exactly():
    first = build_controller()
    for step, depth in enumerate((5.1, 4.3, 4.4)):
        advance(first, depth, step / 10)
    second = build_controller()
    second.load_state_dict(first.state_dict())
    for controller in (first, second):
        advance(controller, 3.7, 0.3)
    assert first.state_dict() == second.state_dict()
    assert torch.equal(first.price(0.4), second.price(0.4))


# ---- smooth depth


def test_a_smooth_depth_is_expected_at_exponent_one_and_executed_near_zero():
    survival = torch.tensor([[0.9, 0.5, 0.2, 0.0]])
    ran = torch.tensor([[True, True, True, False]])
    assert smooth_depth(survival, ran, 1.0).item() == pytest.approx(1.6)
    assert smooth_depth(survival, ran, 1e-6).item() == pytest.approx(3.0, abs=1e-4)
    assert smooth_depth(survival, ran).item() == pytest.approx(0.9**0.3 + 0.5**0.3 + 0.2**0.3)


def test_gradients_are_finite_at_survival_zero():
    survival = torch.tensor([0.0, 1e-9, 1.0, 1.0 + 1e-6], requires_grad=True)
    smooth_depth(survival).backward()
    assert survival.grad.isfinite().all()
