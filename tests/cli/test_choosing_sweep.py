"""The choosing sweep: its runs, exclusions and files, and its continuation by repeating the command.

The trainings are stand-ins that write the files of a run; scores are a function of learning rate, seed and epoch.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import adadepth.tasks
from adadepth.config import ExperimentConfig, Mode
from adadepth.runs.directory import open_run, run_directory
from adadepth.tasks.multi_seed import train_with_seeds
from tests.cli.support import Command, Jobs, Refusal
from tests.marks_support import keep_one_quick

SWEEP = [
    "--config-name", "act_cola", "sweep=glue", "seeds=2", "trainer.learning_rate=1e-4,1e-3",
    "trainer.per_device_train_batch_size=16", "trainer.num_train_epochs=3",
]  # fmt: skip
FOLDER = Path("outputs/act_cola/sweep")
# By learning rate and seed: the scores of epochs 1 to 3. Means from epoch 2 on: 0.45, 0.35 and 0.4, 0.6.
SCORES = {
    (1e-4, 0): (0.9, 0.8, 0.3), (1e-4, 1): (0.9, 0.1, 0.4), (1e-3, 0): (0.0, 0.5, 0.5), (1e-3, 1): (0.0, 0.3, 0.7),
    (1e-4, 2): (0.0, 0.0, 0.0), (1e-3, 2): (0.0, 0.9, 0.0),
}  # fmt: skip


class Trainings:
    """Stand-ins for trainings that record their configurations."""

    def __init__(self) -> None:
        self.requested: Jobs = []
        self.failing: set[tuple[float, int]] = set()

    def run(self, config: ExperimentConfig) -> float:
        if config.mode is Mode.evaluate:
            self.evaluate(config)
        elif config.seeds > 1:
            train_with_seeds(config, self.train)
        else:
            self.train(config)
        return 0.0

    def train(self, config: ExperimentConfig) -> tuple[dict[str, float], Path]:
        self.requested.append(config)
        rate = config.trainer.learning_rate
        directory = run_directory(config)
        with open_run(config, directory):
            if (rate, config.seed) in self.failing:
                raise ValueError("the loss is not finite")
            lines = []
            for epoch, score in enumerate(SCORES[rate, config.seed], start=1):
                (directory / "checkpoints" / f"checkpoint-{7 * epoch}").mkdir(parents=True)
                lines.append({"step": 7 * epoch, "eval/score": score, "train/epoch": float(epoch)})
                lines.append({"step": 7 * epoch, "cost/executed": 1.0})
            (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return {"eval/score": 0.0}, directory

    def evaluate(self, config: ExperimentConfig) -> None:
        self.requested.append(config)
        directory = run_directory(config)
        with open_run(config, directory) as run:
            (directory / "submission").mkdir()
            (directory / "submission" / "CoLA.tsv").write_text("index\tprediction\n0\t1\n")
            run.update(evaluated=config.checkpoint)

    def take(self) -> list[tuple[str, float, int]]:
        """Return the configurations since the last call."""
        requests = [(str(config.mode), config.trainer.learning_rate, config.seed) for config in self.requested]
        self.requested.clear()
        return requests


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Trainings:
    stand_ins = Trainings()
    monkeypatch.setattr(adadepth.tasks, "run", stand_ins.run, raising=False)
    return stand_ins


def list_checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("runs/*/*/checkpoints/*"))


def test_one_command_trains_chooses_predicts_and_summarises(command: Command, trainings: Trainings) -> None:
    """Check also that a repetition runs nothing."""
    result = command(*SWEEP).checked()
    assert trainings.take() == [
        ("train", 1e-4, 0), ("train", 1e-4, 1), ("train", 1e-3, 0), ("train", 1e-3, 1), ("evaluate", 1e-3, 1),
    ]  # fmt: skip
    choice = json.loads((FOLDER / "choice.json").read_text())["chosen"]
    assert choice["settings"] == {"trainer.learning_rate": "0.001"}
    assert (choice["epoch"], choice["mean"], choice["seed"], choice["score"]) == (3, pytest.approx(0.6), 1, 0.7)
    assert (FOLDER / choice["checkpoint"]).name == "checkpoint-21"
    assert list_checkpoints(FOLDER) == ["checkpoint-21"], "all others are deleted"
    assert (FOLDER / "submission" / "CoLA.tsv").read_text() == "index\tprediction\n0\t1\n"
    page = (FOLDER / "report.html").read_text()
    assert "learning_rate=0.0001" in page, "the runs stand side by side below the grid"
    assert "n = 4 runs of 2 settings" in page
    assert "chosen: trainer.learning_rate=0.001, epoch 3: eval/score 0.6000 +- 0.1414 over 2 seeds" in result.out
    assert not list(Path("outputs/act_cola").glob("*/run.json")), "`latest` is never a part of a sweep"
    first = (FOLDER / "choice.json").read_text()
    command(*SWEEP).checked()
    assert trainings.take() == []
    assert (FOLDER / "choice.json").read_text() == first


@pytest.mark.slow
def test_a_repetition_with_other_settings_runs_only_what_is_missing(command: Command, trainings: Trainings) -> None:
    command(*SWEEP).checked()
    trainings.requested.clear()
    command(*SWEEP, "seeds=3").checked()
    # The means of epoch 2 are now 0.3 and 0.57, those of epoch 3 0.23 and 0.4: that of seed 2 is the best there.
    assert trainings.take() == [("train", 1e-4, 2), ("train", 1e-3, 2), ("evaluate", 1e-3, 2)]
    command(*SWEEP).checked()  # the checkpoint was deleted in between
    assert trainings.take() == [("train", 1e-3, 1), ("evaluate", 1e-3, 1)]
    command(*SWEEP, "trainer.warmup_steps=3").checked()
    assert len(trainings.take()) == 5, "other settings are another grid"


@pytest.mark.slow
def test_a_failing_cell_is_left_out_and_run_again_by_a_repetition(command: Command, trainings: Trainings) -> None:
    trainings.failing = {(1e-3, 1)}
    result = command(*SWEEP).checked()
    assert (
        "left out: trainer.learning_rate=0.001: training act_cola failed unexpectedly (ValueError: the loss"
        in result.out
    )
    choice = json.loads((FOLDER / "choice.json").read_text())
    assert choice["chosen"]["settings"] == {"trainer.learning_rate": "0.0001"}
    assert (choice["chosen"]["epoch"], choice["chosen"]["seed"]) == (2, 0)
    trainings.failing, _ = set(), trainings.take()
    command(*SWEEP).checked()
    assert trainings.take() == [("train", 1e-3, 1), ("evaluate", 1e-3, 1)]
    choice = json.loads((FOLDER / "choice.json").read_text())
    assert (choice["left_out"], choice["chosen"]["settings"]) == ([], {"trainer.learning_rate": "0.001"})


def test_a_sweep_without_results_is_an_error_with_a_reason(command: Command, trainings: Trainings) -> None:
    trainings.failing = set(SCORES)
    result = command(*SWEEP)
    assert result.status == 2
    assert "no selection: " in result.err
    assert "ValueError: the loss is not finite" in result.err
    assert json.loads((FOLDER / "choice.json").read_text())["chosen"] is None
    assert "No selection" in (FOLDER / "report.html").read_text()


@pytest.mark.slow
def test_seeds_can_be_swept(command: Command, trainings: Trainings) -> None:
    command(*SWEEP, "seeds=1", "seed=1,0").checked()
    assert ("evaluate", 1e-3, 1) in trainings.take()
    choice = json.loads((FOLDER / "choice.json").read_text())
    assert choice["chosen"]["settings"] == {"trainer.learning_rate": "0.001"}
    assert choice["chosen"]["n"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(("root", "overrides", "seeds", "metric"), keep_one_quick(3, [
    ("act_qqp", [], 1, "eval/accuracy"), ("act_mnli", ["seeds=3"], 3, "eval/score"),
    ("act_mrpc", ["optimise=eval/f1"], 5, "eval/f1"),
]))  # fmt: skip
def test_large_tasks_have_one_seed_by_default(
    root: str,
    overrides: list[str],
    seeds: int,
    metric: str,
    command: Command,
    jobs: Jobs,
) -> None:
    command("--config-name", root, "sweep=glue", *overrides)
    assert len(jobs) == 6
    assert {(job.seeds, job.optimise, job.trainer.save_total_limit) for job in jobs} == {(seeds, metric, None)}


@pytest.mark.parametrize(("overrides", "message"), [
    (["trainer.num_train_epochs=1"], "hydra.sweeper.from_epoch=2: must be at most trainer.num_train_epochs=1"),
    (["trainer.save_total_limit=1"], "trainer.save_total_limit=1: must be null to choose an epoch"),
    (["trainer.eval_strategy=steps", "trainer.eval_steps=5", "trainer.save_strategy=steps", "trainer.save_steps=5"],
     "trainer.eval_strategy, trainer.save_strategy: must be epoch to choose an epoch"),
    (["hydra.sweeper.direction=up"], "hydra.sweeper.direction=up: must be maximize or minimize"),
    (["trainer.learning_rate=-1,1e-3"], "trainer.learning_rate=-1.0: must be above 0"),
])  # fmt: skip
def test_an_impossible_choice_fails_before_anything_runs(overrides: list[str], message: str, refused: Refusal) -> None:
    assert message in refused(*SWEEP, *overrides)


@pytest.mark.slow
def test_a_small_sweep_writes_a_correct_submission(command: Command, tmp_path: Path) -> None:
    """Train two cells of two seeds; the final evaluation has the score of the training."""
    table = tmp_path / "table"
    table.mkdir()
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "slept"]
    for split, rows in (("train", 24), ("validation", 12), ("test", 5)):
        texts = [" ".join(words[row % 5 :][:4]) for row in range(rows)]
        lines = [json.dumps({"sentence": text, "label": row % 2}) for row, text in enumerate(texts)]
        (table / f"{split}.jsonl").write_text("\n".join(lines))
    command(
        *SWEEP, "model=albert_mini", "model.embedding_size=16", "model.hidden_size=32", "model.num_hidden_layers=2",
        "model.num_attention_heads=2", "model.intermediate_size=64", "model.max_position_embeddings=32",
        "dataset.sequence_length=16", "tokenizer.path=null", "tokenizer.vocab_size=60", "dataset.source=local",
        f"dataset.path={table}", "dataset.metrics=[accuracy]", "trainer.num_train_epochs=2", "trainer.warmup_steps=0",
        "trainer.learning_rate=1e-3,1e-2", "predictions=true",
    ).checked()  # fmt: skip
    choice = json.loads((FOLDER / "choice.json").read_text())["chosen"]
    evaluation = FOLDER / choice["evaluation"]
    metrics = json.loads((evaluation / "run.json").read_text())["final_metrics"]
    assert metrics["eval/score"] == pytest.approx(choice["score"])
    rows = [json.loads(line) for line in (evaluation / "predictions" / "validation.jsonl").read_text().splitlines()]
    assert sum(row["label"] == row["prediction"] for row in rows) / 12 == pytest.approx(choice["score"])
    header, *lines = (FOLDER / "submission" / "CoLA.tsv").read_text().splitlines()
    assert header == "index\tprediction"
    assert [line.split("\t")[0] for line in lines] == ["0", "1", "2", "3", "4"]
    assert {line.split("\t")[1] for line in lines} <= {"0", "1"}
    assert list_checkpoints(FOLDER) == [Path(choice["checkpoint"]).name]
