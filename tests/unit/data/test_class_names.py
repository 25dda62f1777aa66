"""Labels as classes by name; a number is an index only where an order is declared or nothing else is possible."""

from __future__ import annotations

import json
import logging
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Sequence, Value
from pyarrow import parquet

from adadepth.config import LabelledConfig, Source, TaggingConfig
from adadepth.config.data import ChoiceConfig, HubTable, SequenceProblem
from adadepth.data import RunData
from adadepth.data.text.table_files import open_file_table
from adadepth.errors import DataError
from tests.marks_support import keep_one_quick

from .labelled_support import load


def make_dataset(path: Any, **changes: Any) -> LabelledConfig:
    """Return settings of a table in the columns `text` and `label`, with its cache beside it."""
    cache = Path(path["train"] if isinstance(path, dict) else path).parent / "cache"
    settings: dict[str, Any] = {
        "name": "table", "source": Source.local, "path": path if isinstance(path, dict) else str(path),
        "text_columns": ["text"], "label_column": "label", "cache_dir": str(cache), "sequence_length": 16,
    }  # fmt: skip
    return LabelledConfig(**{**settings, **changes})


def write_csv(folder: Path, labels: list[Any], validation: list[Any] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    for split, values in (("train", labels), ("validation", labels if validation is None else validation)):
        lines = [f"some words,{value}" for value in values]
        (folder / f"{split}.csv").write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")
    return folder


def write_declared(folder: Path, numbers: list[Any], feature: Any) -> Path:
    """Write the splits train and validation as parquet with declared classes."""
    folder.mkdir(exist_ok=True)
    table = Dataset.from_dict({"text": ["some words"] * len(numbers), "label": numbers}).cast_column("label", feature)
    for split in ("train", "validation"):
        table.to_parquet(str(folder / f"{split}.parquet"))
    return folder


def read_names(data: RunData, split: str = "train") -> list[Any]:
    """Return the class of every example by name; of several labels, the set of their names."""
    examples = data.train if split == "train" else data.evaluation[split]
    labels = [examples[(0, index) if split == "train" else index]["label"] for index in range(len(examples))]  # type: ignore[arg-type,index]
    if data.problem == "multi_label":
        return [{name for name, mark in zip(data.labels, marks, strict=True) if mark} for marks in labels]
    return [data.labels[label] for label in labels]


@pytest.mark.parametrize("labels", keep_one_quick(4, [
    ["1", "2", "3", "4", "5", "n/a"], ["10", "2", "other"], ["0", "1", "x"], ["2", "1", "O", "2"], ["01", "1", "0x1"],
    ["nan", "de", "nan"], ["1.5", "2", "other"][1:], ["-1", "0", "none"],
]))  # fmt: skip
def test_a_number_that_is_a_class_name_is_that_class(tmp_path: Path, labels: list[str]) -> None:
    data = load(make_dataset(write_csv(tmp_path / "in", labels)))
    assert read_names(data) == read_names(data, "validation") == labels


@pytest.mark.parametrize("order", [["3", "other", "2"], ["other", "2", "3"]])
def test_a_number_that_is_a_configured_name_is_that_class(tmp_path: Path, order: list[str]) -> None:
    path = write_csv(tmp_path / "in", ["2", "3", "other"], ["3", "2", "3"])
    data = load(make_dataset(path, labels=order))
    assert data.labels == tuple(order)
    assert read_names(data) == ["2", "3", "other"]
    assert read_names(data, "validation") == ["3", "2", "3"]


def test_numbers_beside_names_are_indices_with_a_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    data = load(make_dataset(write_csv(tmp_path / "in", ["1", "0", "1.0"]), labels=["neg", "pos"]))
    assert read_names(data) == ["pos", "neg", "pos"]
    assert any("integers are indices in the list: 0 is neg, 1 is pos" in message for message in caplog.messages)


def test_true_and_false_are_not_indices(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for split in ("train", "validation"):
        table = pa.table({"text": ["a", "b", "c"], "label": [True, False, True]})
        parquet.write_table(table, folder / f"{split}.parquet")
    for order in (["True", "False"], ["false", "true"]):
        data = load(make_dataset(folder, labels=order))
        assert [name.lower() for name in read_names(data)] == ["true", "false", "true"]
    assert load(make_dataset(folder)).labels == ("0", "1")


def test_similar_names_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = load(make_dataset(write_csv(tmp_path / "in", ["Pos", "pos", "neg", "neg\u00a0", " neg"])))
    assert read_names(data) == ["Pos", "pos", "neg", "neg", "neg"]
    assert any("'Pos' and 'pos' differ only by case or Unicode form" in message for message in caplog.messages)
    assert any("surrounding white space are merged: neg" in message for message in caplog.messages)


def test_the_order_of_equal_numbers_is_fixed(tmp_path: Path) -> None:
    assert load(make_dataset(write_csv(tmp_path / "in", ["1", "01", "001", "0", "2"]))).labels == (
        "0",
        "001",
        "01",
        "1",
        "2",
    )


# --- declared classes


DECLARED = [
    [str(number) for number in range(1, 14)], ["1", "0"], ["0", "2", "1"], ["100163", "100168", "4"], ["b", "a", "3"],
    ["1", "1.5", "n/a"],
]  # fmt: skip


@pytest.mark.parametrize(("names", "kind"), keep_one_quick(7, product(DECLARED, ["parquet", "arrow", "saved", "hub"])))
def test_a_declared_number_is_the_index(tmp_path: Path, names: list[str], kind: str) -> None:
    numbers = [number % len(names) for number in range(len(names) + 1)]
    table = Dataset.from_dict({"text": ["some words"] * len(numbers), "label": numbers})
    table = table.cast_column("label", ClassLabel(names=names))
    path: Any = tmp_path / "in"
    if kind == "saved":
        DatasetDict({"train": table, "validation": table.select([0])}).save_to_disk(str(path))
    elif kind == "arrow":
        table.save_to_disk(str(path))
        path = {split: str(next(path.glob("*.arrow"))) for split in ("train", "validation")}
    else:
        write_declared(path, numbers, ClassLabel(names=names))
    config = make_dataset(path)
    if kind == "hub":
        config.source, config.path, config.hub = Source.hub, None, HubTable(str(path))
    data = load(config)
    assert data.labels == tuple(names)
    assert read_names(data) == [names[number] for number in numbers]


def test_declared_and_configured_names_are_matched_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = write_declared(tmp_path / "in", [0, 1, 1], ClassLabel(names=["neg", "pos"]))
    assert read_names(load(make_dataset(path, labels=["pos", "neg"]))) == ["neg", "pos", "pos"]
    assert read_names(load(make_dataset(path, labels=["bad", "good"]))) == ["bad", "good", "good"]
    assert any("declares neg, pos, renamed to bad, good, in this order" in message for message in caplog.messages)
    with pytest.raises(DataError, match="has the label 0; the data contain 'neg'; allowed are good, pos"):
        load(make_dataset(path, labels=["good", "pos"]))


def test_the_declared_name_of_missing_labels_is_no_class(tmp_path: Path) -> None:
    path = write_declared(tmp_path / "in", [0, 1, -1], ClassLabel(names=["neg", "pos"]))
    with pytest.raises(DataError, match=r", row 2 has the label -1; allowed are neg, pos"):
        load(make_dataset(path))


def test_only_one_split_declares_its_classes(tmp_path: Path) -> None:
    path = write_declared(tmp_path / "in", [0, 1, 1], ClassLabel(names=["pos", "neg"]))
    (path / "validation.parquet").unlink()
    for labels, expected in ((["neg", "pos"], ["neg", "pos"]), (["0", "1"], ["pos", "neg"])):
        (path / "validation.csv").write_text("text,label\n" + "".join(f"some,{label}\n" for label in labels))
        data = load(make_dataset(path))
        assert read_names(data) == ["pos", "neg", "neg"]
        assert read_names(data, "validation") == expected


def test_declared_lists_of_several_labels(tmp_path: Path) -> None:
    names = ["100163", "100168", "0"]
    path = write_declared(tmp_path / "in", [[0, 2], [], [1]], Sequence(ClassLabel(names=names)))
    data = load(make_dataset(path, problem=SequenceProblem.multi_label, metrics=["micro_f1"]))
    assert read_names(data) == [{"100163", "0"}, set(), {"100168"}]


def test_numbers_among_tags_are_tags_and_declared_ones_indices(tmp_path: Path) -> None:
    """Read numbers among tags as tags, and declared ones as indices."""
    folder = tmp_path / "in"
    folder.mkdir()

    def get_tags(**changes: Any) -> tuple[tuple[str, ...], list[str]]:
        config = TaggingConfig(
            name="t", source=Source.local, path=str(folder), cache_dir=str(tmp_path / "cache"), sequence_length=16,
            metrics=["token_accuracy"], **changes,
        )  # fmt: skip
        data = load(config)
        return data.labels, [data.labels[tag] for tag in data.train.gold(0)]  # type: ignore[attr-defined]

    rows = json.dumps({"tokens": ["a", "b", "c"], "ner_tags": ["2", "O", "1"]})
    for split in ("train", "validation"):
        (folder / f"{split}.jsonl").write_text(rows + "\n")
    assert get_tags() == (("1", "2", "O"), ["2", "O", "1"])
    assert get_tags(labels=["O", "1", "2"]) == (("O", "1", "2"), ["2", "O", "1"])
    for split in ("train", "validation"):
        (folder / f"{split}.jsonl").unlink()
        table = Dataset.from_dict({"tokens": [["a", "b", "c"]], "ner_tags": [[0, 2, 1]]})
        table.cast_column("ner_tags", Sequence(ClassLabel(names=["2", "O", "1"]))).to_parquet(
            str(folder / f"{split}.parquet")
        )
    assert get_tags() == (("2", "O", "1"), ["2", "1", "O"])
    assert get_tags(labels=["1", "2", "O"]) == (("1", "2", "O"), ["2", "1", "O"])


@pytest.mark.parametrize("names", keep_one_quick(3, [["1", "2"], ["0", "1"], ["A", "B"]]))
def test_the_declared_number_of_an_ending_is_its_index(tmp_path: Path, names: list[str]) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    table = Dataset.from_dict({"sent1": ["a"] * 2, "a": ["b"] * 2, "b": ["c"] * 2, "label": [0, 1]})
    for split in ("train", "validation"):
        table.cast_column("label", ClassLabel(names=names)).to_parquet(str(folder / f"{split}.parquet"))
    config = ChoiceConfig(
        name="c", source=Source.local, path=str(folder), cache_dir=str(tmp_path / "cache"), sequence_length=16,
        context_columns=["sent1"], ending_columns=["a", "b"],
    )  # fmt: skip
    assert [load(config).train[(0, index)]["label"] for index in range(2)] == [0, 1]


# --- several labels a text

LISTS = [
    ("['joy', 'fear']", {"joy", "fear"}), ('["joy", "a, b"]', {"joy", "a, b"}), ("[]", set()), ("", set()),
    ("['2']", {"2"}), ("[2, 14]", {"2", "14"}), ("('joy',)", {"joy"}), ("{'joy', 'fear'}", {"joy", "fear"}),
    ("joy, fear", {"joy", "fear"}), ("['it\\'s']", {"it's"}), ("(joy) a,b", {"(joy) a", "b"}),
]  # fmt: skip


def test_texts_of_lists_are_parsed(tmp_path: Path) -> None:
    cells = ['"' + cell.replace('"', '""') + '"' for cell, _ in LISTS]
    data = load(
        make_dataset(write_csv(tmp_path / "in", cells), problem=SequenceProblem.multi_label, metrics=["micro_f1"])
    )
    assert read_names(data) == [expected for _, expected in LISTS]


# --- types of columns


@pytest.mark.parametrize("column", keep_one_quick(2, [
    pa.array(["b", "a", "b"]).dictionary_encode(), pa.array(["b", "a", "b"], pa.large_string()),
    pa.array(["b", "a", "b"], pa.string_view()), pa.array([1, 0, 1], pa.uint8()), pa.array([1.0, 0.0, 1.0]),
    pa.array([True, False, True]), pa.array([1, 0, 1], pa.int16()).dictionary_encode(),
]))  # fmt: skip
@pytest.mark.parametrize("kind", keep_one_quick(2, ["parquet", "stream.arrow", "file.arrow"]))
def test_label_columns_of_every_type(tmp_path: Path, column: pa.Array, kind: str) -> None:
    table = pa.table({"text": pa.array(["one", "two", "three"]).dictionary_encode(), "label": column})
    file = tmp_path / f"train.{kind}"
    if kind == "parquet":
        if column.type == pa.string_view():
            pytest.skip("a type of Arrow files")
        parquet.write_table(table, file)
    else:
        make = pa.ipc.new_stream if kind.startswith("stream") else pa.ipc.new_file
        with make(str(file), table.schema) as writer:
            writer.write_table(table)
    (batch,) = open_file_table("dataset.path", file).batches()
    assert batch["label"] == column.to_pylist()
    data = load(make_dataset({"train": str(file), "validation": str(file)}))
    assert [data.train[(0, index)]["label"] for index in range(3)] == [1, 0, 1]


def test_parts_that_declare_different_classes_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for part, names in enumerate((["a", "b"], ["b", "a"])):
        table = Dataset.from_dict({"text": ["x", "y"], "label": [0, 1]}).cast_column("label", ClassLabel(names=names))
        table.to_parquet(str(folder / f"train-0000{part}-of-00002.parquet"))
    with pytest.raises(DataError, match=r"train-00001-of-00002.parquet: its declared classes differ from those of"):
        load(make_dataset(folder))


def test_values_beside_declared_classes_are_unchanged(tmp_path: Path) -> None:
    """Read a column without classes by its values, in a file with declared ones."""
    path = write_declared(tmp_path / "in", ["b", "a"], Value("string"))
    assert read_names(load(make_dataset(path))) == ["b", "a"]
