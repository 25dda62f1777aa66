"""Depth correction: the bias of the halting unit alone moves a trained model to its missed target."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from adadepth.runtime.console import limit_output
from adadepth.tasks import budgets
from adadepth.tasks.budgets import correct_depth
from tests.marks_support import keep_one_quick
from tests.training.depth_correction_support import HELD, build_session, compute_mean_depth
from tests.training.support import build_tiny_config, build_tiny_trainer


@pytest.mark.parametrize(("bias", "target"), keep_one_quick(3, [(-6.0, 2.0), (4.0, 3.8), (0.0, 5.0)]))
def test_a_missed_target_is_corrected_once(bias: float, target: float, tmp_path: Path) -> None:
    trainer = build_tiny_trainer(tmp_path, *HELD)
    unit = trainer.model.albert.encoder.albert_layer.act.dense
    torch.nn.init.normal_(unit.weight, std=1.0)  # as of a trained unit: tokens differ
    torch.nn.init.constant_(unit.bias, bias)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    settings = build_tiny_config(*HELD, f"budget.target={target}").budget
    session, depth_before = build_session(trainer), compute_mean_depth(trainer)
    assert abs(depth_before - target) > 0.05 * target
    assert correct_depth(settings, session)
    assert compute_mean_depth(trainer) == pytest.approx(target, rel=0.05)
    correction = session.run.record["depth_correction"]
    assert correction["before"]["mean"] == pytest.approx(depth_before)
    assert correction["after"]["mean"] == pytest.approx(compute_mean_depth(trainer))
    assert correction["shift"] == pytest.approx(float(unit.bias.detach()) - bias)
    assert correction["before"]["metrics"].keys() == correction["after"]["metrics"].keys()
    changed = [name for name, value in trainer.model.state_dict().items() if not torch.equal(value, before[name])]
    assert changed == ["albert.encoder.albert_layer.act.dense.bias"]
    bias_before = unit.bias.clone()
    assert not correct_depth(settings, build_session(trainer)), "it holds its target now"
    assert torch.equal(unit.bias, bias_before)


def test_no_bias_is_measured_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count measurements: each is a pass over hundreds of examples that a short run waits for."""
    trainer, shifts = build_tiny_trainer(tmp_path, *HELD), []

    def measure(trainer: Any, model: Any, *arguments: Any) -> float:
        shifts.append(float(model.halting_bias.detach().sum()))
        return 2.0 if shifts[-1] > 0 else 4.0  # the target between them cannot be reached

    monkeypatch.setattr(budgets, "_measure_depth", measure)
    assert correct_depth(build_tiny_config(*HELD, "budget.target=3").budget, build_session(trainer))
    assert len(set(shifts)) == len(shifts) > 10
    assert float(trainer.model.halting_bias.detach().sum()) in shifts


def test_a_run_of_a_few_seconds_is_not_corrected(tmp_path: Path) -> None:
    trainer = build_tiny_trainer(tmp_path, *HELD)
    settings = build_tiny_config(*HELD, "budget.target=5").budget
    before = trainer.model.halting_bias.clone()
    assert not correct_depth(settings, build_session(trainer, small=True))
    assert torch.equal(trainer.model.halting_bias, before)


def test_a_quiet_run_warns_of_a_shift_that_made_all_depths_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    depths = iter([(3.25, 0.43, math.log(1.75)), (3.0, 0.0, 0.0)])  # of the evaluations before and after the shift

    def evaluate(*arguments: Any) -> tuple[dict[str, float], dict[str, Any]]:
        statistics = dict(zip(("mean", "std", "entropy"), next(depths), strict=True))
        return {"score": statistics["mean"] / 4}, {"classes": {"all": statistics}}

    monkeypatch.setattr(budgets, "_evaluate_half", evaluate)
    with limit_output(True):
        assert correct_depth(
            build_tiny_config(*HELD, "budget.target=5").budget, build_session(build_tiny_trainer(tmp_path, *HELD))
        )
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("warning: the shift to the target made all depths equal: from 3.25 +- 0.43 updates (1.75")
    assert "to 3.00 +- 0.00 updates (1.00 effective depths), score from 0.812 to 0.750" in printed
