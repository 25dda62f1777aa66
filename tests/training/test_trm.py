"""Tiny recursive models as runs: slots and averages in checkpoints, answers in reports, rules and budgets."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from adadepth.config.data import MazePathConfig, SudokuConfig
from adadepth.data.puzzles.generated import load_maze_path, load_sudoku
from adadepth.models.trm.modeling import TrmForPuzzles
from tests.pages_support import check_costs
from tests.puzzles_support import MAZE, SUDOKU, Group, write_puzzle_arrays, write_puzzle_table
from tests.runs_support import execute_run, read_json, read_logged
from tests.toy_support import execute
from tests.training.support import assert_same_end, copy_interrupted_run

ROOT = ("--config-name", "trm_tiny")
SMALL = (
    "dataset.train_examples=90", "dataset.max_evaluation_examples=24", "model.hidden_size=16",
    "model.intermediate_size=16", "model.mixing_size=16", "model.num_steps=4", "trainer.max_steps=12",
    "trainer.per_device_train_batch_size=8", "trainer.warmup_steps=0", "trainer.learning_rate=0.01",
    "trainer.ema_decay=0.5", "trainer.eval_steps=3", "trainer.save_steps=3", "trainer.save_total_limit=null",
    "trainer.logging_steps=1", "trainer.disable_tqdm=true",
)  # fmt: skip


def run_command(folder: Path, *arguments: str) -> Path:
    return execute_run(folder, *ROOT, *arguments)


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_command(tmp_path_factory.mktemp("trained"), *SMALL)


def test_a_model_is_trained_and_evaluated(trained_run: Path) -> None:
    assert read_json(trained_run / "run.json")["status"] == "finished"
    halting = read_json(trained_run / "halting.json")
    assert halting["unit"] == "sequence"
    assert halting["max_depth"] == 4
    losses = read_logged(trained_run, "train/loss")
    assert losses[-1] < losses[0]
    for loss, task, halt in zip(
        losses, *(read_logged(trained_run, f"train/{part}_loss") for part in ("task", "halt")), strict=True
    ):
        assert loss == pytest.approx(task + halt, rel=1e-5)
    halted = read_logged(trained_run, "train/halted")
    assert sum(halted) == sum(count for step, count in enumerate(halted, 1) if count), "counts of every update"
    assert halted[0] == 0
    assert max(read_logged(trained_run, "train/halting_steps")) <= 4
    steps = read_json(trained_run / "exits.json")["sets"]["validation"]["steps"]
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    assert {"exact_accuracy", "cell_accuracy", "score"} <= steps[0]["quality"].keys()


def test_the_answers_of_every_step_are_shown(trained_run: Path) -> None:
    grids = read_json(trained_run / "grids.json")["sets"]["validation"]
    assert [grid["kind"] for grid in grids] == ["puzzle"] * 4
    for grid in grids:
        assert 1 <= len(grid["answers"]) <= 4
        for row, solution in zip(grid["cells"], grid["label"], strict=True):
            assert all(clue in (".", symbol) for clue, symbol in zip(row, solution, strict=True))
    check_costs(trained_run)
    report = (trained_run / "report.html").read_text(encoding="utf-8")
    assert "step 1" in report
    assert f"puzzle 0, rounds of deduction {grids[0]['attributes']['rounds of deduction']}, givens" in report
    assert "the answer after every step" in report
    assert "start S of the maze" not in report


def test_depth_is_reported_by_givens(trained_run: Path) -> None:
    attributes = read_json(trained_run / "halting.json")["attributes"]
    assert attributes.keys() == {"rounds of deduction", "givens"}
    assert all(sum(row["n"] for row in attribute["rows"]) == 24 for attribute in attributes.values())
    for grid in read_json(trained_run / "grids.json")["sets"]["validation"]:
        assert grid["attributes"]["givens"] == sum(symbol != "." for row in grid["cells"] for symbol in row)
    assert "Mean depth by givens" in (trained_run / "report.html").read_text(encoding="utf-8")


def test_a_stopped_run_ends_as_the_whole_one(trained_run: Path, tmp_path: Path) -> None:
    stopped = copy_interrupted_run(6, trained_run, tmp_path)
    slots = load_file(stopped / "checkpoints" / "checkpoint-6" / "slots_0.safetensors")
    assert len(slots["0/steps"].unique()) >= 1
    assert not slots["0/halted"].all()
    assert execute(*ROOT, *SMALL, f"resume={stopped}") == 0
    assert {file.stem for file in (stopped / "checkpoints" / "checkpoint-12").glob("*.safetensors")} == {
        "model", "weights_in_training", "slots_0",
    }  # fmt: skip
    assert_same_end(stopped, trained_run)


@pytest.mark.slow
def test_a_run_with_continued_training_can_be_evaluated(trained_run: Path, tmp_path: Path) -> None:
    """Evaluate a model folder that had the first training's card when the second one recorded its files."""
    longer = tmp_path / "trm_tiny" / trained_run.name
    shutil.copytree(trained_run, longer, ignore=shutil.ignore_patterns("figures"))
    assert execute(*ROOT, *SMALL, "trainer.max_steps=15", f"resume={longer}") == 0
    card = longer / "model" / "README.md"
    assert card.read_text(encoding="utf-8") != (trained_run / "model" / "README.md").read_text(encoding="utf-8")
    card.write_text("what its owner says of it", encoding="utf-8")
    data = ("dataset.max_evaluation_examples=24", "dataset.train_examples=90", f"output_dir={tmp_path / 'out'}")
    assert execute(*ROOT, *data, "mode=evaluate", f"checkpoint={longer}") == 0


@pytest.mark.slow
def test_the_average_is_evaluated_and_saved(trained_run: Path, tmp_path: Path) -> None:
    """Compute e <- d e + (1 - d) w after every update, from the weights of every update."""
    every = (
        "trainer.save_steps=1",
        "trainer.eval_steps=1",
        "trainer.max_steps=3",
        "trainer.load_best_model_at_end=false",
    )
    directory = run_command(tmp_path, *SMALL, *every)
    folders = [directory / "checkpoints" / f"checkpoint-{step}" for step in (1, 2, 3)]
    averages = [load_file(folder / "model.safetensors") for folder in folders]
    weights = [load_file(folder / "weights_in_training.safetensors") for folder in folders]
    for name in weights[0]:
        assert not torch.equal(weights[1][name], averages[1][name]) or not weights[1][name].any(), name
        for before, weight, average in zip(averages, weights[1:], averages[1:], strict=False):
            torch.testing.assert_close(average[name], 0.5 * before[name] + 0.5 * weight[name])
    saved = load_file(directory / "model" / "model.safetensors")
    assert all(torch.equal(saved[name], averages[-1][name]) for name in saved)
    evaluated = tmp_path / "evaluated"
    again = run_command(evaluated, *SMALL, "mode=evaluate", f"checkpoint={folders[-1]}")
    assert read_logged(again, "eval/loss")[-1] == pytest.approx(read_logged(directory, "eval/loss")[-1], rel=1e-6)


@pytest.mark.slow
def test_rules_and_budgets_are_fitted_afterwards(trained_run: Path, tmp_path: Path) -> None:
    rules = "exit_rules=[fixed:1,correct:0.3,patience:1,confidence:0.5]"
    data = ("dataset.max_evaluation_examples=24", "dataset.train_examples=90")
    directory = run_command(tmp_path, *data, "mode=evaluate", f"checkpoint={trained_run}", rules, "budget.targets=[2]")
    study = read_json(directory / "exit_rules.json")["sets"]["validation"]
    rows = {row["rule"]: row for row in study["rows"]}
    one, full = rows["fixed:1"], rows["fixed:4"]
    assert full["macs"] == pytest.approx(4 * one["macs"])
    assert full["quality"]["exact_accuracy"] <= rows["oracle"]["quality"]["exact_accuracy"]
    assert study["timing"]["waiting"] == "waiting examples take the freed slots"
    assert read_json(directory / "budgets.json")


@pytest.mark.slow
def test_an_evaluation_with_slots_stops_at_exits(trained_run: Path, tmp_path: Path) -> None:
    """Check equal answers and depths for the compute that they need; the worth of single steps is then unknown."""
    data = ("dataset.max_evaluation_examples=24", "dataset.train_examples=90", "model.exit_rule=confidence:0.2")
    evaluate = (*data, "mode=evaluate", f"checkpoint={trained_run}")
    whole, stopped = (run_command(tmp_path / name, *evaluate, *overrides) for name, overrides in
                      (("whole", ()), ("stopped", ("model.places=5",))))  # fmt: skip
    names = ("exact_accuracy", "cell_accuracy", "score")
    actual, expected = (
        [read_logged(run, f"eval/{name}")[-1] for name in names] + [read_json(run / "halting.json")["classes"]["all"]]
        for run in (stopped, whole)
    )
    assert actual == expected
    assert 1 < expected[-1]["mean"] < 4
    costs = [read_json(run / "halting.json")["cost"] for run in (whole, stopped)]
    assert costs[0]["executed_macs"] == costs[0]["full_macs"]
    assert costs[1]["executed_macs"] == costs[1]["adaptive_macs"] == costs[0]["adaptive_macs"]
    assert [(run / "exits.json").exists() for run in (whole, stopped)] == [True, False]


@pytest.fixture(scope="module")
def budget_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run with a target on 4 x 4 Sudoku."""
    data = ("dataset.size=4", "dataset.train_examples=400", "dataset.max_evaluation_examples=200")
    often = ("trainer.max_steps=40", "trainer.eval_steps=20", "trainer.save_steps=20")
    return run_command(tmp_path_factory.mktemp("budgeted"), *SMALL, *data, *often, "budget=depth", "budget.target=2")


def compute_updates_of_saved_model(directory: Path) -> torch.Tensor:
    """Return the updates that the saved exit rule spends on the held-out puzzles, computed from the halting logits."""
    model = TrmForPuzzles.from_pretrained(directory / "model").eval()
    dataset = SudokuConfig(name="sudoku", size=4, train_examples=400, max_evaluation_examples=200)
    held_out = load_sudoku(dataset, seed=0).evaluation["validation"]
    puzzles = torch.from_numpy(held_out.puzzles).long()
    with torch.no_grad():
        every = model(puzzles, exit_rule="fixed:4", run_all_steps=True).halting_logits
    _, level = model.config.exit_rule.split(":")
    goes_on = (every.sigmoid() <= float(level)).cumprod(dim=1)[:, :-1]
    return 1 + goes_on.sum(dim=1)


@pytest.mark.slow
def test_a_target_is_met_by_the_saved_rule_on_other_puzzles(budget_run: Path) -> None:
    """Fit the threshold on one half of the held-out puzzles, and check the figures of the other."""
    budgets = read_json(budget_run / "budgets.json")
    before, row = budgets["rows"]
    assert (before["target"], row["target"]) == (None, 2)
    assert (budgets["fitted_on"], budgets["measured_on"]) == (100, 100)
    rule = read_json(budget_run / "model" / "config.json")["exit_rule"]
    assert rule == row["rule"] == f"correct:{row['fit']['level']!r}" != before["rule"] == "correct:0.9"
    steps = compute_updates_of_saved_model(budget_run)
    assert len(steps.unique()) > 1
    both = (row["fit"]["depth"] + row["mean"]) / 2
    assert both == pytest.approx(steps.double().mean().item(), abs=1e-6)
    assert row["fit"]["depth"] == pytest.approx(2, rel=0.05)
    assert row["mean"] == pytest.approx(2, rel=0.2)
    assert abs(row["mean"] - 2) < abs(before["mean"] - 2), "nearer than the rule it was trained with"


def test_a_target_is_reported_with_the_run(budget_run: Path) -> None:
    metrics, record = read_json(budget_run / "budgets.json")["rows"][1], read_json(budget_run / "run.json")
    assert read_logged(budget_run, "budget/target") == [2]
    assert read_logged(budget_run, "budget/measured") == [metrics["mean"]]
    assert record["final_metrics"]["budget/measured"] == metrics["mean"]
    every = compute_updates_of_saved_model(budget_run).double().mean().item()
    assert read_json(budget_run / "halting.json")["classes"]["all"]["mean"] == pytest.approx(every)
    report = (budget_run / "report.html").read_text(encoding="utf-8")
    assert "One checkpoint at several depths" in report
    assert "Budget and depth" not in report, "one figure at the end is no curve"


@pytest.mark.slow
def test_a_stopped_run_is_fitted_to_its_target(
    budget_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = copy_interrupted_run(20, budget_run, tmp_path)
    (stopped / "budgets.json").unlink()
    assert execute(f"resume={stopped}") == 0
    budgets, expected = read_json(stopped / "budgets.json"), read_json(budget_run / "budgets.json")
    for row in (*budgets["rows"], *expected["rows"]):
        assert row.pop("ms_per_token") > 0  # measured, so it differs
    assert budgets == expected
    rule, spent = budgets["rows"][1]["rule"], budgets["rows"][1]["mean"]
    is_far = abs(spent - 2) > 0.1
    notice = f"budget.target=2: fitted exit_rule {rule}, which gives {spent:.3g} updates on 100 other sequences"
    printed = capsys.readouterr().out.replace("\n  ", " ")  # the console wraps prose
    assert notice + (", off by more than 5%\n" if is_far else "\n") in printed
    assert (
        read_json(stopped / "model" / "config.json")["exit_rule"]
        == read_json(budget_run / "model/config.json")["exit_rule"]
    )


def test_a_checkpoint_reads_puzzles_of_its_size(
    trained_run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ("mode=evaluate", f"checkpoint={trained_run}", "dataset.size=4", f"output_dir={tmp_path}")
    assert execute(*ROOT, *arguments, "dataset.max_evaluation_examples=4", "dataset.train_examples=40") == 2
    assert "its " in capsys.readouterr().err


def test_a_batch_that_is_never_full_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Check 60 puzzles of 4 x 4 cells, most of which are moved evaluation puzzles: such a run had no update."""
    data = ("dataset.size=4", "dataset.train_examples=60", "dataset.max_evaluation_examples=60")
    assert execute(*ROOT, *data, f"output_dir={tmp_path}", "trainer.per_device_train_batch_size=60") == 2
    printed = capsys.readouterr().err
    assert "trainer.per_device_train_batch_size=60: there are " in printed
    assert " training examples, too few for a full batch; " in printed
    assert not list(tmp_path.iterdir())


TARGET = ("budget=depth", "budget.target=2")


@pytest.mark.parametrize(("arguments", "message"), [
    ((*TARGET, "budget.target=17"), "budget.target=17: must be from 1 to 16, in updates"),
    ((*TARGET, "budget.unit=macs"), "budget.target=2: "),
    ((*TARGET, "budget.unit=milliseconds"),
     "budget.unit=milliseconds: training of model=trm supports updates, macs"),
    ((*TARGET, "budget.hold=0.2"),
     "budget.hold=0.2: model=trm is fitted to its target after training; leave it at 0.15"),
    ((*TARGET, "budget.gain=2"), "budget.gain=2: model=trm is fitted to its target after training; leave it at 1"),
    ((*TARGET, "model.exit_rule=patience:1"),
     "model.exit_rule=patience:1: budget.target=2 fits the threshold P of"),
    ((*TARGET, "trainer.halting_statistics=false"), "budget.target=2: needs trainer.halting_statistics=true"),
    (("trainer.dataloader_drop_last=false",), "trainer.dataloader_drop_last=false: "),
    (("dataset=cola",), "model=trm: task=finetune has no classifier of this family"),
    (("model=albert_mini",), "model=albert: dataset=sudoku has puzzles; use trm"),
    (("dataset.size=5",), "dataset.size=5: must be 4, 6 or 9"),
    (("trainer.optimizer=adam_atan2",), "trainer.adam_epsilon=1e-08: trainer.optimizer=adam_atan2 has none; set"),
    (("dataset.metrics=[accuracy]",), "dataset.metrics=accuracy: not a metric of a puzzle"),
])  # fmt: skip
def test_mistakes_are_one_line_errors(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert execute(*ROOT, f"output_dir={tmp_path}", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


PUBLISHED = {"trm_sudoku_extreme": (9, SUDOKU), "trm_maze_hard": (10, MAZE)}


def draw_groups(root: str) -> dict[str, list[Group]]:
    """Draw puzzles as of a published experiment, on smaller mazes."""
    if root == "trm_sudoku_extreme":
        dataset = SudokuConfig(name="sudoku", size=9, blanks=30, train_examples=24, max_evaluation_examples=8)
        data: Any = load_sudoku(dataset, seed=0)
    else:
        data = load_maze_path(
            MazePathConfig(name="maze_path", size=10, train_examples=24, max_evaluation_examples=8), seed=0
        )
    splits = {"train": data.train, "test": data.evaluation["validation"]}
    return {
        split: [[row] for row in zip(examples.puzzles, examples.solutions, strict=True)]
        for split, examples in splits.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["tables", "arrays"])
@pytest.mark.parametrize("root", PUBLISHED)
def test_published_experiments_train_on_published_layouts(root: str, layout: str, tmp_path: Path) -> None:
    folder, groups = tmp_path / "data", draw_groups(root)
    if layout == "arrays":
        write_puzzle_arrays(folder, groups, PUBLISHED[root][1])
    else:
        folder.mkdir()
        for split, puzzles in groups.items():
            write_puzzle_table(folder / f"{split}.csv", puzzles, PUBLISHED[root][1])
    narrow = (
        "model.hidden_size=32", "model.intermediate_size=32", "model.mixing_size=32", "model.num_attention_heads=2",
        "model.num_steps=2", "model.exit_rule=fixed:2",
    )  # fmt: skip
    short = (
        "trainer.max_steps=2", "trainer.eval_steps=2", "trainer.per_device_train_batch_size=8",
        "trainer.warmup_steps=0", "trainer.disable_tqdm=true",
    )  # fmt: skip
    paths = (f"output_dir={tmp_path / 'out'}", f"dataset.path={folder}")
    assert execute("--config-name", root, *paths, *narrow, *short) == 0
    (directory,) = (tmp_path / "out").glob("*/*")
    record = read_json(directory / "run.json")
    assert record["status"] == "finished"
    assert record["data"]["cells"] == PUBLISHED[root][0] ** 2
    optimizer = torch.load(directory / "checkpoints" / "checkpoint-2" / "optimizer.pt", weights_only=True)
    moments = [len(group["params"]) for group in optimizer["param_groups"] if not group["by_sign"]]
    assert len(optimizer["state"]) == sum(moments), "the vector of the puzzles' kind descends by sign"
    assert len(optimizer["param_groups"]) == 2
    assert len(read_logged(directory, "eval/exact_accuracy")) >= 1
