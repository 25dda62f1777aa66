"""Cutoffs of the adaptive softmax chosen from frequencies, against all possible ones by counted operations."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from adadepth.errors import ConfigError
from adadepth.models.par_xl.adaptive_softmax import AdaptiveSoftmax
from adadepth.models.par_xl.configuration import optimal_cutoffs, settle_cutoffs
from adadepth.models.par_xl.settings import ParXLSettings
from tests.marks_support import keep_one_quick

HIDDEN = 8


def count_operations(cutoffs, counts):
    """Count with torch the floating-point operations of the loss of a text, with one width for all clusters."""
    targets = torch.arange(len(counts)).repeat_interleave(torch.as_tensor(counts))
    softmax = AdaptiveSoftmax(HIDDEN, len(counts), cutoffs, factor=1)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        softmax(torch.zeros(len(targets), HIDDEN), targets)
    return counter.get_total_flops()


@pytest.mark.parametrize("clusters", keep_one_quick(3, [2, 3, 4]))
@pytest.mark.parametrize("order", ["sorted", "mixed"])
def test_no_other_cutoffs_multiply_less(clusters, order):
    """Run all cutoffs of ten words on a text with their frequencies, with ids in any order."""
    frequencies = np.random.default_rng(clusters).zipf(1.3, 10).clip(0, 60) - 1
    counts = np.sort(frequencies)[::-1].copy() if order == "sorted" else frequencies
    every = {cutoffs: count_operations(cutoffs, counts) for cutoffs in combinations(range(1, 10), clusters - 1)}
    assert len(set(every.values())) > 3
    assert every[tuple(optimal_cutoffs(counts, clusters))] == min(every.values())


@pytest.mark.parametrize(("words", "clusters"), keep_one_quick(3, [(100, 3), (40, 4), (24, 5)]))
@pytest.mark.parametrize("exponent", [0, 3])
def test_cutoffs_of_a_larger_vocabulary_minimise_the_formula(words, clusters, exponent):
    counts = np.random.default_rng(words).integers(1, 9, words) ** exponent

    def compute_cost(cutoffs):
        tails = pairwise([*cutoffs, words])
        return cutoffs[0] * counts.sum() + sum(counts[begin:end].sum() * (end - begin) for begin, end in tails)

    least = min(map(compute_cost, combinations(range(1, words), clusters - 1)))
    assert compute_cost(optimal_cutoffs(counts, clusters)) == least


def test_as_many_clusters_as_words_are_accepted():
    assert optimal_cutoffs(np.array([5, 3, 1]), 3) == [1, 2]


def test_settings_get_the_cutoffs_of_the_vocabulary():
    counts = np.array([50, 30, 9, 5, 3, 1, 1, 1])
    settled = settle_cutoffs(ParXLSettings(cutoff_clusters=3, vocab_size=20), lambda: counts)
    assert settled.cutoffs == optimal_cutoffs(np.array([*counts, *[0] * 12]), 3)
    assert settled.cutoff_clusters is None, "the settings can be read again"
    assert ParXLSettings() == settle_cutoffs(ParXLSettings(), lambda: pytest.fail("nobody asked for the counts"))


def test_more_clusters_than_words_are_refused_in_one_line():
    with pytest.raises(ConfigError, match=r"^model\.cutoff_clusters=4: the vocabulary has only 3 words$"):
        settle_cutoffs(ParXLSettings(cutoff_clusters=4), lambda: np.array([3, 2, 1]))
