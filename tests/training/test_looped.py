"""Looped models as runs: drawn loops are trained, exits are studied and fitted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from transformers import AutoModelForTokenClassification, AutoTokenizer

from tests.runs_support import execute_run, read_json, read_logged

ROOT = ("--config-name", "act_hops", "model=looped_mini", "budget=none")
SMALL = (
    "dataset.train_examples=90", "dataset.max_evaluation_examples=16", "model.hidden_size=16",
    "model.intermediate_size=16", "model.num_attention_heads=2", "model.num_loops=3", "model.objective=last",
    "model.injection=linear", "model.train_loops=drawn", "model.backprop_loops=2", "trainer.max_steps=10",
    "trainer.per_device_train_batch_size=16", "trainer.warmup_steps=0", "trainer.eval_steps=4", "trainer.save_steps=4",
    "trainer.save_total_limit=null", "trainer.logging_steps=1", "trainer.disable_tqdm=true",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a tagger whose texts draw their number of loops: ten updates, five and a bit of them an epoch."""
    return execute_run(tmp_path_factory.mktemp("trained"), *ROOT, *SMALL)


def test_a_looped_model_is_trained_and_evaluated(trained_run: Path) -> None:
    assert read_json(trained_run / "run.json")["status"] == "finished"
    halting = read_json(trained_run / "halting.json")
    assert (halting["unit"], halting["max_depth"]) == ("token", 3)
    assert len(read_logged(trained_run, "train/loss")) == 10


def test_a_text_is_predicted_by_the_folder_alone(trained_run: Path) -> None:
    """Check that the saved tokenizer knows the inputs of the model, which has no segments."""
    model = AutoModelForTokenClassification.from_pretrained(trained_run / "model").eval()
    words = AutoTokenizer.from_pretrained(trained_run / "model")
    batch = words("red blue", return_tensors="pt", add_special_tokens=False)
    assert set(batch) == {"input_ids", "attention_mask"}
    assert model(**batch).logits.shape[:2] == (1, 2)


def test_the_verdict_is_about_the_exit_rule_of_the_checkpoint(trained_run: Path, tmp_path: Path) -> None:
    """Evaluate settings without an exit rule, where the model's own is not among the studied ones."""
    shutil.copytree(trained_run / "model", tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "exit_rule": "margin:0.01"}))
    arguments = (*ROOT, "mode=evaluate", f"checkpoint={tmp_path / 'model'}")
    arguments = (*arguments, "exit_rules=[fixed:1,kl:0.1]", "dataset.max_evaluation_examples=16")
    for override, rule in (((), "margin:0.01"), (("model.exit_rule=margin:0.02",), "margin:0.02")):
        run = execute_run(tmp_path / rule, *arguments, *override)
        assert read_json(run / "run.json")["exit_rule"] == rule
        assert rule in {row["rule"] for row in read_json(run / "exit_rules.json")["sets"]["inside"]["rows"]}
        baselines = [row["baseline"] for row in read_json(run / "run.json")["verdict"]["worth"]["comparisons"]]
        assert "its own exits shuffled" in baselines
        assert not any("kl:0.1" in baseline for baseline in baselines)


@pytest.mark.parametrize("has_run", [True, False])
def test_an_evaluation_records_the_settings_of_its_checkpoint(trained_run: Path, tmp_path: Path, has_run: bool) -> None:
    """Evaluate a model folder without its run, which has the settings in its configuration alone."""
    folder = trained_run if has_run else shutil.copytree(trained_run / "model", tmp_path / "copy")
    command = (*ROOT, "mode=evaluate", f"checkpoint={folder}", "dataset.max_evaluation_examples=16")
    run = execute_run(tmp_path / "evaluated", *command, "model.exit_rule=fixed:2")
    recorded, stored = OmegaConf.load(run / "config.yaml").model, read_json(trained_run / "model" / "config.json")
    names = ("hidden_size", "num_loops", "objective", "injection", "train_loops", "backprop_loops", "gate", "prelude")
    assert [recorded[name] for name in names] == [stored[name] for name in names]
    assert recorded.exit_rule == "fixed:2"


@pytest.mark.slow
def test_exits_are_studied_and_fitted(trained_run: Path, tmp_path: Path) -> None:
    rules = "exit_rules=[fixed:1,fixed:3,margin:0.5,confidence:0.3,kl:0.1,distance:0.8,acceleration:1:1]"
    budgets = ("model.exit_rule=distance:0.1", "budget.targets=[1.5]")
    arguments = ("mode=evaluate", f"checkpoint={trained_run}", rules, *budgets, "dataset.max_evaluation_examples=16")
    run = execute_run(tmp_path, *ROOT, *arguments)
    study = read_json(run / "exit_rules.json")["sets"]["inside"]
    rows = {row["rule"]: row for row in study["rows"]}
    assert rows["fixed:1"]["mean_updates"] == 1
    assert rows["fixed:3"]["macs"] > 2 * rows["fixed:1"]["macs"]
    assert 1 <= rows["confidence:0.3"]["mean_updates"] <= 3
    for rule in ("kl:0.1", "distance:0.8", "acceleration:1:1", "margin:0.5"):
        assert rows[rule]["online"]["mean_updates"] == pytest.approx(rows[rule]["mean_updates"]), (
            "no rule moves a state"
        )
        assert rows[rule]["online"]["quality"] == pytest.approx(rows[rule]["quality"])
    fitted = read_json(run / "budgets.json")
    assert fitted["knob"] == "exit_rule distance"
    row = fitted["rows"][-1]
    assert row["target"] == 1.5
    assert row["fit"]["depth"] == pytest.approx(1.5, rel=0.1)
    assert f"{row['mean']:.2f}" in (run / "report.html").read_text(encoding="utf-8")
