"""Question answering and multiple choice with ACT-ALBERT, from the command's settings to a run's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMultipleChoice, AutoModelForQuestionAnswering

from adadepth import tasks
from adadepth.config import ExperimentConfig
from adadepth.data import load_labelled_data
from adadepth.evaluation.question_answering import AnswerPrediction
from adadepth.models.build import build_classifier
from adadepth.tasks.budgets import split_into_halves
from adadepth.tasks.finetune import build_finetuning_session
from adadepth.training.arguments import training_arguments
from adadepth.training.trainer import DepthTrainer
from tests.configs.support import configured
from tests.marks_support import keep_one_quick, mark_mostly_slow
from tests.training.questions_support import list_overrides, write_tables
from tests.training.support import run_config

NO_DROPOUT = ("model.classifier_dropout_prob=0", "model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0")


def answer_questions(tmp_path: Path, root: str, *overrides: str, **table: Any) -> tuple[Path, float | None]:
    """Run a root on small tables of its kind, and return the run directory and its metric."""
    output = f"output_dir={tmp_path}/out"
    return run_config(configured(root, *list_overrides(tmp_path, root, output, *overrides, **table)))


def read_last_metrics(directory: Path) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    for line in (directory / "metrics.jsonl").read_text().splitlines():
        metrics |= json.loads(line)
    return metrics


@pytest.mark.parametrize(("root", "overrides", "classes", "auto"), [
    pytest.param(
        "act_squad", ("dataset=squad_v2", "trainer=albert_squad_v2"),
        ["all", "correct", "wrong", "question", "context", "answer", "cls", "sep"], AutoModelForQuestionAnswering,
        marks=pytest.mark.slow,
    ),
    ("act_swag", (), ["all", "correct", "wrong", "right", "other", "taken", "context", "ending", "cls", "sep"],
     AutoModelForMultipleChoice),
])  # fmt: skip
def test_a_run_trains_reports_and_is_evaluated_again(
    root: Any, overrides: Any, classes: Any, auto: Any, tmp_path: Path
) -> None:
    splits = {"train": 12, "validation": 9, "other": 6}
    sets = ("dataset.evaluation_splits=[validation,other]", "dataset.max_train_examples=10")
    directory, metric = answer_questions(tmp_path, root, *overrides, *sets, unanswerable=bool(overrides), **splits)
    record = json.loads((directory / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["final_metrics"]["eval/score"] == metric
    assert record["data"]["train"]["examples"] == 10
    logged = read_last_metrics(directory)
    for name in ("eval/loss", "eval/task_loss", "eval/ponder_loss", "eval/other/score", "train/task_loss"):
        assert logged[name] >= 0, name
    halting = json.loads((directory / "halting.json").read_text())
    assert (halting["unit"], list(halting["classes"])) == ("token", classes)
    counts = {name: described["n"] for name, described in halting["classes"].items()}
    assert counts["correct"] + counts["wrong"] == counts["all"]
    text = "ending" if root == "act_swag" else "question"
    assert counts["context"] + counts[text] + counts["cls"] + counts["sep"] == counts["all"]
    page = (directory / "report.html").read_text()
    assert "tokens of the" in page
    assert auto.from_pretrained(directory / "model").config.hidden_size == 32
    if root == "act_squad":
        predictions = json.loads((directory / "predictions" / "validation.json").read_text())
        assert sorted(predictions) == sorted(f"q{number}" for number in range(8)), "debug evaluates eight questions"
        assert {"eval/exact_match", "eval/f1", "eval/f1/answerable", "eval/f1/unanswerable"} <= logged.keys()
    else:
        assert logged["eval/accuracy"] == metric
    overrides_again = list_overrides(tmp_path, root, *overrides, *sets)
    again = configured(
        root, *overrides_again, "mode=evaluate", f"checkpoint={directory}", f"output_dir={tmp_path}/again"
    )
    assert tasks.run(again) == pytest.approx(metric)


@pytest.mark.slow
@pytest.mark.parametrize("root", ["act_squad", "act_swag"])
def test_a_budget_holds_and_is_fitted(root: str, tmp_path: Path) -> None:
    readouts = ("model.readout_weight=0.5",) if root == "act_swag" else ()
    budget = ("model.act_penalty=0", "budget.target=2", *readouts)
    directory, _ = answer_questions(tmp_path, root, *budget)
    logged = read_last_metrics(directory)
    assert logged["budget/target"] == 2
    assert 1 <= logged["budget/measured"] <= 3
    assert ("eval/readouts_loss" in logged) == bool(readouts)
    overrides = list_overrides(tmp_path, root, "budget.targets=[1.5,2.5]", f"output_dir={tmp_path}/again", *readouts)
    tasks.run(configured(root, *overrides, "mode=evaluate", f"checkpoint={directory}"))
    (budgets,) = (json.loads(path.read_text()) for path in (tmp_path / "again").glob("*/*/budgets.json"))
    assert [row["target"] for row in budgets["rows"]] == [None, 1.5, 2.5]
    assert all("score" in row["metrics"] for row in budgets["rows"])


def test_no_question_is_in_both_halves_of_a_budget(tmp_path: Path) -> None:
    trainer, _ = build_trainer(tmp_path, "act_squad")
    examples: Any = trainer.evaluation_sets["validation"]
    fitting, reporting = split_into_halves(examples)
    fitted, measured = ({int(examples.owners[number]) for number in half.indices} for half in (fitting, reporting))
    assert fitted | measured == set(examples.owners.tolist())
    assert not fitted & measured
    assert len(fitting) + len(reporting) == len(examples) > len(fitted | measured)
    evaluation, _ = trainer.evaluate_set("validation", reporting)
    assert set(evaluation.report().predictions) == {examples.text(question).id for question in measured}


def build_trainer(tmp_path: Path, root: str, *overrides: str, **table: Any) -> tuple[DepthTrainer, ExperimentConfig]:
    """Build a trainer as the task does, without the run's folder."""
    config = configured(root, *list_overrides(tmp_path, root, *overrides, **table))
    args = training_arguments(config, tmp_path / "trainer")
    torch.manual_seed(0)
    data = load_labelled_data(config.dataset, config.tokenizer, config.seed)
    model = build_classifier(config.model, len(data.tokenizer), {}, data.problem)
    session = build_finetuning_session(config, args, data, model)
    trainer = DepthTrainer(model, args, data, session.evaluation_sets, session.start_evaluation, config.trainer)
    return trainer, config


@pytest.mark.parametrize("root", keep_one_quick(2, ["act_swag", "act_squad"]))
def test_evaluation_does_not_depend_on_its_batch_size(root: str, tmp_path: Path) -> None:
    trainer, _ = build_trainer(tmp_path, root)
    small = trainer.evaluate()
    histogram = trainer.last_reports["validation"].statistics["classes"]
    trainer.args.per_device_eval_batch_size = 7
    large = trainer.evaluate()
    for name, value in small.items():
        if "per_second" not in name and "runtime" not in name:
            assert large[name] == pytest.approx(value, rel=1e-5), name
    for name, described in trainer.last_reports["validation"].statistics["classes"].items():
        assert described.get("histogram") == histogram[name].get("histogram"), name


@pytest.mark.parametrize("threshold", mark_mostly_slow([-100.0, 0.0, 100.0], lambda threshold: threshold == 0.0))
def test_answers_equal_a_plain_loop_over_all_windows(threshold: float, tmp_path: Path) -> None:
    trainer, config = build_trainer(
        tmp_path, "act_squad", "dataset=squad_v2", "trainer=albert_squad_v2",
        f"dataset.null_score_threshold={threshold}", "model.initializer_range=0.3", "dataset.n_best=64",
        unanswerable=True,
    )  # fmt: skip
    trainer.evaluate()
    examples: Any = trainer.evaluation_sets["validation"]
    predicted = trainer.last_reports["validation"].predictions
    model = trainer.model.eval()
    best: dict[int, tuple[float, str]] = {}
    null: dict[int, float] = {}
    for number in range(len(examples)):
        example = examples[number]
        batch = trainer.data.collate([example])
        with torch.no_grad():
            outputs = model(**trainer.model_inputs(batch))
        starts, ends = outputs.start_logits[0].tolist(), outputs.end_logits[0].tolist()
        question = example["question"]
        null[question] = min(null.get(question, float("inf")), starts[0] + ends[0])
        for first in (batch["token_kind"][0] == 2).nonzero().flatten().tolist():
            for last in range(first, first + config.dataset.max_answer_length):
                if last < len(starts) and batch["token_kind"][0][last] == 2:
                    shift = example["context_shift"]
                    text = examples.span_text(question, first + shift, last + shift)
                    best[question] = max(best.get(question, (-1e9, "")), (starts[first] + ends[last], text))
    expected = {
        examples.text(question).id: "" if null[question] - score > threshold else text
        for question, (score, text) in best.items()
    }
    assert len(examples) > len(expected)
    assert predicted == expected
    if threshold:
        assert set(map(bool, predicted.values())) == {threshold > 0}


def test_windows_of_several_processes_are_joined_in_any_order() -> None:
    predictions = [
        AnswerPrediction(1.0, 5, 6, 3.0, 8, 4),
        AnswerPrediction(2.0, 9, 9, 4.0, 3, 2),
        AnswerPrediction(2.0, 3, 4, 2.5, 1, 1),
    ]
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        first, second, third = (predictions[number] for number in order)
        assert first.merge(second).merge(third) == AnswerPrediction(2.0, 3, 4, 2.5, 12, 7)


@pytest.mark.slow
@pytest.mark.parametrize(("root", "name"), [("act_squad", "eval/f1"), ("act_swag", "eval/accuracy")])
def test_a_small_table_is_learned(root: str, name: str, tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "table", root, train=24, validation=24)
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    for row in rows:  # what can be learned in seconds: the right answer is the same everywhere
        if root == "act_squad":
            row["answers"] = {"text": ["owl"], "answer_start": [row["context"].index("owl")]}
        else:
            row["label"] = next(choice for choice in range(4) if row[f"ending{choice}"] == "is a owl")
    for split in ("train", "validation"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    directory, _ = answer_questions(
        tmp_path, root, "trainer.max_steps=80", "dataset.max_evaluation_examples=null", "trainer.learning_rate=3e-3",
        "trainer.per_device_train_batch_size=16", "trainer.eval_strategy=no", "trainer.save_strategy=no",
        "trainer.load_best_model_at_end=false", "model.initializer_range=0.2", "model.act_penalty=0", *NO_DROPOUT,
    )  # fmt: skip
    record = json.loads((directory / "run.json").read_text())
    assert record["final_metrics"][name] > 0.8
