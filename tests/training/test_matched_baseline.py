"""ACT-ALBERT compared with itself at fixed depths: replayed halting is that of the model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from adadepth.report.run_files import EXITS, MATCHED_BASELINE, read_run
from adadepth.tasks.matched_baseline import compare_with_matched_baseline
from tests.marks_support import keep_one_quick
from tests.runs_support import execute_run
from tests.training.support import build_tiny_config, build_tiny_trainer

INPUTS = ("input_ids", "attention_mask", "token_type_ids", "labels", "sentence_order_label")
RULES = {
    "single": (),
    "graves": ("model.state_rule=graves", "model.recall=true"),
    "sequences": ("model.halting_scope=sequence",),
}


def build_halting_trainer(folder: Path, *overrides: str) -> Any:
    trainer = build_tiny_trainer(folder, "model.num_hidden_layers=6", "model.cap_remainder=forced", *overrides)
    unit = trainer.model.albert.encoder.albert_layer.act.dense
    torch.nn.init.normal_(unit.weight, std=1.0, generator=torch.Generator().manual_seed(0))
    torch.nn.init.constant_(unit.bias, -1.0)
    return trainer


def build_session(trainer: Any, folder: Path, *, steps: int = 1000) -> Any:
    trainer.state.global_step = steps
    config = build_tiny_config("matched_baseline=true")
    return SimpleNamespace(trainer=trainer, config=config, run=SimpleNamespace(directory=folder))


def load_first_batch(trainer: Any) -> dict[str, torch.Tensor]:
    (dataset,) = trainer.evaluation_sets.values()
    batch = trainer.data_collator([dataset[index] for index in range(4)])
    return {name: batch[name] for name in INPUTS if name in batch}


@pytest.mark.parametrize(("rule", "execution"), keep_one_quick(2, [
    ("single", "ragged"), ("single", "dense"), ("graves", "dense"), ("graves", "ragged"), ("sequences", "ragged"),
    ("sequences", "dense"),
]))  # fmt: skip
def test_replayed_masses_reproduce_the_model_and_fixed_masses_one_depth(
    rule: str, execution: str, tmp_path: Path
) -> None:
    trainer = build_halting_trainer(tmp_path, *RULES[rule], f"model.execution={execution}")
    model, batch = trainer.model.eval(), load_first_batch(trainer)
    with torch.no_grad():
        adaptive = model(**batch)
        assert adaptive.trace.updates[adaptive.trace.valid].unique().numel() > 1
        padded = torch.nn.functional.pad(
            adaptive.halting_probabilities, (0, 6 - adaptive.halting_probabilities.shape[-1])
        )
        model.replay_halting(padded)
        again = model(**batch)
        model.replay_halting(torch.tensor([0.2, 0.3, 1.0, 1.0, 1.0, 1.0]).expand(padded.shape))
        fixed = model(**batch)
        model.replay_halting(None)
        free = model(**batch)
    assert torch.equal(again.trace.updates, adaptive.trace.updates)
    torch.testing.assert_close(again.prediction_logits, adaptive.prediction_logits, rtol=0, atol=1e-5)
    assert (fixed.trace.updates[fixed.trace.valid] == 3).all()
    assert torch.equal(free.prediction_logits, adaptive.prediction_logits)


def test_a_pretraining_is_compared_by_the_metrics_of_its_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = build_halting_trainer(tmp_path)
    compare_with_matched_baseline(build_session(trainer, tmp_path))
    baselines = read_run(tmp_path).of(MATCHED_BASELINE)
    (baseline,) = baselines["sets"].values()
    assert baseline["examples"] == baseline["of_examples"], "training was long enough for all of them"
    evaluated = trainer.evaluate()
    for name in ("mlm_loss", "mlm_accuracy"):
        assert baseline["own"][name] == pytest.approx(evaluated[f"eval_{name}"], rel=1e-4)
    statistics = next(iter(trainer.last_reports.values())).statistics["classes"]["all"]
    assert baseline["mean"] == pytest.approx(statistics["mean"])
    assert baseline["std"] == pytest.approx(statistics["std"], rel=1e-3)
    low, high = (row["depth"] for row in baseline["fixed"])
    assert low <= baseline["mean"] <= high
    assert f"({baseline['examples']} of {baseline['of_examples']} sequences of held_out)" in capsys.readouterr().out


@pytest.mark.slow  # a run each
@pytest.mark.parametrize("name", ["ponder_tiny", "ponder_parity", "trm_tiny", "loop_hops", "loop_tiny", "act_hops"])
def test_runs_of_every_kind_compare_their_own_depth(name: str, tmp_path: Path) -> None:
    lengths = [f"trainer.{key}=40" for key in ("max_steps", "eval_steps", "save_steps")]
    run = execute_run(tmp_path, "--config-name", name, "debug=default", "matched_baseline=true", *lengths)
    files = read_run(run)
    ((evaluated, one),) = files.of(MATCHED_BASELINE)["sets"].items()
    assert files.run["verdict"]["worth"]["answer"] != "unknown" or one["std"] == 0
    assert one["examples"] == one["of_examples"]
    exits = files.of(EXITS).get("sets", {}).get(evaluated)
    if exits is None or one["rule"] is not None:  # a text whose exits another rule than the model's decides
        return
    assert one["mean"] == pytest.approx(exits["exit"]["mean"])
    assert one["own"] == pytest.approx(exits["exit"]["quality"])
    by_step = {row["step"]: row["quality"] for row in exits["steps"]}
    for row in one["fixed"]:
        assert row["quality"] == pytest.approx(by_step[row["depth"]])


@pytest.mark.slow  # a run
def test_adalayers_trains_the_last_layer_and_leaves_no_checkpoint(tmp_path: Path) -> None:
    lengths = [f"trainer.{key}=60" for key in ("max_steps", "eval_steps", "save_steps")]
    run = execute_run(tmp_path, "--config-name", "adalayers_tiny", "debug=default", "matched_baseline=true", *lengths)
    baseline = read_run(run).of(MATCHED_BASELINE)
    if "left_out" not in baseline:  # the setting up alone may take longer than half of so short a training
        (network,) = baseline["networks"]
        assert (network["about"], network["steps"], network["predictions"]) == ("the last layer only", 60, 8)
        assert {"eval/score", "eval/task_loss"} <= network["metrics"].keys()
    assert not (run / "matched_baseline").exists()


def test_a_short_training_leaves_the_comparison_out_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = build_halting_trainer(tmp_path)
    compare_with_matched_baseline(build_session(trainer, tmp_path, steps=1))
    assert read_run(tmp_path).of(MATCHED_BASELINE)["left_out"].startswith("training was too short")
    assert "matched baseline: skipped, training was too short" in capsys.readouterr().out


def test_a_network_of_fixed_depth_has_no_comparison(tmp_path: Path) -> None:
    trainer = build_tiny_trainer(tmp_path, "model.fixed_depth=2")
    compare_with_matched_baseline(build_session(trainer, tmp_path))
    assert not (tmp_path / MATCHED_BASELINE).exists()
