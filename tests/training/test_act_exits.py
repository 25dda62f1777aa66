"""ACT-ALBERT under exit rules, from the command's settings to its files: tagged tokens and whole sequences."""

import csv
import json

import pytest
import torch
from transformers import AutoTokenizer

from adadepth import AlbertActForSequenceClassification, Pipeline, tasks
from tests.configs.support import configured
from tests.training.finetune_support import SMALL
from tests.training.support import run_debug

MAZE = (
    "dataset.size=3", "dataset.beyond_sizes=[]", "dataset.train_examples=64", "dataset.max_evaluation_examples=24",
    "model.num_hidden_layers=4", "model.hidden_size=32", "model.embedding_size=16", "model.intermediate_size=32",
    "budget=none",
)  # fmt: skip


def run_evaluation(tmp_path, root, trained, *overrides):
    out = tmp_path / "evaluated"
    tasks.run(configured(root, "mode=evaluate", f"checkpoint={trained}", f"output_dir={out}", *overrides))
    (directory,) = out.glob("*/*")
    return directory


@pytest.mark.slow
def test_tagged_tokens_exit_by_rules(tmp_path, capsys):
    trained, _ = run_debug(tmp_path / "out", "act_maze", *MAZE, "model.readout_weight=0.5")
    metrics = json.loads((trained / "run.json").read_text())["final_metrics"]
    assert metrics["eval/readouts_loss"] > 0
    assert metrics["eval/loss"] == pytest.approx(metrics["eval/task_loss"] + metrics["eval/readouts_loss"])
    rules = "exit_rules=[confidence:0.6,patience:1,quantile:0.99,quantile:0.3,fixed:2]"
    directory = run_evaluation(tmp_path, "act_maze", trained, *MAZE[:4], rules)
    (study,) = json.loads((directory / "exit_rules.json").read_text())["sets"].values()
    rows = {row["rule"]: row for row in study["rows"]}
    assert rows["fixed:2"]["online"]["quality"] == rows["fixed:2"]["quality"]
    assert rows["fixed:4"]["online"]["mean_updates"] == 4
    assert set(rows["fixed:4"]["seconds"]) == {"1", "8", "32"}
    assert "online" not in rows["oracle"]
    (exits,) = json.loads((directory / "exits.json").read_text())["sets"].values()
    assert exits["n"] == study["n"] > 24
    assert len(exits["steps"]) == 4
    assert exits["steps"][1]["quality"]["accuracy"] == pytest.approx(rows["fixed:2"]["quality"]["accuracy"])
    # The exits of the model's own threshold, replayed.
    assert exits["exit"]["mean"] == pytest.approx(rows["quantile:0.99"]["mean_updates"])
    assert exits["calibration"].keys() == {"confidence", "halting"}
    assert "executed" in (directory / "report.html").read_text()
    with (directory / "pareto.csv").open() as file:
        assert {row["rule"]: row["online_updates"] for row in csv.DictReader(file)}["fixed:2"] == "2.0"
    assert "executed: the rules were also executed" in capsys.readouterr().out


@pytest.mark.slow
def test_whole_sequences_exit_by_rules(tmp_path):
    model = ("model=albert_act_mini", *SMALL)
    trained, _ = run_debug(tmp_path / "out", "ponder_tiny", *model, "model.readout_weight=1")
    data = ("model=albert_act_mini", "dataset.sequence_length=32", "dataset.max_evaluation_examples=16")
    directory = run_evaluation(tmp_path, "ponder_tiny", trained, *data, "exit_rules=[quantile:0.5,fixed:2]")
    (study,) = json.loads((directory / "exit_rules.json").read_text())["sets"].values()
    rows = {row["rule"]: row for row in study["rows"]}
    assert study["n"] == 16
    assert rows["fixed:2"]["mean_updates"] == 2
    assert rows["fixed:2"]["macs_ratio"] == pytest.approx(2, rel=0.2)
    assert all("online" not in row for row in rows.values()), "a replay is exact: nobody sees another sequence"
    (exits,) = json.loads((directory / "exits.json").read_text())["sets"].values()
    assert exits["n"] == 16

    tagger = AlbertActForSequenceClassification.from_pretrained(trained / "model")
    tokenizer = AutoTokenizer.from_pretrained(trained / "model")
    (prediction,) = Pipeline(tagger, tokenizer, exit_rule="fixed:2")(["the cat sat"])
    assert prediction.updates == 2
    assert torch.tensor(prediction.score).isfinite()
