"""Examples by length: the order of an evaluation, and what each data set says of its lengths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adadepth.config import CorpusConfig, LabelledConfig, TaggingConfig, TokenizerConfig
from adadepth.config.data import ParityConfig
from adadepth.data import load_labelled_data, load_pretraining_data
from adadepth.data.batches import EpochSampler, ProcessBatches, get_lengths, order_for_evaluation, order_longest_first
from adadepth.data.features.states import RowNumbers
from tests.marks_support import quick_one_in
from tests.unit.data.labelled_support import config, load, rows_of_pairs, write_splits
from tests.unit.data.support import local_config, small_tokenizer, write_corpus


@given(st.lists(st.integers(1, 9)))
def test_longest_first(lengths: list[int]) -> None:
    order = order_longest_first(np.array(lengths, dtype=np.int64)).tolist()
    assert order == sorted(range(len(lengths)), key=lambda number: (-lengths[number], number))


def pretraining(folder: Path) -> Any:
    data = load_pretraining_data(local_config(write_corpus(folder), folder / "cache"), small_tokenizer(), 0)
    return data.evaluation["held_out"]


def unpaired(folder: Path) -> Any:
    dataset = local_config(write_corpus(folder), folder / "cache", sentence_order=False)
    return load_pretraining_data(dataset, small_tokenizer(), 0).evaluation["held_out"]


def pairs(folder: Path, **options: Any) -> Any:
    path = write_splits(folder, train=rows_of_pairs(30), validation=rows_of_pairs(20, first=30))
    dataset = config(path, folder / "cache", sequence_length=100, max_evaluation_examples=15)
    return load(dataset, **options).evaluation["validation"]


def double_pairs(folder: Path) -> Any:
    return pairs(folder, cls_tokens=2, double_cls_pairs="both")


def tagged(folder: Path) -> Any:
    rows = [
        {"tokens": [f"word{number % 5}"] * (1 + number % 9), "tags": ["O"] * (number % 9) + ["B"]}
        for number in range(30)
    ]
    path = write_splits(folder, train=rows, validation=rows[:20])
    dataset = TaggingConfig(
        name="tags", source="local", path=str(path), token_column="tokens", tag_column="tags",
        cache_dir=str(folder / "cache"), sequence_length=24,
    )  # fmt: skip
    return load_labelled_data(dataset, TokenizerConfig(vocab_size=20), 0).evaluation["validation"]


def shifted(folder: Path) -> Any:
    dataset = LabelledConfig(
        name="python_docs", source="embedded", cache_dir=str(folder), sequence_length=40, max_evaluation_examples=40
    )
    return load_labelled_data(dataset, TokenizerConfig(vocab_size=300, train_documents=20), 0).evaluation["validation"]


@pytest.mark.parametrize("make", quick_one_in(3, [pretraining, unpaired, pairs, double_pairs, tagged, shifted]))
def test_lengths_are_those_of_the_examples(make: Callable[[Path], Any], tmp_path: Path) -> None:
    examples = make(tmp_path)
    counted = [len(examples[index]["input_ids"]) for index in range(len(examples))]
    assert len(set(counted)) > 2
    for known in (examples, RowNumbers(examples, first=7)):
        lengths = get_lengths(known)
        assert lengths is not None
        assert lengths.tolist() == counted
        assert order_for_evaluation(known).tolist() == order_longest_first(np.array(counted)).tolist()


def test_data_that_have_no_lengths_keep_their_order() -> None:
    drawn = load_labelled_data(ParityConfig(size=4, train_examples=6), TokenizerConfig(), 0).train
    for examples in (drawn, RowNumbers(drawn)):
        assert get_lengths(examples) is None
        assert order_for_evaluation(examples).tolist() == list(range(6))


def test_examples_of_a_corpus_are_numbered(tmp_path: Path) -> None:
    dataset: CorpusConfig = local_config(write_corpus(tmp_path), tmp_path / "cache")
    data = load_pretraining_data(dataset, small_tokenizer(), 0)
    assert data.collate([data.evaluation["held_out"][index] for index in (5, 2)])["index"].tolist() == [5, 2]


@given(st.integers(0, 40), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_processes_read_what_one_reads_in_every_update(
    examples: int, size: int, processes: int, drop_last: bool
) -> None:
    def batches(batch_size: int, process: int, count: int) -> list[list[Any]]:
        found = ProcessBatches(EpochSampler(examples, 3), batch_size, process, count, drop_last=drop_last)
        listed = list(found)
        assert len(listed) == len(found)
        return listed

    whole = batches(size * processes, 0, 1)
    shares = [batches(size, process, processes) for process in range(processes)]
    assert [[item for share in update for item in share] for update in zip(*shares, strict=True)] == whole
    read = [item for batch in whole for item in batch]
    order = list(EpochSampler(examples, 3))
    assert read == (order[: examples // (size * processes) * size * processes] if drop_last else order)
