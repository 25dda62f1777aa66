"""Losses and gradients that do not depend on the split of an update into micro-batches and processes."""

import pytest
import torch

from adadepth.config.kinds import PRETRAINING_METRICS
from tests.marks_support import keep_one_quick
from tests.training.gradients_support import run_first_update, run_three_budget_updates
from tests.training.support import build_tiny_trainer


@pytest.mark.parametrize(
    ("reduction", "readouts"), keep_one_quick(2, [("sum_tokens", "0"), ("mean_tokens", "0"), ("sum_tokens", "0.5")])
)
def test_accumulation_changes_no_gradient(tmp_path, reduction, readouts):
    switch = (f"model.penalty_reduction={reduction}", f"model.readout_weight={readouts}")
    whole, logged_whole, _ = run_first_update(tmp_path / "1", 8, 1, *switch)
    parts, logged_parts, _ = run_first_update(tmp_path / "4", 2, 4, *switch)
    names = ("mlm_loss", "sop_loss", "ponder_loss", *(["readouts_loss"] if readouts != "0" else []))
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, atol=1e-6, rtol=1e-4, msg=name)
    for name in ("loss", *names):
        assert logged_parts[name] == pytest.approx(logged_whole[name], rel=1e-5), name
    assert logged_whole["loss"] == pytest.approx(sum(logged_whole[name] for name in names), rel=1e-5)


def assert_same_budget(actual, expected):
    assert actual[0] == pytest.approx(expected[0], rel=1e-9)
    assert expected[0][0] != 0, "the multiplier has moved"
    for name, gradient in expected[1].items():
        torch.testing.assert_close(actual[1][name], gradient, atol=2e-6, rtol=1e-3, msg=name)


def test_accumulation_changes_neither_multiplier_nor_gradient(tmp_path):
    assert_same_budget(run_three_budget_updates(tmp_path / "2", 4, 2), run_three_budget_updates(tmp_path / "1", 8, 1))


def test_evaluation_does_not_depend_on_its_batch_size(tmp_path):
    trainer = build_tiny_trainer(tmp_path, "trainer.max_steps=1")
    small = trainer.evaluate()
    assert {f"eval_{name}" for name in PRETRAINING_METRICS} <= small.keys()
    trainer.args.per_device_eval_batch_size = 3
    large = trainer.evaluate()
    for name in ("eval_loss", "eval_mlm_loss", "eval_mlm_accuracy", "eval_sop_accuracy", "eval_ponder_loss"):
        assert large[name] == pytest.approx(small[name], rel=1e-5), name
