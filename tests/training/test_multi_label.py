"""Several labels per text: read from lists and separated texts, learned by every family, measured, predicted."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

from adadepth import Pipeline, tasks
from adadepth.data import load_labelled_data
from adadepth.errors import ConfigError, DataError
from adadepth.models.build import build_classifier, classifier_class, load_model
from tests.configs.support import configured
from tests.training.predictions_support import SMALL, predict_sets
from tests.unit.data.labelled_support import write_splits

TOPICS = ["animals", "food", "news"]


def make_rows(count: int, *, lists: bool = False) -> list[dict[str, Any]]:
    """Return texts that name their topics: none, some or all of them."""
    table = []
    for number in range(count):
        topics = [topic for bit, topic in enumerate(TOPICS) if number >> bit & 1]
        table.append({"text": " ".join(["It says", *topics]), "topics": topics if lists else "; ".join(topics)})
    return table


def write_table(folder: Path, *, lists: bool = False) -> list[str]:
    suffix = "jsonl" if lists else "csv"
    write_splits(
        folder, suffix, train=make_rows(24, lists=lists), dev=make_rows(16, lists=lists), test=make_rows(5, lists=lists)
    )
    return [
        "dataset=table", f"dataset.path={folder}", "dataset.text_columns=[text]", "dataset.label_column=topics",
        "dataset.problem=multi_label", "dataset.metrics=[micro_f1,macro_f1,all_labels]", 'dataset.label_separator=";"',
    ]  # fmt: skip


@pytest.mark.parametrize("lists", [False, True])
def test_labels_are_rows_of_zeros_and_ones(lists: bool, tmp_path: Path) -> None:
    config = configured("ponder_tiny", *SMALL, *write_table(tmp_path / "data", lists=lists))
    config.dataset.cache_dir = str(tmp_path / "cache")
    data = load_labelled_data(config.dataset, config.tokenizer, 0)
    assert data.labels == tuple(TOPICS)
    batch = data.collate([data.train[(0, index)] for index in range(8)])
    assert batch["labels"].dtype == torch.float32
    assert batch["labels"].tolist() == [[float(number >> bit & 1) for bit in range(3)] for number in range(8)]
    assert data.summary["train"]["labels"] == dict.fromkeys(TOPICS, 12)


def test_a_multi_label_run_writes_correct_predictions_and_metrics(tmp_path: Path) -> None:
    directory, metrics, sets = predict_sets(
        tmp_path / "out", "ponder_tiny", *SMALL, *write_table(tmp_path / "data"), "model.exit_rule=quantile:0.5"
    )
    rows = sets["validation"]
    gold, predicted = (
        np.array([[topic in row[key] for topic in TOPICS] for row in rows]) for key in ("label", "prediction")
    )
    for average in ("micro", "macro"):
        expected = f1_score(gold, predicted, average=average, zero_division=0.0)
        assert metrics[f"eval/{average}_f1"] == pytest.approx(expected)
    assert metrics["eval/all_labels"] == pytest.approx((gold == predicted).all(axis=1).mean())
    assert [row["label"] for row in rows[:4]] == [[], ["animals"], ["food"], ["animals", "food"]]
    assert len(sets["test"]) == 5
    pipeline = Pipeline.from_pretrained(directory / "model")
    assert list(pipeline(["It says food"])[0].scores) == TOPICS
    with pytest.raises(ConfigError, match=r"exit rule 'entropy:0.1': needs exclusive classes"):
        Pipeline.from_pretrained(directory / "model", exit_rule="entropy:0.1")
    (tmp_path / "mine.jsonl").write_text('{"text": "It says food"}\n')
    tasks.run(configured(
        "ponder_tiny", "mode=predict", f"checkpoint={directory}", f"input={tmp_path}/mine.jsonl",
        f"output={tmp_path}/said.jsonl", f"output_dir={tmp_path}/asked",
    ))  # fmt: skip
    row = json.loads((tmp_path / "said.jsonl").read_text())
    assert row["prediction"] == [name for name, score in row["probabilities"].items() if score > 0.5]


def test_an_exit_rule_for_a_checkpoint_is_checked_at_loading(tmp_path: Path) -> None:
    settings = configured("ponder_tiny", *SMALL, *write_table(tmp_path / "data"), "model.exit_rule=entropy:0.1").model
    fields = {"id2label": dict(enumerate(TOPICS)), "problem_type": "multi_label_classification"}
    saved_settings = dataclasses.replace(settings, exit_rule="quantile:0.5")
    build_classifier(saved_settings, 120, fields, "multi_label").save_pretrained(tmp_path / "model")
    model_class = classifier_class(settings, "multi_label")
    for rule in ("entropy:0.1", "entorpy", "fixed:99"):
        with pytest.raises(ConfigError, match=rf"^model\.exit_rule: .*{rule}"):
            load_model(
                str(tmp_path / "model"), model_class, dataclasses.replace(settings, exit_rule=rule), ["exit_rule"]
            )
    assert load_model(str(tmp_path / "model"), model_class, settings, []) is not None


MISTAKES = [
    (["dataset.metrics=[accuracy]"], "dataset.metrics=accuracy: not a metric of classification into several labels"),
    (["dataset.class_weights=balanced"], "dataset.problem=multi_label does not assign one class per text"),
    (["mode=evaluate", "checkpoint=x", "exit_rules=[all]"], "has several labels per text; only used with classes"),
    (
        ["dataset.problem=regression", "dataset.metrics=[mse]", "dataset.class_weights={a: 1}"],
        "does not assign one class",
    ),
    (["dataset.problem=classification", "dataset.metrics=[f1]", "dataset.class_weights={a: -1}"], "weights above 0"),
    (["dataset.label_separator="], "dataset.label_separator: must not be empty"),
]


@pytest.mark.parametrize(("overrides", "message"), MISTAKES)
def test_mistakes_are_one_line_errors(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        configured("finetune", *write_table(tmp_path), *overrides)
    assert "\n" not in str(caught.value)


def test_empty_labels_are_read_as_no_label(tmp_path: Path) -> None:
    config = configured("ponder_tiny", *SMALL, *write_table(tmp_path / "data"), "dataset.labels=[animals,food]")
    config.dataset.cache_dir = str(tmp_path / "cache")
    with pytest.raises(DataError, match=r", line 6 has the label \['news'\]; allowed are animals, food"):
        load_labelled_data(config.dataset, config.tokenizer, 0)
