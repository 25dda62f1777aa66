"""Losses and gradients do not depend on how an update is cut into micro-batches and processes."""

import json

import pytest
import torch

from adadepth.runs.checkpoints import MANIFEST, flaw
from adadepth.settings.kinds import PRETRAINING_METRICS
from tests.training.gradients_support import budget_states, first_update
from tests.training.processes_support import on_processes
from tests.training.support import tiny_trainer


@pytest.mark.parametrize(("reduction", "readouts"), [("sum_tokens", "0"), ("mean_tokens", "0"), ("sum_tokens", "0.5")])
def test_accumulation_changes_no_gradient(tmp_path, reduction, readouts):
    switch = (f"model.penalty_reduction={reduction}", f"model.readout_weight={readouts}")
    whole, logged_whole, _ = first_update(tmp_path / "1", 8, 1, *switch)
    parts, logged_parts, _ = first_update(tmp_path / "4", 2, 4, *switch)
    names = ("mlm_loss", "sop_loss", "ponder_loss", *(["readouts_loss"] if readouts != "0" else []))
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, atol=1e-6, rtol=1e-4, msg=name)
    for name in ("loss", *names):
        assert logged_parts[name] == pytest.approx(logged_whole[name], rel=1e-5), name
    assert logged_whole["loss"] == pytest.approx(sum(logged_whole[name] for name in names), rel=1e-5)


def assert_same_budget(found, expected):
    assert found[0] == pytest.approx(expected[0], rel=1e-9)
    assert expected[0][0] != 0, "the multiplier has moved"
    for name, gradient in expected[1].items():
        torch.testing.assert_close(found[1][name], gradient, atol=2e-6, rtol=1e-3, msg=name)


def test_accumulation_changes_neither_multiplier_nor_gradient(tmp_path):
    assert_same_budget(budget_states(tmp_path / "2", 4, 2), budget_states(tmp_path / "1", 8, 1))


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    """Gradients, losses, metrics and halting statistics of two gloo processes on the same global batch; resume too."""
    gradients, logged, metrics = first_update(tmp_path / "one", 8, 1)
    on_processes("two_processes", tmp_path)
    two = torch.load(tmp_path / "two.pt", weights_only=False)
    for name, gradient in gradients.items():
        torch.testing.assert_close(two["gradients"][name], gradient, atol=1e-6, rtol=1e-4, msg=name)
    for name in ("loss", "mlm_loss", "sop_loss", "ponder_loss"):
        assert two["logged"][name] == pytest.approx(logged[name], rel=1e-5), name
    for name in ("eval_loss", "eval_mlm_loss", "eval_sop_loss", "eval_mlm_accuracy", "eval_ponder_loss"):
        assert two["metrics"][name] == pytest.approx(metrics[name], rel=1e-5), name
    assert_same_budget(two["budget"], budget_states(tmp_path / "budget", 8, 1))
    assert two["exact"] is not False, "two processes resumed in their second epoch must end where the whole run does"
    assert_every_process_is_in_the_manifest(tmp_path / "whole" / "checkpoint-8")
    one = tiny_trainer(tmp_path / "again", "trainer.max_steps=1", "trainer.per_device_train_batch_size=8")
    one.evaluate()
    assert two["untrained"]["n"] == one.last_reports["held_out"].statistics["n"]
    for name, described in one.last_reports["held_out"].statistics["classes"].items():
        assert two["untrained"]["classes"][name].get("histogram") == described.get("histogram"), name


def assert_every_process_is_in_the_manifest(checkpoint):
    """Its own files are found damaged, too: first one of the second process, and of the first where that is whole."""
    listed = json.loads((checkpoint / MANIFEST).read_text())["files"]
    assert set(listed) == {path.name for path in checkpoint.iterdir()} - {MANIFEST}
    assert flaw(checkpoint) is None
    for own in ("rng_state_{}.pth", "progress_{}.json"):
        for process in (1, 0):
            path = checkpoint / own.format(process)
            whole = path.read_bytes()
            path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
            assert flaw(checkpoint) == f"its {path.name} is not as it was written"
            path.unlink()
            assert flaw(checkpoint) == f"its {path.name} is missing"
            path.write_bytes(whole)


def test_every_trainable_parameter_gets_a_gradient(tmp_path):
    gradients, _, _ = first_update(tmp_path, 8, 1, "dataset.sentence_order=false")
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients.values())


def test_evaluation_does_not_depend_on_its_batch_size(tmp_path):
    trainer = tiny_trainer(tmp_path, "trainer.max_steps=1")
    small = trainer.evaluate()
    assert {f"eval_{name}" for name in PRETRAINING_METRICS} <= small.keys()
    trainer.args.per_device_eval_batch_size = 3
    large = trainer.evaluate()
    for name in ("eval_loss", "eval_mlm_loss", "eval_mlm_accuracy", "eval_sop_accuracy", "eval_ponder_loss"):
        assert large[name] == pytest.approx(small[name], rel=1e-5), name
