"""Generated data sets, compared with plain loops: a queue, pointers followed one by one, Python's own addition."""

from __future__ import annotations

import pickle
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from adadepth.config import DatasetConfig, TokenizerConfig
from adadepth.config.data import AdditionConfig, HopsConfig, LabelledUnit, MazeConfig, ParityConfig
from adadepth.data import RunData, load_labelled_data
from adadepth.errors import ConfigError
from tests.marks_support import keep_one_quick

from .support import is_same_example

FEW: dict[str, Any] = {"max_evaluation_examples": 40, "train_examples": 3000}
KINDS: dict[str, DatasetConfig] = {
    "maze": MazeConfig(name="maze", size=6, field=12, beyond_sizes=[8, 10], **FEW),
    "hops": HopsConfig(name="hops", **FEW),
    "hops_sequence": HopsConfig(name="hops", unit=LabelledUnit.sequence, sequence_length=24, **FEW),
    "addition": AdditionConfig(name="addition", digits=7, field=12, beyond_digits=[9, 11], **FEW),
}
SETS = {
    "maze": ["inside", "beyond_8", "beyond_10"], "hops": ["inside", "beyond"], "hops_sequence": ["inside", "beyond"],
    "addition": ["inside", "beyond_9", "beyond_11"],
}  # fmt: skip
kinds = pytest.mark.parametrize("kind", KINDS)


def load_kind(kind: str, seed: int = 0, **options: Any) -> RunData:
    dataset = ParityConfig(name="parity", **FEW) if kind == "parity" else KINDS[kind]
    return load_labelled_data(dataset, TokenizerConfig(), seed, **options)


def decode_symbols(data: RunData, example: dict[str, Any]) -> list[str]:
    assert data.tokenizer is not None
    return data.tokenizer.convert_ids_to_tokens(example["input_ids"])


def list_examples(data: RunData) -> list[tuple[str, dict[str, Any]]]:
    """Return examples of training and of every evaluation set."""
    named_examples = [("train", data.train[(epoch, index)]) for epoch in (0, 3) for index in (0, 7, 1023, 1024, 2999)]
    return named_examples + [
        (name, examples[index]) for name, examples in data.evaluation.items() for index in range(40)
    ]


@pytest.mark.parametrize("kind", keep_one_quick(2, [*KINDS, "parity"]))
def test_examples_are_pure_functions_of_seed_epoch_and_index(kind: str) -> None:
    data, again, other = load_kind(kind, 3), load_kind(kind, 3), load_kind(kind, 4)
    for index in (2999, 0, 1500):
        first = data.train[(2, index)]
        data.train[(1, 7)]  # another epoch between them must not matter
        assert is_same_example(first, again.train[(2, index)])
        assert not is_same_example(first, data.train[(3, index)])
        assert not is_same_example(first, other.train[(2, index)])
    for name in data.evaluation:
        assert is_same_example(data.evaluation[name][5], other.evaluation[name][5])
        assert not is_same_example(data.evaluation[name][5], data.evaluation[name][6])
    assert is_same_example(pickle.loads(pickle.dumps(data.train))[(2, 5)], data.train[(2, 5)])


@kinds
def test_a_data_set_has_its_sets_summary_and_tokenizer(kind: str, tmp_path: Any) -> None:
    data = load_kind(kind)
    assert list(data.evaluation) == SETS[kind]
    assert data.summary["evaluation"] == {name: {"examples": 40} for name in SETS[kind]}
    assert len(data.train) == 3000
    assert data.has_difficulty
    assert data.problem == ("classification" if kind == "hops_sequence" else "tagging")
    assert data.picture == {"maze": "cells", "hops": "chains"}.get(kind)
    words = data.tokenizer
    assert words is not None
    words.save_pretrained(tmp_path)
    example = data.train[(0, 0)]
    read = AutoTokenizer.from_pretrained(tmp_path)(" ".join(decode_symbols(data, example)), add_special_tokens=False)
    assert read["input_ids"] == example["input_ids"].tolist()


@pytest.mark.parametrize("kind", ["maze", "hops", "addition"])
def test_batches_have_tags_and_difficulties(kind: str) -> None:
    data = load_kind(kind)
    examples = [data.train[(0, 0)], *(examples[0] for examples in data.evaluation.values())]
    batch = data.collate(examples)
    width = -(-max(len(example["input_ids"]) for example in examples) // 8) * 8
    for row, example in enumerate(examples):
        length = len(example["input_ids"])
        assert batch["attention_mask"][row].tolist() == [1] * length + [0] * (width - length)
        assert batch["labels"][row].tolist() == example["labels"].tolist() + [-100] * (width - length)
        assert batch["difficulty"][row].tolist() == example["difficulties"].tolist() + [-1] * (width - length)
        if kind != "hops":
            assert batch["position_ids"][row, :length].tolist() == example["position_ids"].tolist()
    gold: Any = data.evaluation["inside"]
    labels = gold[3]["labels"]
    assert gold.gold(3) == labels[labels >= 0].tolist()
    assert all(tensor.dtype in (torch.int64, torch.uint8) for tensor in batch.values())


def compute_distances_by_queue(rows: list[str]) -> dict[tuple[int, int], int]:
    """Return distances by breadth-first search, one cell after the other."""
    (start,) = [(y, x) for y, row in enumerate(rows) for x, symbol in enumerate(row) if symbol == "S"]
    distances, queue = {start: 0}, deque([start])
    while queue:
        y, x = queue.popleft()
        for cell in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
            inside = all(0 <= coordinate < len(rows) for coordinate in cell)
            if inside and cell not in distances and rows[cell[0]][cell[1]] != "#":
                distances[cell] = distances[y, x] + 1
                queue.append(cell)
    return distances


def test_labels_of_mazes_equal_a_breadth_first_search() -> None:
    data, sizes, walls = load_kind("maze"), {"train": 6, "inside": 6, "beyond_8": 8, "beyond_10": 10}, []
    for name, example in list_examples(data):
        size, symbols = sizes[name], decode_symbols(data, example)
        assert len(symbols) == size**2
        rows = ["".join(symbols[start : start + size]) for start in range(0, size**2, size)]
        walls.append(np.mean([symbol == "#" for symbol in symbols]))
        distances = compute_distances_by_queue(rows)
        first_row, first_column = example["position_ids"][0], example["token_type_ids"][0]
        assert 0 <= first_row <= 12 - size
        assert 0 <= first_column <= 12 - size
        for position, symbol in enumerate(symbols):
            cell = divmod(position, size)
            assert example["position_ids"][position] - first_row == cell[0]
            assert example["token_type_ids"][position] - first_column == cell[1]
            label, difficulty = example["labels"][position], example["difficulties"][position]
            if symbol == ".":
                assert (label, difficulty) == (int(cell in distances), distances.get(cell, -1))
            else:
                assert (label, difficulty) == (-100, -1)
    assert abs(np.mean(walls) - 0.4) < 0.03
    origins = {(example["position_ids"][0], example["token_type_ids"][0]) for _, example in list_examples(data)}
    assert len(origins) > 25


def follow(symbols: list[str], node: int) -> tuple[str, int]:
    """Return colour and number of hops of a node."""
    hops = 0
    while symbols[node].startswith(">"):
        node, hops = int(symbols[node].removeprefix(">")), hops + 1
    return symbols[node], hops


RANGES = {"train": (0, 5), "inside": (0, 5), "beyond": (6, 7)}


def test_labels_of_pointers_equal_followed_ones() -> None:
    data, seen = load_kind("hops"), {name: [0] * 8 for name in RANGES}
    for name, example in list_examples(data):
        symbols, (low, high) = decode_symbols(data, example), RANGES[name]
        for node in range(16):
            colour, hops = follow(symbols, node)
            expected = data.labels.index(colour) if low <= hops <= high else -100
            assert (example["labels"][node], example["difficulties"][node]) == (expected, hops)
            seen[name][hops] += 1
        assert len({follow(symbols, node)[0] for node in range(16) if follow(symbols, node)[1] == high}) > 1
    assert seen["inside"][6:] == [0, 0]
    assert min(seen["inside"][:6]) > 0.5 * max(seen["inside"])
    assert min(seen["beyond"]) > 0.5 * max(seen["beyond"])


@pytest.mark.parametrize("cls_tokens", [1, 2])
def test_the_label_is_that_of_the_marked_node(cls_tokens: int) -> None:
    data, seen = load_kind("hops_sequence", cls_tokens=cls_tokens), set()
    for name, example in list_examples(data):
        symbols = decode_symbols(data, example)
        assert symbols[:cls_tokens] == ["[CLS]"] * cls_tokens
        assert symbols[-1] == "[SEP]"
        (marked,) = np.flatnonzero(example["token_type_ids"])
        colour, hops = follow(symbols[cls_tokens:-1], marked - cls_tokens)
        assert (data.labels[example["label"]], example["difficulty"]) == (colour, hops)
        assert RANGES[name][0] <= hops <= RANGES[name][1]
        seen.add(hops)
    assert seen == set(range(8))


def test_a_sequence_of_pointers_that_does_not_fit_is_a_one_line_error() -> None:
    dataset = HopsConfig(name="hops", unit=LabelledUnit.sequence, sequence_length=18)
    load_labelled_data(dataset, TokenizerConfig(), 0)
    with pytest.raises(ConfigError, match=r"sequence_length=18: 16 nodes and the special tokens need 19"):
        load_labelled_data(dataset, TokenizerConfig(), 0, cls_tokens=2)


def test_labels_of_additions_equal_python_sums() -> None:
    data, digits, nines = load_kind("addition"), {"train": 7, "inside": 7, "beyond_9": 9, "beyond_11": 11}, []
    for name, example in list_examples(data):
        columns = [tuple(map(int, symbol.split("+"))) for symbol in decode_symbols(data, example)]
        assert len(columns) == digits[name] + 1
        first, second = (int("".join(str(column[row]) for column in columns)) for row in (0, 1))
        assert "".join(map(str, example["labels"])) == str(first + second).zfill(len(columns))
        for position in range(len(columns)):
            lower = [sum(column) for column in columns[position + 1 :]]
            decided = [number + 1 for number, total in enumerate(lower) if total != 9]
            assert example["difficulties"][position] == (decided[0] if decided else len(lower))
        nines += [sum(column) == 9 for column in columns[1:]]
        position = example["position_ids"][0]
        assert 0 <= position <= 12 - len(columns)
        assert example["position_ids"].tolist() == list(range(position, position + len(columns)))
    assert abs(np.mean(nines) - 0.5) < 0.06
