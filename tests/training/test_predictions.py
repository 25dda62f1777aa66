"""Files of predictions: lines are the evaluated examples, and the run's metrics follow from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.predictions_support import SMALL, predict_sets
from tests.training.questions_support import SMALL as SMALL_QUESTIONS
from tests.training.questions_support import list_overrides as question_settings
from tests.unit.data.labelled_support import make_pair_rows, write_splits


def compute_accuracy(rows: list[dict[str, Any]]) -> float:
    return float(np.mean([row["label"] == row["prediction"] for row in rows]))


@pytest.mark.parametrize(("model", "rule"), [
    ("ponder_albert_mini", "quantile:0.4"),
    pytest.param("albert_act_pretrained", None, marks=pytest.mark.slow),
    pytest.param("ponder_albert_mini", "sample", marks=pytest.mark.slow),
    pytest.param("pabee_mini", "patience:1", marks=pytest.mark.slow),
    pytest.param("albert_mini", None, marks=pytest.mark.slow),
])  # fmt: skip
def test_accuracy_and_depth_follow_from_the_file(model: str, rule: str | None, tmp_path: Path) -> None:
    overrides = [f"model={model}", *SMALL] + ([f"model.exit_rule={rule}"] if rule else [])
    if model == "albert_act_pretrained":
        overrides = [*overrides, "model.pretrained=null", "budget=none"]
    _, metrics, sets = predict_sets(tmp_path, "ponder_tiny", *overrides)
    (rows,) = sets.values()
    assert [row["id"] for row in rows] == sorted({row["id"] for row in rows})
    assert len(rows) == 24
    assert compute_accuracy(rows) == pytest.approx(metrics["eval/accuracy"])
    for row in rows:
        assert sum(row["probabilities"]) == pytest.approx(1, abs=1e-5)
        assert row["prediction"] == ["original", "shifted"][int(np.argmax(row["probabilities"]))]
    if rule is not None:
        assert np.mean([row["exit_step"] for row in rows]) == pytest.approx(metrics["halting/exit_step/mean"])
        assert [row["updates"] for row in rows] == [row["exit_step"] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("labels", [None, ""], ids=["no column", "empty labels"])
def test_an_unlabelled_test_set_is_predicted_too(labels: str | None, tmp_path: Path, capsys: Any) -> None:
    data = tmp_path / "data"
    rows = [{**row, "label": str(row["label"])} for row in make_pair_rows(20)]
    unlabelled = [{key: value for key, value in row.items() if key != "label"} for row in rows[:7]]
    unlabelled = unlabelled if labels is None else [{**row, "label": labels} for row in unlabelled]
    write_splits(data, "csv", train=rows, validation=rows[:8], test=unlabelled)
    directory, _, sets = predict_sets(
        tmp_path / "out", "ponder_tiny", *SMALL, "dataset=table", f"dataset.path={data}",
        "dataset.text_columns=[premise,hypothesis]", "predictions=false",
    )  # fmt: skip
    assert list(sets) == ["test"]
    assert [row["id"] for row in sets["test"]] == list(range(7))
    assert list(sets["test"][0]) == ["id", "prediction", "probabilities", "updates", "exit_step"]
    assert f"predictions of test: {directory / 'predictions' / 'test.jsonl'}" in capsys.readouterr().out


def test_a_model_keeps_the_weights_of_its_classes(tmp_path: Path) -> None:
    rows = make_pair_rows(24)
    write_splits(tmp_path / "data", "csv", train=[row for row in rows if row["label"] or not row["number"] % 4],
                 validation=rows[:8])  # fmt: skip
    directory, metrics, sets = predict_sets(
        tmp_path / "out", "ponder_tiny", *SMALL, "dataset=table", f"dataset.path={tmp_path}/data",
        "dataset.text_columns=[premise,hypothesis]", "dataset.class_weights=balanced",
    )  # fmt: skip
    weights = json.loads((directory / "model" / "config.json").read_text())["classes_weights"]
    assert weights == pytest.approx([18 / 12, 18 / 24])
    gold = np.array([row["label"] for row in sets["validation"]], dtype=int)
    assert len(set(gold)) == 2
    assert metrics["eval/task_loss"] > 0


@pytest.mark.slow
def test_every_set_has_a_file_with_the_exits_of_its_rule(tmp_path: Path) -> None:
    overrides = (
        "dataset=parity", *SMALL, "dataset.size=12", "dataset.train_ones=[1,6]", "dataset.extrapolation_ones=[7,12]",
    )  # fmt: skip
    directory, metrics, sets = predict_sets(tmp_path / "trained", "ponder_tiny", *overrides)
    assert set(sets) == {"interpolation", "extrapolation"}
    assert compute_accuracy(sets["extrapolation"]) == pytest.approx(metrics["eval/extrapolation/accuracy"])
    again = [override for override in overrides if not override.startswith(("model.", "tokenizer.", "debug"))]
    _, metrics, sets = predict_sets(
        tmp_path / "again", "ponder_tiny", *again, "mode=evaluate", f"checkpoint={directory}",
        "model.exit_rule=fixed:2",
    )  # fmt: skip
    assert compute_accuracy(sets["interpolation"]) == pytest.approx(metrics["eval/accuracy"])


@pytest.mark.slow
def test_predictions_of_a_regression_are_values(tmp_path: Path) -> None:
    folder = tmp_path / "table"
    folder.mkdir()
    for split in ("train", "validation"):
        rows = [{"sentence1": f"a cat {n % 3}", "sentence2": f"cats {n % 5}", "label": n % 6 * 0.9} for n in range(24)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, metrics, sets = predict_sets(
        tmp_path / "out", "ponder_stsb", "model=ponder_albert_mini", *SMALL, "dataset.source=local",
        f"dataset.path={folder}", "tokenizer.path=null",
    )  # fmt: skip
    rows = sets["validation"]
    values = np.array([[row["label"], row["prediction"]] for row in rows])
    assert np.corrcoef(values.T)[0, 1] == pytest.approx(metrics["eval/pearson"], abs=1e-5)
    assert rows[7]["label"] == pytest.approx(0.9)
    assert "probabilities" not in rows[0]


def write_tagged(folder: Path) -> Path:
    folder.mkdir()
    for split, count in (("train", 12), ("validation", 9)):
        copies = [5 if number == 3 else 1 for number in range(count)]
        rows = [{"tokens": ["cat", "sat", "on", "mats"] * n, "tags": ["N", "V", "O", "N"] * n} for n in copies]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_predictions_of_a_tagger_are_lists_over_words(tmp_path: Path) -> None:
    small = [override for override in SMALL if "sequence_length" not in override]
    _, metrics, sets = predict_sets(
        tmp_path / "out", "act_pos", "dataset=tagging_table", f"dataset.path={write_tagged(tmp_path / 'table')}",
        *small,
        "dataset.sequence_length=16", "dataset.tag_column=tags", "dataset.metrics=[token_accuracy]",
        "tokenizer.path=null", "budget=none",
    )  # fmt: skip
    rows = sets["validation"]
    right = [one == other for row in rows for one, other in zip(row["label"], row["prediction"], strict=True)]
    assert np.mean(right) == pytest.approx(metrics["eval/token_accuracy"])
    cut = rows[3]
    assert len(cut["label"]) == len(cut["updates"]) == len(cut["probabilities"]) == 20
    assert cut["probabilities"][-1] is cut["updates"][-1] is None
    assert cut["prediction"][-1] == "O"
    assert all(1 <= updates <= 4 for updates in rows[0]["updates"])


@pytest.mark.parametrize(("root", "metric"), [("act_squad", "eval/exact_match"), ("act_swag", "eval/accuracy")])
@pytest.mark.slow
def test_predictions_of_questions_and_choices(root: str, metric: str, tmp_path: Path) -> None:
    overrides = question_settings(tmp_path, root, "predictions=true")
    assert set(SMALL_QUESTIONS) <= set(overrides)
    directory, metrics, sets = predict_sets(tmp_path / "out", root, *overrides)
    rows = sets["validation"]
    if root == "act_squad":
        answers = json.loads((directory / "predictions" / "validation.json").read_text())
        assert {row["id"]: row["prediction"] for row in rows} == answers
        exact = np.mean([row["prediction"] in row["label"] for row in rows])
        assert 100 * exact == pytest.approx(metrics[metric])
        assert all(np.isfinite(row["score"]) for row in rows)
    else:
        assert compute_accuracy(rows) == pytest.approx(metrics[metric])
        assert all(len(row["probabilities"]) == 4 for row in rows)
    assert all(1 <= row["updates"] <= 3 for row in rows)


NINE_OF_FORTY = [0, 4, 8, 13, 17, 22, 26, 31, 35]  # evenly spread: number * 40 // 9


def test_ids_of_tagged_sentences_are_rows_of_the_file(tmp_path: Path) -> None:
    table = tmp_path / "table"
    table.mkdir()
    for split, count in (("train", 12), ("validation", 40)):
        texts = ["".join(f"cat\t{'NVO'[(n >> position) % 3]}\n" for position in range(6)) for n in range(count)]
        (table / f"{split}.conll").write_text("\n".join(texts))
    small = [override for override in SMALL if "max_evaluation_examples" not in override]
    _, _, sets = predict_sets(
        tmp_path / "out", "act_pos", "dataset=tagging_table", f"dataset.path={table}", *small, "budget=none",
        "dataset.tag_column=ner_tags", "dataset.metrics=[token_accuracy]", "tokenizer.path=null",
        "dataset.max_evaluation_examples=9",
    )  # fmt: skip
    assert [row["id"] for row in sets["validation"]] == NINE_OF_FORTY
    for row in sets["validation"]:
        assert row["label"] == ["NVO"[(row["id"] >> position) % 3] for position in range(6)]


@pytest.mark.slow
def test_ids_of_choices_are_rows_of_the_file(tmp_path: Path) -> None:
    overrides = question_settings(tmp_path, "act_swag", "predictions=true")
    table = Path(next(override for override in overrides if override.startswith("dataset.path=")).partition("=")[2])
    lines = (table / "train.jsonl").read_text().splitlines()
    rows = [json.loads(lines[number % len(lines)]) | {"label": number * number % 7 % 4} for number in range(40)]
    (table / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, _, sets = predict_sets(tmp_path / "out", "act_swag", *overrides, "dataset.max_evaluation_examples=9")
    assert [row["id"] for row in sets["validation"]] == NINE_OF_FORTY
    assert [row["label"] for row in sets["validation"]] == [str(rows[number]["label"]) for number in NINE_OF_FORTY]


@pytest.mark.slow
def test_ids_of_puzzles_are_rows_of_the_file(tmp_path: Path) -> None:
    table = tmp_path / "table"
    table.mkdir()
    answers = [f"{number:06b}".translate(str.maketrans("01", "12")) for number in range(60)]
    for split, part in (("train", answers[40:]), ("test", answers[:40])):
        rows = "".join(f"{answer[:3]}...,{answer}\n" for answer in part)
        (table / f"{split}.csv").write_text(f"question,answer\n{rows}")
    _, _, sets = predict_sets(
        tmp_path / "out", "trm_tiny", "dataset=sudoku_extreme", f"dataset.path={table}", "dataset.symmetries=none",
        "dataset.max_evaluation_examples=9", "debug=default", "trainer.disable_tqdm=true", "predictions=true",
        "dataset.symbols=.12",
    )  # fmt: skip
    (rows,) = sets.values()
    assert [row["id"] for row in rows] == NINE_OF_FORTY
    assert ["".join(row["label"]) for row in rows] == [answers[number] for number in NINE_OF_FORTY]
