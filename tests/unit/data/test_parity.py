"""Parity of vectors and token sequences, with the number of ones as difficulty."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from adadepth.config import TokenizerConfig
from adadepth.config.data import ParityConfig, Representation
from adadepth.data import RunData, load_labelled_data
from adadepth.errors import ConfigError
from tests.marks_support import keep_one_quick


def load_parity(seed: int = 0, cls_tokens: int = 1, **changes: Any) -> RunData:
    settings: dict[str, Any] = {"name": "parity", "max_evaluation_examples": 500, "train_examples": 3000, **changes}
    return load_labelled_data(ParityConfig(**settings), TokenizerConfig(), seed, cls_tokens=cls_tokens)


@pytest.mark.parametrize("counted", ["nonzero", "positive"])
def test_values_labels_and_difficulty_agree(counted: str) -> None:
    data = load_parity(size=20, train_ones=[3, 11], counted=counted)
    examples = [data.train[(0, index)] for index in range(len(data.train))]
    values = np.stack([example["inputs"] for example in examples])
    assert values.shape == (3000, 20)
    assert set(np.unique(values)) == {-1.0, 0.0, 1.0}
    number = (values != 0).sum(axis=1)
    ones = number if counted == "nonzero" else (values == 1).sum(axis=1)
    assert [example["label"] for example in examples] == (ones % 2).tolist()
    assert [example["difficulty"] for example in examples] == ones.tolist()
    assert [example["index"] for example in examples] == list(range(3000))
    # Numbers of ones, positions and signs are equally likely, within 5 standard deviations.
    counts = Counter(number.tolist())
    assert sorted(counts) == list(range(3, 12))
    assert all(abs(count - 3000 / 9) < 5 * (3000 / 9) ** 0.5 for count in counts.values())
    assert np.abs((values != 0).mean(axis=0) - 7 / 20).max() < 5 * (0.35 * 0.65 / 3000) ** 0.5
    assert abs(values.sum()) < 5 * (7 * 3000) ** 0.5


def test_no_example_occurs_twice() -> None:
    data = load_parity(train_ones=[10, 64])
    rows = {data.train[(epoch, index)]["inputs"].tobytes() for epoch in (0, 1) for index in range(3000)}
    rows |= {data.evaluation["interpolation"][index]["inputs"].tobytes() for index in range(500)}
    assert len(rows) > 6490  # those with few ones may, by chance


def test_evaluation_sets_have_their_ranges() -> None:
    data = load_parity(size=24, train_ones=[1, 12], extrapolation_ones=[13, 24])
    assert list(data.evaluation) == ["interpolation", "extrapolation"]
    difficulties = [
        {e["difficulty"] for e in map(examples.__getitem__, range(500))} for examples in data.evaluation.values()
    ]
    assert difficulties == [set(range(1, 13)), set(range(13, 25))]
    assert (data.labels, data.metrics, data.problem, data.has_difficulty) == (
        ("even", "odd"),
        ("accuracy",),
        "classification",
        True,
    )


def test_batches_have_vectors() -> None:
    data = load_parity()
    assert data.tokenizer is None
    batch = data.collate([data.train[(0, index)] for index in (4, 9)])
    assert {name: (tuple(t.shape), t.dtype) for name, t in batch.items()} == {
        "inputs": ((2, 64), torch.float32), "index": ((2,), torch.int64), "labels": ((2,), torch.int64),
        "difficulty": ((2,), torch.int64),
    }  # fmt: skip
    assert batch["index"].tolist() == [4, 9]


@pytest.mark.parametrize("cls_tokens", keep_one_quick(2, [1, 2]))
def test_tokens_equal_the_vectors(cls_tokens: int, tmp_path: Any) -> None:
    tokens = load_parity(cls_tokens=cls_tokens, representation=Representation.tokens, sequence_length=72)
    vectors = load_parity()
    words = tokens.tokenizer
    assert words is not None
    words.save_pretrained(tmp_path)
    reloaded = AutoTokenizer.from_pretrained(tmp_path)
    for index in range(5):
        example, vector = tokens.train[(1, index)], vectors.train[(1, index)]
        assert (example["label"], example["difficulty"]) == (vector["label"], vector["difficulty"])
        text = " ".join(str(int(value)) for value in vector["inputs"])
        expected = reloaded(text)
        assert example["input_ids"].tolist() == expected["input_ids"]
        assert example["token_type_ids"].tolist() == [0] * (65 + cls_tokens)
        assert reloaded.convert_ids_to_tokens(example["input_ids"])[cls_tokens:-1] == text.split()
    batch = tokens.collate([tokens.train[(0, 0)]])
    assert batch["input_ids"].shape == (1, 72)
    assert batch["special_tokens_mask"][0].tolist() == [1] * cls_tokens + [0] * 64 + [1] * (8 - cls_tokens)


def test_a_sequence_that_does_not_fit_is_a_one_line_error() -> None:
    fits = {"representation": Representation.tokens, "size": 64}
    load_parity(cls_tokens=2, sequence_length=67, **fits)
    with pytest.raises(ConfigError, match=r"sequence_length=66: 64 values .* 67"):
        load_parity(cls_tokens=2, sequence_length=66, **fits)


def test_training_begins_with_easy_examples_only() -> None:
    data = load_parity(size=24, train_ones=[1, 20], easy_epochs=2, easy_ones=4)

    def list_difficulties(epoch: int) -> set[int]:
        return {data.train[(epoch, index)]["difficulty"] for index in range(1500)}

    assert list_difficulties(0) == list_difficulties(1) == set(range(1, 5))
    assert list_difficulties(2) == set(range(1, 21))
    assert {data.evaluation["interpolation"][index]["difficulty"] for index in range(500)} == set(range(1, 21))


def test_the_input_width_of_a_model_is_that_of_vectors() -> None:
    for representation, expected in ((Representation.vectors, {"input_size": 12}), (Representation.tokens, {})):
        dataset = ParityConfig(representation=representation, size=12, train_ones=[1, 12], train_examples=8)
        assert load_labelled_data(dataset, TokenizerConfig(), 0).model_fields == expected
