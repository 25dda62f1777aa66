"""User tables with `--config-name finetune dataset.path=...` alone: settings follow from the rows, given ones stay."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import Command, Jobs, Refusal

WORDS = ("good", "fine", "bad", "poor", "dull", "warm", "cold", "long")


def write_csv(path: Path, header: list[str], rows: list[list[Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def make_sentences(count: int) -> list[str]:
    return [f"a {WORDS[n % 8]} film with a {WORDS[n // 8 % 8]} plot, number {n} of many" for n in range(count)]


def make_rows(labels: list[Any]) -> list[list[Any]]:
    return [[text, label] for text, label in zip(make_sentences(len(labels)), labels, strict=True)]


def run_stub(command: Command, jobs: Jobs, *arguments: str) -> tuple[Any, str]:
    """Return the data settings and the console of a command whose run is a stub."""
    result = command("--config-name", "finetune", *arguments).checked()
    return jobs[-1], result.out


def test_a_file_with_other_column_names_is_read(command: Command, jobs: Jobs, tmp_path: Path) -> None:
    labels = [f"{n % 5 + 1}" for n in range(50)]
    rows = [[n, text, label] for n, (text, label) in enumerate(make_rows(labels))]
    file = write_csv(tmp_path / "mine.csv", ["Nr", "Review", "Stars"], rows)
    config, out = run_stub(command, jobs, "dataset=table", f"dataset.path={file}")
    assert config.dataset.text_columns == ["Review"]
    assert config.dataset.label_column == "Stars"
    assert (config.dataset.held_out, config.dataset.evaluation_splits) == (0.2, ["held_out"])
    assert config.dataset.problem == "classification"
    assert config.model.name == "albert_act"
    assert config.dataset.sequence_length % 8 == 0
    assert config.trainer.max_steps >= 100
    assert "columns: text=Review, label=Stars\n" in out
    assert "classes: 5 (1 20%, 2 20%, 3 20%, 4 20%, 5 20%)\n" in out
    assert "metric: accuracy" in out
    assert "model: albert_act_mini, 192 wide, trained from scratch" in out


def test_epochs_are_counted_over_the_examples_that_training_uses(command: Command, jobs: Jobs, tmp_path: Path) -> None:
    """Check a table of 300 rows of which 100 are trained on."""
    file = write_csv(tmp_path / "mine.csv", ["text", "label"], make_rows(["yes", "no"] * 150))
    limits = ("dataset.max_train_examples=100", "trainer.per_device_train_batch_size=8", "runtime.threads=1")
    config, out = run_stub(command, jobs, f"dataset.path={file}", "model=albert_act_mini", *limits)
    epochs = round(config.trainer.max_steps * 8 / 100, 1)
    assert f"training: {config.trainer.max_steps} optimiser steps of 8 texts, about {epochs:g} epochs" in out


@pytest.mark.parametrize(
    ("labels", "problem", "metrics"),
    [
        ([n / 7 for n in range(40)], "regression", ["pearson", "spearman"]),
        (list(range(40)), "regression", ["pearson", "spearman"]),
        (["spam"] + ["ham"] * 39, "classification", ["f1_macro"]),
        (["yes", "no"] * 20, "classification", ["accuracy"]),
        (["['joy', 'fear']", "['joy']", "[]", "['fear']"] * 10, "multi_label", ["micro_f1", "macro_f1"]),
    ],
    ids=["fractions", "many whole numbers", "unbalanced", "balanced", "lists"],
)
def test_labels_decide_problem_and_metric(
    labels: list[Any], problem: str, metrics: list[str], command: Command, jobs: Jobs, tmp_path: Path
) -> None:
    write_csv(tmp_path / "folder/train.csv", ["text", "label"], make_rows(labels))
    write_csv(tmp_path / "folder/test.csv", ["text", "label"], make_rows(labels[:10]))
    config, out = run_stub(command, jobs, f"dataset.path={tmp_path}/folder")
    assert (str(config.dataset.problem), list(config.dataset.metrics)) == (problem, metrics)
    assert config.dataset.evaluation_splits == ["held_out", "test"]
    assert ("seen once, so they cannot be both trained and evaluated: spam" in out) == (labels.count("spam") == 1)


def test_given_settings_stay(command: Command, jobs: Jobs, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "mine.csv", ["text", "label"], make_rows(["spam"] + ["ham"] * 39))
    overrides = (
        "dataset.metrics=[matthews]", "dataset.sequence_length=24", "dataset.held_out=0.3",
        "dataset.evaluation_splits=[held_out]", "model=pabee_mini", "trainer.max_steps=7",
    )  # fmt: skip
    command("--config-name", "finetune", f"dataset.path={file}", *overrides)  # the stub then asks for an ACT penalty
    config: Any = jobs[-1]
    assert list(config.dataset.metrics) == ["matthews"]
    assert (config.dataset.sequence_length, config.dataset.held_out) == (24, 0.3)
    assert config.model.name == "multi_exit_albert"
    assert config.trainer.max_steps == 7
    assert config.trainer.learning_rate == 1e-3  # of a small model from scratch


@pytest.mark.parametrize(
    ("header", "needles"),
    [(["text"], ("dataset.label_column", "columns text")), (["a", "b", "c"], ("dataset.text_columns", "a, b, c"))],
)
def test_ambiguous_columns_are_a_one_line_error(
    header: list[str], needles: tuple[str, ...], refused: Refusal, tmp_path: Path
) -> None:
    file = write_csv(tmp_path / "mine.csv", header, [[text] * len(header) for text in make_sentences(20)])
    message = refused("--config-name", "finetune", f"dataset.path={file}")
    assert all(needle in message for needle in needles)


def test_running_text_is_a_one_line_error(refused: Refusal, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("Some words.\n")
    message = refused("--config-name", "finetune", "dataset=text", "dataset.path=book.txt")
    assert "--config-name act_tiny" in message


def find_run(folder: Path) -> Path:
    (run,) = (folder / "outputs/finetune").iterdir()
    return run


def test_a_table_is_trained_and_predicted_with_one_command_each(command: Command, tmp_path: Path) -> None:
    labels = ["positive" if n % 8 in (0, 1, 5) else "negative" for n in range(60)]
    write_csv(tmp_path / "folder/train.csv", ["review", "sentiment"], make_rows(labels))
    test = write_csv(tmp_path / "folder/test.csv", ["review", "sentiment"], make_rows(labels[:12]))
    result = command("--config-name", "finetune", "dataset.path=folder", "debug=default").checked()
    run = find_run(tmp_path)
    record = json.loads((run / "run.json").read_text())
    assert record["chosen"][0] == "columns: text=review, label=sentiment"
    assert record["baselines"]["bag_of_words"]["sets"].keys() == {"held_out", "test"}
    assert "baseline on test, logistic regression" in result.out
    assert "dataset.sequence_length=" in record["command"]
    command("--config-name", "finetune", "mode=predict", f"checkpoint={run}", f"input={test}").checked()
    (written,) = run.glob("evaluations/*/predictions.csv")
    with written.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["review"] for row in rows] == make_sentences(12)
    assert {row["prediction"] for row in rows} <= {"positive", "negative"}
    for row in rows:
        assert float(row["probability_positive"]) + float(row["probability_negative"]) == pytest.approx(1, abs=1e-5)
        assert 1 <= float(row["updates"]) <= 6


@pytest.mark.slow
def test_tagged_words_are_trained_and_predicted_with_one_command_each(command: Command, tmp_path: Path) -> None:
    text = "\n".join(f"{word}\t{'B-PER' if n % 3 == 0 else 'O'}" for n, word in enumerate(WORDS))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/train.conll").write_text(f"{text}\n\n" * 20)
    (tmp_path / "folder/test.conll").write_text(f"{text}\n\n" * 3)
    result = command(
        "--config-name", "finetune", "dataset=tagging_table", "dataset.path=folder", "debug=default"
    ).checked()
    assert "metric: entity_f1" in result.out
    assert "baseline on test, the most frequent tag of each word: entity_f1 1.000" in result.out
    run, test = find_run(tmp_path), tmp_path / "folder/test.conll"
    command("--config-name", "finetune", "mode=predict", f"checkpoint={run}", f"input={test}").checked()
    (written,) = run.glob("evaluations/*/predictions.jsonl")
    rows = [json.loads(line) for line in written.read_text().splitlines()]
    assert [row["tokens"] for row in rows] == [list(WORDS)] * 3
    assert all(len(row["prediction"]) == len(row["updates"]) == len(WORDS) for row in rows)
