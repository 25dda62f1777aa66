"""Bigram shift: sentences in their order and with two words swapped."""

from __future__ import annotations

import pickle
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adadepth.config import CorpusConfig, LabelledConfig, Source, TokenizerConfig
from adadepth.data import RunData, load_labelled_data
from adadepth.data.labelled.bigram_shift import SHARES, draw_pairs, select_sentences, swap
from adadepth.data.text.corpora import Split
from adadepth.errors import DataError
from adadepth.tasks.budgets import split_into_halves

from .support import is_same_example


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def load_bigrams(cache: Path, seed: int = 0, cls_tokens: int = 2, **changes: Any) -> RunData:
    settings = {"name": "shift", "source": Source.embedded, "sequence_length": 200, "cache_dir": str(cache)}
    dataset = LabelledConfig(**{**settings, **changes})
    return load_labelled_data(dataset, TokenizerConfig(vocab_size=500, train_documents=10), seed, cls_tokens=cls_tokens)


@pytest.fixture(scope="module")
def data(cache: Path) -> RunData:
    return load_bigrams(cache)


def decode_words(data: RunData, example: dict[str, Any]) -> list[str]:
    assert data.tokenizer is not None
    pieces = data.tokenizer.convert_ids_to_tokens(example["input_ids"][2:-1])
    return "".join(pieces).replace("▁", " ").split()


def test_every_sentence_occurs_original_and_shifted(data: RunData) -> None:
    for examples in (data.train, data.evaluation["validation"]):
        for index in range(0, 200, 2):
            original, shifted = examples[index], examples[index + 1]
            assert (original["label"], shifted["label"]) == (0, 1)
            assert (original["index"], shifted["index"]) == (index, index + 1)
            before, after = decode_words(data, original), decode_words(data, shifted)
            assert before != after
            assert Counter(before) == Counter(after)
            moved = sum(a != b for a, b in zip(before, after, strict=True))
            share = (1.0, 0.5, 0.25)[shifted["difficulty"]]
            assert moved == 2 * max(1, round(share * (len(before) // 2)))
            assert original["difficulty"] == 3


def test_difficulties_are_equally_likely(data: RunData) -> None:
    counts = Counter(data.train[(0, index)]["difficulty"] for index in range(1, len(data.train), 2))
    shares = [counts[difficulty] / sum(counts.values()) for difficulty in range(len(SHARES))]
    assert shares == pytest.approx([1 / 3] * 3, abs=0.05)
    assert len(counts) == 3


def test_examples_are_pure_functions_of_seed_epoch_and_index(data: RunData, cache: Path) -> None:
    again, other = load_bigrams(cache), load_bigrams(cache, seed=1)
    fresh = 0
    for index in (41, 1, 2001):
        first = data.train[(2, index)]
        data.train[(0, 3)]
        assert is_same_example(first, again.train[(2, index)])
        fresh += not is_same_example(first, data.train[(3, index)])
        fresh += not is_same_example(first, other.train[(2, index)])
        assert is_same_example(data.train[(2, index - 1)], other.train[(5, index - 1)])
        assert is_same_example(data.evaluation["validation"][index % 300], other.evaluation["validation"][index % 300])
    assert fresh >= 5
    assert is_same_example(pickle.loads(pickle.dumps(data.train))[(2, 41)], data.train[(2, 41)])


def test_held_out_sentences_are_in_no_training_document(data: RunData) -> None:
    split = Split(CorpusConfig(name="x", evaluation_fraction=0.15))
    held_out, training = select_sentences(split.evaluation()), select_sentences(split.train())
    assert set(training) & set(held_out)  # or there is nothing to keep apart
    for part, texts in (("train", set(training) - set(held_out)), ("validation", set(held_out))):
        summary = data.summary["train"] if part == "train" else data.summary["evaluation"][part]
        assert 0.97 * len(texts) < summary["sentences"] <= len(texts)  # without those of repeated words
        assert summary["examples"] == 2 * summary["sentences"]
    both = [
        {" ".join(decode_words(data, examples[index])) for index in range(0, len(examples), 2)}
        for examples in (data.train, data.evaluation["validation"])
    ]
    assert not both[0] & both[1]


@pytest.mark.slow
def test_fewer_examples_stay_balanced(cache: Path) -> None:
    small = load_bigrams(cache, max_train_examples=100, max_evaluation_examples=31)
    assert (len(small.train), len(small.evaluation["validation"])) == (100, 30)
    batch = small.collate([small.train[(0, index)] for index in range(100)])
    assert batch["labels"].sum() == 50
    assert len(set(batch["index"].tolist())) == 100
    assert (batch["input_ids"][:, :2] == batch["input_ids"][0, 0]).all()  # the second [CLS]
    assert (small.labels, small.has_difficulty) == (("original", "shifted"), True)


@given(st.integers(2, 30), st.integers(0, 1000), st.data())
def test_pairs_do_not_overlap(words: int, seed: int, data: st.DataObject) -> None:
    pairs = data.draw(st.integers(1, words // 2))
    firsts = draw_pairs(words, pairs, np.random.default_rng(seed))
    assert len(firsts) == pairs
    assert min(firsts) >= 0
    assert max(firsts) <= words - 2
    assert all(later - first >= 2 for first, later in pairwise(firsts))


def test_choices_of_pairs_are_equally_likely() -> None:
    generator = np.random.default_rng(0)
    counts = Counter(tuple(draw_pairs(6, 2, generator)) for _ in range(6000))
    assert sorted(counts) == [(0, 2), (0, 3), (0, 4), (1, 3), (1, 4), (2, 4)]
    assert all(abs(count - 1000) < 5 * 29 for count in counts.values())


def test_pairs_of_words_are_swapped() -> None:
    words = [np.array([number]) for number in range(6)]
    assert [int(word[0]) for word in swap(words, [0, 3])] == [1, 0, 2, 4, 3, 5]
    assert [int(word[0]) for word in words] == list(range(6))


def test_unusable_sentences_are_left_out() -> None:
    documents = [
        "Too short here. This sentence is long enough now.",
        "This sentence is long enough now.\n" + "a b " * 15,
    ]
    assert select_sentences(documents) == ["This sentence is long enough now."]


def test_no_sentence_is_truncated(cache: Path, data: RunData) -> None:
    small = load_bigrams(cache, sequence_length=40)
    assert 0 < len(small.train) < len(data.train)
    lengths = {len(small.train[index]["input_ids"]) for index in range(len(small.train))}
    assert max(lengths) == 40
    with pytest.raises(DataError, match=r"sequence_length=8: all sentences are longer"):
        load_bigrams(cache, sequence_length=8)


def test_both_halves_have_both_classes_and_no_sentence_in_common(data: RunData) -> None:
    """Draw halves, since every second example is of one class; a sentence's two versions stay together."""
    (examples,) = data.evaluation.values()
    labels, rows = [], []
    for half in split_into_halves(examples):
        half_examples = [half[position] for position in range(len(half))]
        labels.append(np.mean([example["label"] for example in half_examples]))
        rows.append({example["index"] // 2 for example in half_examples})
    assert labels == [0.5, 0.5]
    assert not rows[0] & rows[1]
    assert abs(len(rows[0]) - len(rows[1])) <= 1
