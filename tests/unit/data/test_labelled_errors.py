"""Errors of labelled data that differ from the configuration: one line with the available names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adadepth.config import Source
from adadepth.config.data import HubTable, SequenceProblem
from adadepth.errors import UserError
from tests.marks_support import keep_one_quick

from .labelled_support import load, make_labelled_config, make_pair_rows, write_splits, write_table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_splits(
        tmp_path_factory.mktemp("pairs"), "tsv", train=make_pair_rows(12), validation=make_pair_rows(4, 12)
    )


def read_message(path: Any, cache: Path, **changes: Any) -> str:
    with pytest.raises(UserError) as raised:
        load(make_labelled_config(path, cache, **changes))
    assert "\n" not in str(raised.value)
    assert not list(cache.glob("*.partial"))
    return str(raised.value)


@pytest.mark.parametrize(("changes", "expected"), keep_one_quick(3, [
    ({"label_column": "lable"}, "dataset.label_column=lable: dataset.path=FOLDER/train.tsv has the columns premise, "
                                "hypothesis, label, number (did you mean 'label'?)"),
    ({"text_columns": ["premise", "hypotesis"]}, "dataset.text_columns=hypotesis: dataset.path=FOLDER/train.tsv has "
                                "the columns premise, hypothesis, label, number (did you mean 'hypothesis'?)"),
    ({"train_split": "trian"}, "dataset.train_split=trian: no file trian with one of .parquet, "),
    ({"train_split": "trian"}, "in dataset.path=FOLDER; there is train.tsv, validation.tsv (did you mean 'train'?)"),
    ({"evaluation_splits": ["validation", "dev"]}, "dataset.evaluation_splits=dev: no file dev with one of"),
    ({"labels": ["only"]}, "dataset.labels=['only']; at least two different classes are needed"),
    ({"labels": ["a", "a"]}, "dataset.labels=['a', 'a']; at least two different classes are needed"),
    ({"label_column": "number", "labels": ["no", "yes"]}, "dataset.label_column=number: "
     "dataset.path=FOLDER/train.tsv, line 4 has the label '2'; allowed are 0 to 1 or no, yes"),
    ({"label_column": "number"}, "dataset.label_column=number: dataset.path=FOLDER/validation.tsv, line 2 has the "
                                 "label '12'; allowed are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ..."),
    ({"label_column": "premise", "problem": SequenceProblem.regression},
     "has the label 'The 0. cat says \"much\", doesn\\'t "
                                                                 "it?'; a finite number is needed"),
    ({"submission": ["CoLa"]}, "dataset.submission=CoLa: "),
]))  # fmt: skip
def test_a_wrong_name_or_value_is_a_one_line_error(
    folder: Path, tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    assert expected.replace("FOLDER", str(folder)) in read_message(folder, tmp_path, **changes)


def test_a_wrong_path_is_a_one_line_error(folder: Path, tmp_path: Path) -> None:
    text = read_message(folder / "train.tsv", tmp_path)
    assert text == (
        f"dataset.evaluation_splits=validation: dataset.path={folder}/train.tsv is one table, "
        "the split train; hold out "
        "some rows: dataset.held_out=0.1 'dataset.evaluation_splits=[held_out]'"
    )
    other = tmp_path / "tables"
    other.mkdir()
    assert f"dataset.path={tmp_path}/tabels: no such folder (did you mean 'tables'?)" in read_message(
        tmp_path / "tabels", tmp_path / "cache"
    )
    assert "there is nothing" in read_message(other, tmp_path / "cache")
    mapping = {"train": str(folder / "train.tsv"), "validatoin": str(folder / "validation.tsv")}
    assert read_message(mapping, tmp_path) == (
        "dataset.evaluation_splits=validation: dataset.path names files for train, validatoin only "
        "(did you mean 'validatoin'?)"
    )
    assert "dataset.path.train=" in read_message({"train": str(folder / "trains.tsv")}, tmp_path)
    write_table(other / "train.csv", make_pair_rows(3))
    write_table(other / "train.tsv", make_pair_rows(3))
    assert "train.csv, train.tsv all match the split train; choose one with 'dataset.path={train: FILE" in read_message(
        other, tmp_path / "cache"
    )


def test_an_unlabelled_row_of_training_or_evaluation_is_refused(tmp_path: Path) -> None:
    rows = make_pair_rows(6)
    write_splits(tmp_path, train=rows, validation=[*rows[:2], {**rows[2], "label": -1}])
    text = read_message(tmp_path, tmp_path / "cache")
    assert f"dataset.path={tmp_path}/validation.jsonl, line 3 has the label -1; allowed are 0, 1" in text
    write_splits(tmp_path, train=[{**row, "label": None} for row in rows], validation=rows)
    assert "has the classes none; at least two" in read_message(tmp_path, tmp_path / "cache")


def test_a_misspelled_class_is_reported_with_the_nearest(tmp_path: Path) -> None:
    rows = [{**row, "label": "entailed" if row["label"] else "entailment"} for row in make_pair_rows(4)]
    write_splits(tmp_path, train=rows, validation=rows)
    text = read_message(tmp_path, tmp_path / "cache", labels=["entailment", "neutral"])
    assert text.endswith("'entailed'; allowed are entailment, neutral (did you mean 'entailment'?)")


def test_continuous_values_are_not_classes(tmp_path: Path) -> None:
    rows = [{**row, "label": row["number"] / 4} for row in make_pair_rows(4)]
    write_splits(tmp_path, train=rows, validation=rows)
    text = read_message(tmp_path, tmp_path / "cache")
    assert "holds values such as 0.25, not classes; use dataset.problem=regression" in text


def test_damaged_and_empty_files_are_one_line_errors(tmp_path: Path) -> None:
    write_splits(tmp_path, "csv", train=make_pair_rows(6), validation=make_pair_rows(3))
    file, cache = tmp_path / "train.csv", tmp_path / "cache"
    file.write_text("premise,hypothesis,label\n")
    assert "has the classes none" in read_message(tmp_path, cache)
    assert "contain no text" in read_message(tmp_path, cache, labels=["a", "b"])
    write_table(file, make_pair_rows(3))
    (tmp_path / "validation.csv").write_text("premise,hypothesis,label\n")
    assert "the split validation of" in read_message(tmp_path, cache)
    file.write_text("")
    assert "dataset.train_split=train: no file train" in read_message(tmp_path, cache)
    file.write_bytes(b"premise,hypothesis,label\na,\xff,0\n")
    assert "not UTF-8 at byte 27" in read_message(tmp_path, cache)
    file.unlink()
    (tmp_path / "train.parquet").write_text("nothing of the kind")
    assert "train.parquet: not a readable parquet file" in read_message(tmp_path, cache)
    (tmp_path / "train.parquet").unlink()
    write_table(tmp_path / "train.jsonl", [{"premise": 3, "hypothesis": "a", "label": 0}])
    text = read_message(tmp_path, cache, labels=["a", "b"])
    assert f"dataset.text_columns=premise: dataset.path={tmp_path}/train.jsonl, line 1 holds int, not text" in text
    assert "train.txt: not a table; known formats are .parquet" in read_message(
        {"train": str(write_table(tmp_path / "train.txt", make_pair_rows(3))), "validation": str(tmp_path)}, cache
    )


def test_parts_of_a_split_must_have_the_same_columns(tmp_path: Path) -> None:
    write_table(tmp_path / "train-00000-of-00002.csv", make_pair_rows(3))
    write_table(tmp_path / "train-00001-of-00002.csv", [{"premise": "a", "label": 1}])
    assert ("train-00001-of-00002.csv: its columns premise, label differ from those of") in read_message(
        tmp_path, tmp_path / "c"
    )


def test_an_unreachable_hub_is_a_one_line_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = {"source": Source.hub, "hub": HubTable("nobody/nothing", "cola")}
    assert "dataset.hub=nobody/nothing/cola: " in read_message("", tmp_path, **hub)

    def refuse_connection(*_: object, **__: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("urllib.request.urlopen", refuse_connection)
    assert "cannot be reached (no route)" in read_message("", tmp_path, **hub)


def test_a_missing_split_of_a_hub_set_is_a_one_line_error(tmp_path: Path) -> None:
    write_splits(tmp_path, train=make_pair_rows(3), test=make_pair_rows(3))
    text = read_message(
        "", tmp_path / "cache", source=Source.hub, hub=HubTable(str(tmp_path)), evaluation_splits=["tests"]
    )
    assert text == "dataset.evaluation_splits=tests: the data set has only train, test (did you mean 'test'?)"
