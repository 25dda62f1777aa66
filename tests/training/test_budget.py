"""Runs under a budget: settings and files, one checkpoint at several depths, and matched baselines."""

import json

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from adadepth import AlbertActForTokenClassification, tasks
from adadepth.data import load_labelled_data
from adadepth.errors import CheckpointError
from adadepth.metrics.metric_names import SPEEDUPS
from adadepth.runtime.hardware import describe_machine
from tests.configs.support import configured
from tests.pages_support import check_costs

TINY = (
    "debug=default", "trainer.disable_tqdm=true", "dataset.size=3", "dataset.beyond_sizes=[]",
    "dataset.max_evaluation_examples=24", "dataset.train_examples=32", "model.num_hidden_layers=4",
    "model.hidden_size=16", "model.embedding_size=16", "model.num_attention_heads=2", "model.intermediate_size=32",
    "budget.target=2", "budget.grow_from=3", "trainer.max_steps=4", "trainer.logging_steps=1",
)  # fmt: skip


def read_lines(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    tasks.run(configured("act_maze", *TINY, f"output_dir={folder}"))
    (directory,) = folder.glob("act_maze/*")
    return directory


def test_target_depth_and_multiplier_are_logged_and_plotted(trained_run):
    lines = [line for line in read_lines(trained_run) if "budget/target" in line]
    assert lines[0]["budget/target"] == 3  # grow_from
    assert all({"budget/measured", "budget/multiplier", "train/budget_loss"} <= line.keys() for line in lines)
    assert lines[0]["budget/multiplier"] == 0
    assert (trained_run / "figures" / "budget.png").exists()
    page = (trained_run / "report.html").read_text()
    assert "Budget and depth" in page
    assert "Multiplier of depth" in page
    assert (trained_run / "checkpoints" / "checkpoint-4" / "budget.json").exists()


def test_a_run_with_all_advised_settings_gets_no_advice(trained_run):
    """Run `act_maze`, which has a deeper bias than advised, the state rule and recall, and here also a budget."""
    adaptation = json.loads((trained_run / "halting.json").read_text())["adaptation"]
    assert "does not adapt" in adaptation["warning"]
    assert "advice" not in adaptation


def test_ragged_execution_is_timed_against_dense(trained_run):
    record = json.loads((trained_run / "run.json").read_text())
    assert record["executions"]["machine"] == describe_machine(torch.device("cpu"))
    for kind, metric in SPEEDUPS.items():
        speed = record["executions"][kind]
        assert speed["speedup"] == record["final_metrics"][metric] > 0
        assert speed["allowed"] >= 1
        assert speed["sequences"] > 0
    assert "Ragged against dense execution" in (trained_run / "report.html").read_text()
    check_costs(trained_run)


@pytest.mark.slow
def test_a_budget_moves_a_saturated_halting_unit_to_its_target(tmp_path):
    """Start from halting probabilities of 1e-9, which have no gradient: the budget loss alone leaves every token at the
    cap.
    """
    phases = ("budget.grow=0", "budget.hold=0", "budget.ramp=0", "budget.grow_from=1")
    saturated = (
        "model.halt_bias_init=-20",
        "trainer.max_steps=120",
        "trainer.eval_strategy=no",
        "trainer.load_best_model_at_end=false",
    )
    tasks.run(configured("act_maze", *TINY, *phases, *saturated, f"output_dir={tmp_path}"))
    (directory,) = tmp_path.glob("*/*")
    depths = [line["budget/measured"] for line in read_lines(directory) if "budget/measured" in line]
    assert depths[0] == 4.0
    assert 1.4 <= depths[-1] <= 2.6


def test_one_checkpoint_is_fitted_to_several_depths(trained_run, tmp_path, capsys):
    overrides = ("mode=evaluate", f"checkpoint={trained_run}", "budget.targets=[1,3,4]", f"output_dir={tmp_path}")
    tasks.run(configured("act_maze", *TINY, "budget.target=null", *overrides))
    (directory,) = tmp_path.glob("*/*")
    budgets = json.loads((directory / "budgets.json").read_text())
    assert (budgets["fitted_on"], budgets["measured_on"]) == (12, 12)
    assert [row["target"] for row in budgets["rows"]] == [None, 1, 3, 4]
    means = [row["mean"] for row in budgets["rows"][1:]]
    assert means == sorted(means)
    for row in budgets["rows"][1:]:
        assert row["fit"]["is_reached"] == (abs(row["fit"]["depth"] - row["target"]) <= 0.005 * row["target"])
        assert 0 < row["adaptive_over_full"] <= 1
    assert (directory / "budgets.csv").read_text().startswith("target,level,fitted,mean,std,")
    assert (directory / "figures" / "budgets.png").exists()
    assert "One checkpoint at several depths" in (directory / "report.html").read_text()
    assert "one checkpoint at several depths (updates)" in capsys.readouterr().out


def score_by_hand(checkpoint, rows):
    """Return accuracy and mean depth over the cells of some mazes, computed one maze at a time."""
    config = configured("act_maze", *TINY)
    data = load_labelled_data(config.dataset, config.tokenizer, config.seed)
    model = AlbertActForTokenClassification.from_pretrained(checkpoint / "model").eval()
    right, updates = [], []
    for row in rows:
        batch = data.collate([data.evaluation["inside"][int(row)]])
        names = ("input_ids", "token_type_ids", "position_ids")
        with torch.no_grad():
            outputs = model(**{name: batch[name][:, :9] for name in names})  # without padding
        labels = batch["labels"][:, :9]
        right += (outputs.logits.argmax(-1) == labels)[labels >= 0].tolist()
        updates += outputs.trace.updates.flatten().tolist()
    return sum(right) / len(right), sum(updates) / len(updates)


@pytest.mark.slow
def test_a_model_is_scored_as_trained_on_both_halves(trained_run, tmp_path, capsys):
    """Evaluate the halves on which budgets are fitted and scored, so that the model can be compared with them."""
    overrides = ("mode=evaluate", f"checkpoint={trained_run}", "score_halves=true", f"output_dir={tmp_path}")
    tasks.run(configured("act_maze", *TINY, "budget.target=null", *overrides))
    (directory,) = tmp_path.glob("*/*")
    (row,) = json.loads((directory / "budgets.json").read_text())["rows"]
    order = np.random.default_rng(0).permutation(24)
    score, depth = score_by_hand(trained_run, order[12:])
    assert row["metrics"]["score"] == pytest.approx(score)
    assert row["mean"] == pytest.approx(depth)
    assert row["fitting_metrics"]["score"] == pytest.approx(score_by_hand(trained_run, order[:12])[0])
    assert row["n"] == 12 * 9
    assert row["target"] is None
    # Without targets, no table of depths is shown.
    assert "One checkpoint at several depths" not in (directory / "report.html").read_text()
    assert "one checkpoint at several depths" not in capsys.readouterr().out


def test_matched_baselines_enclose_the_compute_of_a_run(trained_run, capsys):
    halting = json.loads((trained_run / "halting.json").read_text())
    out = f"output_dir={trained_run.parents[1]}"
    # The newest folder is an evaluation, which is not what a baseline is compared with.
    tasks.run(configured("act_maze", *TINY, "budget.target=null", "mode=evaluate", f"checkpoint={trained_run}", out))
    tasks.run(configured("act_maze", *TINY, "rival_of=latest", out))
    adaptive, *rivals = json.loads((trained_run / "rivals.json").read_text())["rows"]
    assert adaptive["kind"] == "adaptive"
    assert adaptive["errors"]["eval/score"] == halting["classes"]["all"]["accuracy_error"]
    shares = [row["adaptive_macs"] / adaptive["adaptive_macs"] for row in rivals]
    assert min(shares) <= 1.01
    assert max(shares) >= 0.99 or rivals[-1]["depth"] == halting["max_depth"]
    for row in rivals:
        assert (row["mean"], row["std"]) == (row["depth"], 0)
        stored = json.loads((trained_run.parent / row["run"] / "model" / "config.json").read_text())
        assert stored["fixed_depth"] == row["depth"]
    assert "Matched baselines of fixed depth" in (trained_run / "report.html").read_text()
    assert "matched baselines of fixed depth" in capsys.readouterr().out


def test_a_matched_baseline_needs_a_finished_run(tmp_path, trained_run):
    with pytest.raises(CheckpointError, match=r"latest: no run with model"):
        tasks.run(configured("act_maze", *TINY, "rival_of=latest", f"output_dir={tmp_path}"))


def test_a_matched_baseline_trains_on_the_data_of_its_run(tmp_path, trained_run):
    with pytest.raises(
        CheckpointError, match=r"^rival_of=\S+: that run has task=finetune on dataset=maze; a compute-matched"
    ):
        tasks.run(configured("act_tiny", "debug=default", f"rival_of={trained_run}", f"output_dir={tmp_path}"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("cost", "message"), [
    (None, r"\S+ is not a finished run with measured compute$"),
    ({"adaptive_macs": 50.0}, "that run has task=finetune on dataset=sudoku; a compute-matched baseline "
                                  "must be trained like the run$"),
])  # fmt: skip
def test_runs_of_other_kinds_have_no_matched_baseline(tmp_path, cost, message):
    """Check a TRM run, whose puzzles are other data, and a run whose compute was not measured."""
    (tmp_path / "run" / "model").mkdir(parents=True)
    halting = {"unit": "sequence", "max_depth": 4, "cost": cost}
    (tmp_path / "run" / "halting.json").write_text(json.dumps(halting))
    (tmp_path / "run" / "run.json").write_text(json.dumps({"status": "finished", "config_name": "trm_tiny"}))
    settings = OmegaConf.structured(configured("trm_tiny"))
    (tmp_path / "run" / "config.yaml").write_text(OmegaConf.to_yaml(settings))
    with pytest.raises(CheckpointError, match=rf"^rival_of=\S+: {message}"):
        tasks.run(configured("act_maze", *TINY, f"rival_of={tmp_path}/run", f"output_dir={tmp_path}/out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_budget_can_be_a_share_of_full_compute(tmp_path):
    tasks.run(configured("act_maze", *TINY, "budget=work", "budget.target=0.5", f"output_dir={tmp_path}"))
    (directory,) = tmp_path.glob("*/*")
    last = [line for line in read_lines(directory) if "budget/measured" in line][-1]
    assert 0 < last["budget/measured"] <= 1
    assert last["budget/target"] == pytest.approx(0.5, abs=0.51)


@pytest.mark.slow
def test_a_budget_holds_models_that_halt_by_sequence(tmp_path):
    small = ("debug=default", "trainer.disable_tqdm=true", "model.num_hidden_layers=4", "dataset=hops_sequence")
    budget = ("budget=depth", "budget.target=2", "model.kl_penalty_factor=0", f"output_dir={tmp_path}")
    tasks.run(configured("ponder_tiny", *small, *budget))
    (directory,) = tmp_path.glob("*/*")
    assert any("budget/multiplier" in line for line in read_lines(directory))
