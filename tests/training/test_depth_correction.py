"""A trained model that missed its target is corrected by the bias of its halting unit, and by nothing else."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from adadepth.runtime.console import limit_output
from adadepth.tasks import budgets
from adadepth.tasks.budgets import correct_depth
from tests.marks_support import quick_one_in
from tests.training.depth_correction_support import HELD, mean_depth, session_of
from tests.training.support import tiny_config, tiny_trainer


@pytest.mark.parametrize(("bias", "target"), quick_one_in(3, [(-6.0, 2.0), (4.0, 3.8), (0.0, 5.0)]))
def test_a_target_that_was_missed_is_held(bias: float, target: float, tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, *HELD)
    unit = trainer.model.albert.encoder.albert_layer.act.dense
    torch.nn.init.normal_(unit.weight, std=1.0)  # as of a trained unit: tokens differ
    torch.nn.init.constant_(unit.bias, bias)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    settings = tiny_config(*HELD, f"budget.target={target}").budget
    session, depth_before = session_of(trainer), mean_depth(trainer)
    assert abs(depth_before - target) > 0.05 * target
    assert correct_depth(settings, session)
    assert mean_depth(trainer) == pytest.approx(target, rel=0.05)
    correction = session.run.record["depth_correction"]
    assert correction["before"]["mean"] == pytest.approx(depth_before)
    assert correction["after"]["mean"] == pytest.approx(mean_depth(trainer))
    assert correction["shift"] == pytest.approx(float(unit.bias.detach()) - bias)
    assert correction["before"]["metrics"].keys() == correction["after"]["metrics"].keys()
    changed = [name for name, value in trainer.model.state_dict().items() if not torch.equal(value, before[name])]
    assert changed == ["albert.encoder.albert_layer.act.dense.bias"]
    held = unit.bias.clone()
    assert not correct_depth(settings, session_of(trainer)), "it holds its target now"
    assert torch.equal(unit.bias, held)


def test_no_bias_is_measured_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every measurement is a pass over hundreds of examples, and a short run waits for all of them."""
    trainer, shifts = tiny_trainer(tmp_path, *HELD), []

    def measure(trainer: Any, model: Any, *given: Any) -> float:
        shifts.append(float(model.halting_bias.detach().sum()))
        return 2.0 if shifts[-1] > 0 else 4.0  # the target between them cannot be reached

    monkeypatch.setattr(budgets, "_measure_depth", measure)
    assert correct_depth(tiny_config(*HELD, "budget.target=3").budget, session_of(trainer))
    assert len(set(shifts)) == len(shifts) > 10
    assert float(trainer.model.halting_bias.detach().sum()) in shifts


def test_a_run_of_seconds_is_left_alone(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, *HELD)
    settings = tiny_config(*HELD, "budget.target=5").budget
    before = trainer.model.halting_bias.clone()
    assert not correct_depth(settings, session_of(trainer, small=True))
    assert torch.equal(trainer.model.halting_bias, before)


def test_a_quiet_run_warns_of_a_shift_that_made_all_depths_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    depths = iter([(3.25, 0.43, math.log(1.75)), (3.0, 0.0, 0.0)])  # of the evaluations before and after the shift

    def evaluate(*given: Any) -> tuple[dict[str, float], dict[str, Any]]:
        everyone = dict(zip(("mean", "std", "entropy"), next(depths), strict=True))
        return {"score": everyone["mean"] / 4}, {"classes": {"all": everyone}}

    monkeypatch.setattr(budgets, "_evaluate_half", evaluate)
    with limit_output(True):
        assert correct_depth(tiny_config(*HELD, "budget.target=5").budget, session_of(tiny_trainer(tmp_path, *HELD)))
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("warning: the shift to the target made all depths equal: from 3.25 +- 0.43 updates (1.75")
    assert "to 3.00 +- 0.00 updates (1.00 effective depths), score from 0.812 to 0.750" in printed
