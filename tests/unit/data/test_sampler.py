"""Order of examples by length in an evaluation, and lengths of every kind of data set."""

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
from tests.marks_support import keep_one_quick
from tests.unit.data.labelled_support import load, make_labelled_config, make_pair_rows, write_splits
from tests.unit.data.support import make_corpus_config, make_tokenizer_config, write_corpus


@given(st.lists(st.integers(1, 9)))
def test_the_longest_examples_come_first(lengths: list[int]) -> None:
    order = order_longest_first(np.array(lengths, dtype=np.int64)).tolist()
    assert order == sorted(range(len(lengths)), key=lambda number: (-lengths[number], number))


def load_pretraining(folder: Path) -> Any:
    data = load_pretraining_data(make_corpus_config(write_corpus(folder), folder / "cache"), make_tokenizer_config(), 0)
    return data.evaluation["held_out"]


def load_unpaired(folder: Path) -> Any:
    dataset = make_corpus_config(write_corpus(folder), folder / "cache", sentence_order=False)
    return load_pretraining_data(dataset, make_tokenizer_config(), 0).evaluation["held_out"]


def load_pairs(folder: Path, **options: Any) -> Any:
    path = write_splits(folder, train=make_pair_rows(30), validation=make_pair_rows(20, first=30))
    dataset = make_labelled_config(path, folder / "cache", sequence_length=100, max_evaluation_examples=15)
    return load(dataset, **options).evaluation["validation"]


def load_double_pairs(folder: Path) -> Any:
    return load_pairs(folder, cls_tokens=2, double_cls_pairs="both")


def load_tagged(folder: Path) -> Any:
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


def load_shifted(folder: Path) -> Any:
    dataset = LabelledConfig(
        name="python_docs", source="embedded", cache_dir=str(folder), sequence_length=40, max_evaluation_examples=40
    )
    return load_labelled_data(dataset, TokenizerConfig(vocab_size=300, train_documents=20), 0).evaluation["validation"]


@pytest.mark.parametrize(
    "make",
    keep_one_quick(3, [load_pretraining, load_unpaired, load_pairs, load_double_pairs, load_tagged, load_shifted]),
)
def test_lengths_equal_those_of_the_examples(make: Callable[[Path], Any], tmp_path: Path) -> None:
    examples = make(tmp_path)
    counted = [len(examples[index]["input_ids"]) for index in range(len(examples))]
    assert len(set(counted)) > 2
    for dataset in (examples, RowNumbers(examples, first=7)):
        lengths = get_lengths(dataset)
        assert lengths is not None
        assert lengths.tolist() == counted
        assert order_for_evaluation(dataset).tolist() == order_longest_first(np.array(counted)).tolist()


def test_data_without_lengths_keep_their_order() -> None:
    train = load_labelled_data(ParityConfig(size=4, train_examples=6), TokenizerConfig(), 0).train
    for examples in (train, RowNumbers(train)):
        assert get_lengths(examples) is None
        assert order_for_evaluation(examples).tolist() == list(range(6))


def test_examples_of_a_corpus_are_numbered(tmp_path: Path) -> None:
    dataset: CorpusConfig = make_corpus_config(write_corpus(tmp_path), tmp_path / "cache")
    data = load_pretraining_data(dataset, make_tokenizer_config(), 0)
    assert data.collate([data.evaluation["held_out"][index] for index in (5, 2)])["index"].tolist() == [5, 2]


@given(st.integers(0, 40), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_processes_together_read_the_batches_of_one(examples: int, size: int, processes: int, drop_last: bool) -> None:
    def list_batches(batch_size: int, process: int, count: int) -> list[list[Any]]:
        sampler = ProcessBatches(EpochSampler(examples, 3), batch_size, process, count, drop_last=drop_last)
        listed = list(sampler)
        assert len(listed) == len(sampler)
        return listed

    whole = list_batches(size * processes, 0, 1)
    shares = [list_batches(size, process, processes) for process in range(processes)]
    assert [[item for share in update for item in share] for update in zip(*shares, strict=True)] == whole
    read = [item for batch in whole for item in batch]
    order = list(EpochSampler(examples, 3))
    assert read == (order[: examples // (size * processes) * size * processes] if drop_last else order)
