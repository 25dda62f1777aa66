"""Masking of words for pretraining, compared with published shares and uniform draws."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adadepth.data import RunData
from adadepth.data.batches import IGNORE
from adadepth.data.pretraining.masking import (
    MASKED,
    NOT_SELECTED,
    ORIGINAL,
    RANDOM,
    Vocabulary,
    find_word_starts,
    mask_tokens,
    ngram_distribution,
)
from adadepth.data.randomness import Purpose, random_generator

from .support import MaskingConfig, make_vocabulary

CLS, SEP, MASK = 2, 3, 4


def make_sentence(length: int, seed: int = 0, size: int = 1000) -> np.ndarray:
    words = np.random.default_rng(seed).integers(5, size, length)
    return np.concatenate([[CLS], words[: length // 2], [SEP], words[length // 2 :], [SEP]])


def make_generator(index: int) -> np.random.Generator:
    return random_generator(0, Purpose.EXAMPLE, 0, index)


def test_the_shares_are_80_10_10_and_kinds_match_the_tokens() -> None:
    vocabulary, counts = (
        make_vocabulary(12),
        np.zeros(4, dtype=int),
    )  # 7 ordinary tokens: a draw often hits the original
    for index in range(400):
        ids = make_sentence(120, index, size=12)
        fed, labels, kinds = mask_tokens(ids, vocabulary, MaskingConfig(max_predictions=None), make_generator(index))
        assert ((kinds == NOT_SELECTED) == (labels == IGNORE)).all()
        assert (labels[kinds > 0] == ids[kinds > 0]).all()
        assert ((kinds == MASKED) == (fed == MASK)).all()
        assert (fed[kinds == RANDOM] != ids[kinds == RANDOM]).all()
        assert (fed[kinds != MASKED] >= 5).sum() == (ids[kinds != MASKED] >= 5).sum()
        untouched = (kinds == ORIGINAL) | (kinds == NOT_SELECTED)
        assert (fed[untouched] == ids[untouched]).all()
        counts += np.bincount(kinds, minlength=4)
    total = counts[1:].sum()
    assert total == 400 * 18  # 15 % of 120
    expected = total * np.array([0.8, 0.1, 0.1])
    assert ((counts[1:] - expected) ** 2 / expected).sum() < 13.8  # chi-square, 2 degrees of freedom, p = 0.001


def test_random_replacements_are_uniform_over_the_other_ordinary_tokens() -> None:
    vocabulary, counts = make_vocabulary(11), np.zeros(11)
    masking = MaskingConfig(mask_share=0.0, random_share=1.0, max_predictions=None, probability=0.5)
    for index in range(300):
        fed, labels, _ = mask_tokens(np.full(60, 7), vocabulary, masking, make_generator(index))
        counts += np.bincount(fed[labels != IGNORE], minlength=11)
    assert counts[7] == 0
    assert counts[:5].sum() == 0
    replacement_counts = counts[[5, 6, 8, 9, 10]]
    assert (
        (replacement_counts - replacement_counts.mean()) ** 2 / replacement_counts.mean()
    ).sum() < 18.5  # 4 degrees of freedom, p = 0.001


def test_ngram_lengths_follow_one_over_n() -> None:
    assert np.diff(ngram_distribution(3), prepend=0) == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    assert ngram_distribution(1) == pytest.approx([1.0])


def test_masked_runs_favour_short_ngrams_in_the_published_proportion() -> None:
    vocabulary, lengths = make_vocabulary(), []
    masking = MaskingConfig(probability=0.01, max_predictions=None)  # so sparse that runs hardly ever meet
    for index in range(400):
        _, labels, _ = mask_tokens(make_sentence(1000, index), vocabulary, masking, make_generator(index))
        selected = np.flatnonzero(labels != IGNORE)
        runs = np.split(selected, np.flatnonzero(np.diff(selected) > 1) + 1)
        lengths.extend(len(run) for run in runs)
    shares = np.bincount(lengths, minlength=4)[1:4] / len(lengths)
    # The last n-gram of an example is cut to the budget of 10 tokens, which adds a few short ones.
    assert shares == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.05)


def test_whole_words_are_selected() -> None:
    vocabulary = make_vocabulary(word_every=3)  # 6, 9, 12, ... begin a word, the rest continue one
    ids = np.concatenate([[CLS], np.arange(6, 96), [SEP]])
    for index in range(50):
        _, labels, _ = mask_tokens(ids, vocabulary, MaskingConfig(), make_generator(index))
        selected = (labels != IGNORE)[1:-1].reshape(30, 3)
        assert (selected.all(axis=1) == selected.any(axis=1)).all()
    single = MaskingConfig(whole_word=False, max_ngram=1)
    broken = [
        mask_tokens(ids, vocabulary, single, make_generator(i))[1][1:-1].reshape(30, 3) != IGNORE for i in range(5)
    ]
    assert any((selected.any(axis=1) != selected.all(axis=1)).any() for selected in broken)


@settings(max_examples=50, deadline=None)
@given(
    ids=st.lists(st.integers(0, 49), min_size=1, max_size=60),
    probability=st.floats(0.01, 0.99),
    limit=st.one_of(st.none(), st.integers(1, 20)),
    longest=st.integers(1, 4),
    word_every=st.integers(1, 4),
    whole_word=st.booleans(),
    seed=st.integers(0, 2**70),
)
def test_masking_keeps_its_invariants(
    ids: list[int], probability: float, limit: int | None, longest: int, word_every: int, whole_word: bool, seed: int
) -> None:
    original = np.array([CLS, *ids, SEP])
    masking = MaskingConfig(
        probability=probability, max_predictions=limit, max_ngram=longest, whole_word=whole_word
    )  # fmt: skip
    vocabulary = make_vocabulary(50, word_every)
    fed, labels, kinds = mask_tokens(original, vocabulary, masking, random_generator(seed, Purpose.EXAMPLE, -1, 9))
    selected = labels != IGNORE
    ordinary = int((original >= 5).sum())
    budget = max(1, round(probability * ordinary))
    budget = budget if limit is None else min(limit, budget)
    assert not selected[original < 5].any()
    assert (labels[selected] == original[selected]).all()
    assert (kinds > 0).tolist() == selected.tolist()
    assert selected.sum() <= budget
    assert selected.any() == (ordinary > 0)
    if word_every == 1 or not whole_word:
        assert selected.sum() == min(budget, ordinary)
    assert set(fed[kinds == RANDOM].tolist()) <= set(range(5, 50))


@pytest.mark.parametrize(
    ("pieces", "starts"),
    [
        (["▁the", "re", "▁", ",", "-x", "▁."], [True, False, True, True, False, True]),
        (["Ġthe", "re", "!"], [True, False, True]),
        (["the", "##re", "!"], [True, False, True]),
        (["a", "b"], [True, True]),
    ],
)
def test_word_starts_are_found_in_every_kind_of_vocabulary(pieces: list[str], starts: list[bool]) -> None:
    assert find_word_starts(pieces).tolist() == starts


def test_a_vocabulary_follows_from_its_tokenizer(data: RunData) -> None:
    vocabulary = Vocabulary.from_tokenizer(data.tokenizer)
    assert (vocabulary.pad, vocabulary.cls, vocabulary.sep, vocabulary.mask) == (0, 2, 3, 4)
    assert vocabulary.ordinary.tolist() == list(range(5, len(data.tokenizer)))
    assert (vocabulary.ordinary[vocabulary.rank[5:]] == np.arange(5, len(data.tokenizer))).all()
    assert all(b - a == 1 for a, b in pairwise(vocabulary.ordinary.tolist()))


def test_streams_of_different_purpose_epoch_or_index_differ() -> None:
    examples = [(0, 0), (-1, 0), (0, 1), (1, 0), (-2, 0)]
    keys = [(0, Purpose.EXAMPLE, *example) for example in examples]
    keys += [(1, Purpose.EXAMPLE, 0, 0), (0, Purpose.ORDER, 0, 0), (2**64 - 1, Purpose.EXAMPLE, 0, 0)]
    assert len({random_generator(*key).integers(2**63) for key in keys}) == len(keys)
    assert random_generator(*keys[1]).random() == random_generator(*keys[1]).random()
