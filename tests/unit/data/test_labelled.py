"""Labelled tables, from files to batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adadepth.config import Source, TokenizerConfig
from adadepth.config.data import HubTable, SequenceProblem
from adadepth.data import RunData
from adadepth.data.generated.base import build_symbol_tokenizer
from adadepth.data.generated.parity import SYMBOLS
from adadepth.data.labelled import sequence_classification as labelled
from adadepth.data.text.special_tokens import Layout, cut_longest
from adadepth.errors import DataError
from tests.configs.support import GLUE, configured
from tests.marks_support import keep_one_quick

from .labelled_support import load, make_labelled_config, make_pair_rows, write_splits, write_table
from .support import is_same_example


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    unlabelled = [{**row, "label": -1} for row in make_pair_rows(7, 50)]
    splits = {"train": make_pair_rows(40), "validation": make_pair_rows(10, 40), "test": unlabelled}
    return write_splits(tmp_path_factory.mktemp("pairs"), **splits)


@pytest.fixture(scope="module")
def data(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunData:
    return load(make_labelled_config(folder, tmp_path_factory.mktemp("cache")))


def list_contents(data: RunData) -> list[tuple[str, int]]:
    assert data.tokenizer is not None
    examples = [data.train[(0, index)] for index in range(len(data.train))]
    return [(data.tokenizer.decode(example["input_ids"]), example["label"]) for example in examples]


# --- reading


@pytest.mark.parametrize("kind", keep_one_quick(3, ["parquet", "jsonl", "csv", "tsv", "parts", "mapping", "hub"]))
def test_every_source_gives_the_same_examples(tmp_path: Path, data: RunData, kind: str) -> None:
    suffix = {"parts": "parquet", "mapping": "csv", "hub": "jsonl"}.get(kind, kind)
    path: Any = write_splits(
        tmp_path / "in",
        suffix,
        train=make_pair_rows(40),
        validation=make_pair_rows(10, 40),
        train_old=make_pair_rows(3),
    )
    if kind == "parts":
        (path / "train.parquet").unlink()
        write_table(path / "train-00001-of-00002.parquet", make_pair_rows(15, 25))
        write_table(path / "train-00000-of-00002.parquet", make_pair_rows(25))
    if kind == "mapping":
        path = {"train": str(path / "train.csv"), "validation": [str(path / "validation.csv")]}
    dataset = make_labelled_config(path, tmp_path / "cache")
    if kind == "hub":
        (path / "train_old.jsonl").unlink()  # the library reads by its own rules
        dataset.source, dataset.path, dataset.hub = Source.hub, None, HubTable(str(path))
    loaded = load(dataset)
    assert list_contents(loaded) == list_contents(data)
    assert (loaded.test, len(data.test["test"])) == ({}, 7)
    assert loaded.labels == data.labels == ("0", "1")


@pytest.mark.parametrize("name", keep_one_quick(2, ["dev", "valid"]))
@pytest.mark.parametrize("kind", ["folder", "parts", "mapping"])
def test_validation_has_alternative_names(tmp_path: Path, data: RunData, name: str, kind: str) -> None:
    path: Any = write_splits(tmp_path / "in", "csv", **{"train": make_pair_rows(40), name: make_pair_rows(10, 40)})
    if kind == "parts":
        (path / f"{name}.csv").rename(path / f"{name}-00000-of-00001.csv")
    if kind == "mapping":
        path = {"train": str(path / "train.csv"), name: str(path / f"{name}.csv")}
    loaded = load(make_labelled_config(path, tmp_path / "cache"))
    assert is_same_example(loaded.evaluation["validation"][9], data.evaluation["validation"][9])


def test_the_name_validation_comes_first(tmp_path: Path) -> None:
    splits = {"train": make_pair_rows(40), "validation": make_pair_rows(5), "dev": make_pair_rows(3)}
    path = write_splits(tmp_path / "in", "csv", **splits)
    assert len(load(make_labelled_config(path, tmp_path / "cache")).evaluation["validation"]) == 5
    (path / "validation.csv").rename(path / "dev.tsv")
    with pytest.raises(DataError, match=r"dev.csv, dev.tsv all match the split validation"):
        load(make_labelled_config(path, tmp_path / "cache"))


def test_a_test_split_may_be_another_data_set(tmp_path: Path) -> None:
    write_splits(tmp_path / "in", "jsonl", train=make_pair_rows(40), validation=make_pair_rows(10, 40))
    write_splits(tmp_path / "ax", "jsonl", test=make_pair_rows(4, 60))
    dataset = make_labelled_config(None, tmp_path / "cache")
    dataset.source, dataset.hub, dataset.test_splits = Source.hub, HubTable(str(tmp_path / "in")), ["test", "ax"]
    dataset.test_hub = {"ax": {"path": str(tmp_path / "ax"), "name": None, "split": "test"}}
    examples = load(dataset).test["ax"]
    assert len(examples) == 4
    assert "label" not in examples[0]
    dataset.test_hub["ax"]["split"] = "tset"
    with pytest.raises(DataError, match=r"dataset.test_hub.ax.split=tset: "):
        load(dataset)


@pytest.mark.parametrize("separator", [";", "\t"])
def test_csv_files_of_locales_with_decimal_commas_are_read(tmp_path: Path, separator: str) -> None:
    lines = [("premise", "hypothesis", '"no, or, yes"'), ('"Größe; 1,5"', "x", "0"), ("b, c", "x", "1")]
    text = "".join(f"{separator.join(line)}\n" for line in lines)
    for split in ("train", "validation"):
        (tmp_path / f"{split}.csv").write_text(text, encoding="utf-8-sig")
    dataset = make_labelled_config(tmp_path, tmp_path / "cache")
    dataset.label_column = "no, or, yes"
    loaded = load(dataset, TokenizerConfig(vocab_size=40))
    assert list_contents(loaded) == [("[CLS] große; 1,5[SEP] x[SEP]", 0), ("[CLS] b, c[SEP] x[SEP]", 1)]


def test_the_summary_counts_the_read_rows(data: RunData) -> None:
    train, evaluation = data.summary["train"], data.summary["evaluation"]["validation"]
    assert (train["rows"], train["examples"], train["labels"]) == (40, 40, {"0": 20, "1": 20})
    assert (evaluation["rows"], evaluation["labels"]) == (10, {"0": 5, "1": 5})
    assert "labels" not in data.summary["test"]["test"]
    lengths = [len(data.train[(0, index)]["input_ids"]) for index in range(40)]
    assert train["tokens"] == sum(lengths) - 3 * 40
    assert train["cut"] == 0


def test_test_examples_have_no_label(data: RunData) -> None:
    examples = data.test["test"]
    batch = data.collate([examples[index] for index in range(len(examples))])
    assert "labels" not in batch
    assert batch["index"].tolist() == list(range(7))


def test_fewer_examples_are_spread_over_the_rows(folder: Path, tmp_path: Path) -> None:
    loaded = load(make_labelled_config(folder, tmp_path, max_train_examples=4, max_evaluation_examples=5))
    assert [loaded.train[(3, index)]["index"] for index in range(len(loaded.train))] == [0, 10, 20, 30]
    assert [loaded.evaluation["validation"][index]["index"] for index in range(5)] == [0, 2, 4, 6, 8]
    assert len(loaded.test["test"]) == 7  # a submission needs them all
    assert loaded.summary["train"]["examples"] == 4


@pytest.mark.slow
def test_rows_of_a_test_split_can_be_limited(folder: Path, tmp_path: Path) -> None:
    """Limit a short run to predict no more rows than it evaluates."""
    examples = load(make_labelled_config(folder, tmp_path, max_test_examples=3)).test["test"]
    assert [examples[index]["index"] for index in range(len(examples))] == [0, 2, 4]
    assert configured("ponder_cola", "debug=default").dataset.max_test_examples == 8


def test_the_first_of_several_evaluation_sets_selects(tmp_path: Path) -> None:
    write_splits(
        tmp_path, train=make_pair_rows(9), matched=make_pair_rows(4), mismatched=make_pair_rows(5),
        test_matched=make_pair_rows(2),
    )  # fmt: skip
    loaded = load(make_labelled_config(tmp_path, tmp_path / "cache", evaluation_splits=["mismatched", "matched"],
                        test_splits=["test_matched", "test_mismatched"]))  # fmt: skip
    assert [(split, len(examples)) for split, examples in loaded.evaluation.items()] == [
        ("mismatched", 5),
        ("matched", 4),
    ]
    assert list(loaded.test) == ["test_matched"]


# --- labels


@pytest.mark.parametrize(("values", "names", "expected", "classes"), keep_one_quick(3, [
    ([0, 1, 1], ["no", "yes"], [0, 1, 1], ("no", "yes")),
    (["yes", "no", "no"], ["no", "yes"], [1, 0, 0], ("no", "yes")),
    (["1", "0", "0"], ["no", "yes"], [1, 0, 0], ("no", "yes")),
    (["b", "a", "b"], None, [1, 0, 1], ("a", "b")),
    ([3, 10, 1], None, [1, 2, 0], ("1", "3", "10")),
    ([5, 1, 1], ["1", "2", "3", "4", "5"], [4, 0, 0], ("1", "2", "3", "4", "5")),
    ([1.0, 0.0, 0.0], None, [1, 0, 0], ("0", "1")),
    (["1.0", "0.0", "0"], None, [1, 0, 0], ("0", "1")),
    ([True, False, False], None, [1, 0, 0], ("0", "1")),
    ([-1, 1, 1], None, [0, 1, 1], ("-1", "1")),
]))  # fmt: skip
def test_labels_are_numbers_or_names(
    tmp_path: Path, values: list[Any], names: list[str] | None, expected: list[int], classes: tuple[str, ...]
) -> None:
    rows = [{"premise": "a", "hypothesis": "b", "label": value} for value in values]
    write_splits(tmp_path, "parquet", train=rows, validation=rows)
    loaded = load(make_labelled_config(tmp_path, tmp_path / "cache", labels=names), TokenizerConfig(vocab_size=32))
    assert [loaded.train[(0, index)]["label"] for index in range(3)] == expected
    assert loaded.labels == classes


def test_labels_of_a_regression_are_values(tmp_path: Path) -> None:
    rows = [{**row, "label": value} for row, value in zip(make_pair_rows(4), ["0.5", 2, 3.25, -1], strict=True)]
    for row in rows:
        row["label"] = float(row["label"])
    write_splits(tmp_path, "tsv", train=rows, validation=rows)
    loaded = load(
        make_labelled_config(tmp_path, tmp_path / "cache", problem=SequenceProblem.regression, metrics=["pearson"])
    )
    batch = loaded.collate([loaded.train[(0, index)] for index in range(4)])
    assert batch["labels"].dtype == torch.float32
    assert batch["labels"].tolist() == [0.5, 2.0, 3.25, -1.0]
    assert (loaded.labels, loaded.metrics, loaded.problem) == ((), ("pearson",), "regression")
    assert loaded.summary["train"]["mean"] == pytest.approx(4.75 / 4)


# --- layout


@pytest.mark.parametrize("both", [False, True])
def test_a_second_cls_equals_one_written_before_the_text(folder: Path, tmp_path: Path, both: bool) -> None:
    loaded = load(make_labelled_config(folder, tmp_path), cls_tokens=2, double_cls_pairs="both" if both else "first")
    words = load(make_labelled_config(folder, tmp_path)).tokenizer
    assert words is not None
    assert loaded.tokenizer is not None
    for index, row in enumerate(make_pair_rows(40)):
        second = ("[CLS] " if both else "") + row["hypothesis"]
        example = loaded.train[(0, index)]
        # As text before the texts of a tokenizer with one [CLS], and by itself from the tokenizer to be saved.
        for expected in (words("[CLS] " + row["premise"], second), loaded.tokenizer(row["premise"], row["hypothesis"])):
            assert example["input_ids"].tolist() == expected["input_ids"]
            assert example["token_type_ids"].tolist() == expected["token_type_ids"]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=2), st.integers(2, 40), st.integers(1, 3), st.booleans())
def test_no_sequence_is_longer_than_allowed(lengths: list[int], extra: int, cls_tokens: int, both: bool) -> None:
    layout = Layout.from_tokenizer(
        build_symbol_tokenizer(SYMBOLS), 2 * cls_tokens + 2 + extra, cls_tokens, "both" if both else "first"
    )
    sequence = layout.build([np.full(length, 7 + number) for number, length in enumerate(lengths)])
    ids, special = sequence["input_ids"], sequence["special_tokens_mask"]
    room = layout.room(len(lengths))
    assert len(ids) == min(sum(lengths), room) + layout.sequence_length - room <= layout.sequence_length
    assert ids[:cls_tokens].tolist() == [2] * cls_tokens
    assert (special == (ids < 7)).all()
    assert [int((ids == 7 + number).sum()) for number in range(len(lengths))] == cut_longest(lengths, room)


def test_batches_are_padded_tensors(data: RunData) -> None:
    examples = [data.train[(0, index)] for index in (3, 0, 8)]
    batch = data.collate(examples)
    longest = max(len(example["input_ids"]) for example in examples)
    shape = (3, (longest + 7) // 8 * 8)
    assert {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in batch.items()} == {
        "input_ids": (shape, torch.int64), "attention_mask": (shape, torch.int64),
        "token_type_ids": (shape, torch.int64), "special_tokens_mask": (shape, torch.uint8),
        "labels": ((3,), torch.int64), "index": ((3,), torch.int64),
    }  # fmt: skip
    assert batch["index"].tolist() == [3, 0, 8]
    assert batch["labels"].tolist() == [1, 0, 0]
    for row, example in enumerate(examples):
        length = len(example["input_ids"])
        assert batch["attention_mask"][row].tolist() == [1] * length + [0] * (shape[1] - length)
        assert batch["input_ids"][row].tolist() == example["input_ids"].tolist() + [0] * (shape[1] - length)
        assert batch["special_tokens_mask"][row, length:].all()


def test_all_batches_have_one_shape_on_request(folder: Path, tmp_path: Path) -> None:
    loaded = load(make_labelled_config(folder, tmp_path, pad_to_length=True))
    assert loaded.collate([loaded.train[(0, 0)]])["input_ids"].shape == (1, 64)


# --- cache and workers


def count_builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    built: list[str] = []
    write = labelled.write_rows

    def count(folder: Path, *arguments: Any) -> None:
        built.append(folder.name)
        write(folder, *arguments)

    monkeypatch.setattr(labelled, "write_rows", count)
    return built


def test_text_is_tokenised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built, cache = count_builds(monkeypatch), tmp_path / "cache"
    path = write_splits(tmp_path / "in", "csv", train=make_pair_rows(20), validation=make_pair_rows(5))
    load(make_labelled_config(path, cache))
    assert len(built) == 2
    load(make_labelled_config(path, cache, sequence_length=16, max_train_examples=3, name="other"), cls_tokens=2)
    assert len(built) == 2
    for changes in ({"labels": ["a", "b"]}, {"text_columns": ["premise"]}, {"label_column": "number"}):
        before = len(built)
        load(make_labelled_config(path, cache, **changes))
        assert len(built) == before + 2
    file = path / "validation.csv"
    file.write_text(file.read_text().replace("talks", "walks"))
    before = len(built)
    load(make_labelled_config(path, cache))
    assert len(built) == before + 1
    load(make_labelled_config(path, cache), TokenizerConfig(vocab_size=55))
    assert len(built) == before + 3


# --- real data


ROWS = {"cola": (8551, 1043), "sst2": (67349, 872), "mrpc": (3668, 408), "stsb": (5749, 1500), "rte": (2490, 277),
        "wnli": (635, 71)}  # fmt: skip


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(ROWS))
def test_included_configurations_read_the_real_tasks(data_root: Path, tmp_path: Path, task: str) -> None:
    assert task in GLUE
    path = data_root / "glue" / task
    dataset = configured(
        "ponder_tiny",
        f"dataset={task}",
        "dataset.source=local",
        f"dataset.path={path}",
        f"dataset.cache_dir={tmp_path}",
    ).dataset
    loaded = load(dataset, TokenizerConfig(vocab_size=1000, train_documents=500), cls_tokens=2)
    assert (len(loaded.train), len(loaded.evaluation["validation"])) == ROWS[task]
    train = loaded.summary["train"]
    if task == "stsb":
        assert 0 < train["mean"] < 5
    else:
        assert sum(train["labels"].values()) == ROWS[task][0]
        assert min(train["labels"].values()) > 0
        assert tuple(train["labels"]) == loaded.labels == tuple(dataset.labels)
