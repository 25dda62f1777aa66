"""Depth by linguistic class against hand-made treebanks, and its intervals against closed forms and the bootstrap."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from adadepth.contrib.treebank.measures import WordPieces, classify_words, concatenate_pieces, describe_words
from adadepth.contrib.treebank.report import (
    build_full_table,
    build_kind_figure,
    build_kind_table,
    flatten_words,
    format_words,
)
from adadepth.contrib.treebank.scorers import WordRecorder
from adadepth.halting.trace import DepthTrace
from adadepth.metrics.significance import FEWEST_CLUSTERS, sum_clusters
from adadepth.report.table import to_records


def compute_interval(values: Any, clusters: Any) -> tuple[float, float]:
    low, high = sum_clusters(np.asarray(values, dtype=np.float64), np.asarray(clusters)).estimate_mean().interval
    assert low is not None
    assert high is not None
    return low, high


# ---- intervals


def test_the_interval_of_single_values_is_that_of_students_t() -> None:
    values = np.random.default_rng(0).normal(4, 1, 40)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert compute_interval(values, np.arange(40)) == pytest.approx((expected.low, expected.high))


def test_the_interval_of_equal_clusters_is_that_of_their_means() -> None:
    values = np.random.default_rng(1).normal(4, 1, (15, 6)) + np.random.default_rng(2).normal(0, 1, (15, 1))
    expected = stats.ttest_1samp(values.mean(axis=1), 0).confidence_interval(0.95)
    assert compute_interval(values.ravel(), np.repeat(np.arange(15), 6)) == pytest.approx((expected.low, expected.high))


def test_repeated_words_of_a_cluster_count_once() -> None:
    values, twice = np.random.default_rng(3).normal(4, 1, 30), np.repeat(np.arange(30), 2)
    assert compute_interval(values[twice], twice) == pytest.approx(compute_interval(values, np.arange(30)))


def test_the_interval_of_unequal_clusters_is_near_the_bootstrap() -> None:
    generator = np.random.default_rng(4)
    sizes = generator.integers(1, 30, 300)
    clusters = np.repeat(np.arange(300), sizes)
    values = generator.normal(0, 1, 300)[clusters] + generator.normal(4, 1, len(clusters))
    totals = np.bincount(clusters, values)
    resamples = generator.integers(0, 300, (4000, 300))
    means = totals[resamples].sum(axis=1) / sizes[resamples].sum(axis=1)
    low, high = compute_interval(values, clusters)
    assert (high - low) / 2 == pytest.approx(1.96 * means.std(), rel=0.05)
    assert (low, high) == pytest.approx(tuple(np.quantile(means, (0.025, 0.975))), abs=0.02)
    naive = 1.96 * values.std() / math.sqrt(len(values))
    assert (high - low) / 2 > 2 * naive  # what ignoring sentences would have said


def test_few_sentences_have_no_interval() -> None:
    values = np.arange(FEWEST_CLUSTERS - 1, dtype=np.float64)
    mean = sum_clusters(values, np.arange(FEWEST_CLUSTERS - 1)).estimate_mean()
    assert (mean.mean, *mean.interval) == (values.mean(), None, None)
    assert compute_interval(np.ones(FEWEST_CLUSTERS), np.arange(FEWEST_CLUSTERS)) == (1.0, 1.0)


def test_a_cluster_with_most_of_the_values_leaves_no_interval() -> None:
    clusters = np.repeat(np.arange(20), [100, *[1] * 19])
    assert sum_clusters(np.random.default_rng(5).normal(0, 1, len(clusters)), clusters).estimate_mean().error is None


@pytest.mark.parametrize(("clusters", "spread"), [(10, 0.0), (20, 1.0), (40, 1.0), (40, 1.5)])
def test_intervals_of_unequal_clusters_cover_95_percent(clusters: int, spread: float) -> None:
    generator, draws, missed = np.random.default_rng(6), 1000, 0
    for _ in range(draws):
        sizes = np.exp(generator.normal(1.5, spread, clusters)).round().clip(1).astype(int)
        member = np.repeat(np.arange(clusters), sizes)
        values = generator.normal(0, 1, clusters)[member] + generator.normal(0, 1, len(member))
        low, high = sum_clusters(values, member).estimate_mean().interval
        missed += low is not None and high is not None and not low <= 0 <= high
    assert missed / draws <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / draws)


# ---- classes


def test_words_have_their_classes() -> None:
    classes = classify_words(
        ["NOUN"] * 6, ["nsubj:pass", "obj", "root", "a:b:c", "x", "y"], [1, 7, 0, 6, 8, 30],
        [10_000.0, 9_999.9, 100.0, 99.0, 10.0, 9.9],
    )  # fmt: skip
    assert classes["deprel"] == ["nsubj", "obj", "root", "a", "x", "y"]
    assert classes["deprel_full"] == ["nsubj:pass", "obj", "root", "a:b:c", "x", "y"]
    assert classes["tree_depth"] == ["1", "7 or more", "0", "6", "7 or more", "7 or more"]
    assert classes["frequency"] == [
        "10,000 or more", "1,000 to 10,000", "100 to 1,000", "10 to 100", "10 to 100", "below 10",
    ]  # fmt: skip


# ---- words of pieces

# Words 0 to 4 in two sentences, 3 in as many pieces; their pieces got these depths, in this order.
WORD = np.array([3, 3, 3, 4, 0, 1, 2])
FIRST = np.array([True, False, False, True, True, True, True])
UPDATES = np.array([2.0, 3.0, 7.0, 6.0, 1.0, 5.0, 8.0])
COSINES = np.array([[0.5, math.nan], [0.1, 0.3], [-0.5, math.nan], [0.2, 0.4], [0.3, math.nan]], dtype=np.float32)
SENTENCES = np.array([0, 0, 0, 1, 1])
CLASSES = {
    "upos": ["NOUN", "VERB", "NOUN", "NOUN", "VERB"],
    "deprel": ["nsubj", "root", "obj", "nsubj", "root"],
    "deprel_full": ["nsubj:pass", "root", "obj", "nsubj", "root"],
    "tree_depth": ["1", "0", "1", "1", "0"],
    "frequency": ["below 10", "10,000 or more", "below 10", "below 10", "10 to 100"],
}  # fmt: skip


def describe(pieces: WordPieces | None = None) -> dict[str, Any]:
    return describe_words(pieces or WordPieces(WORD, FIRST, UPDATES, COSINES), CLASSES, SENTENCES, max_updates=8)


def test_a_word_has_the_depth_of_its_first_piece_and_the_mean_of_all() -> None:
    noun, verb = describe()["kinds"]["upos"][1], describe()["kinds"]["upos"][0]
    assert (verb["class"], verb["n"], verb["mean"]) == ("VERB", 2, 5.5)  # deepest first
    assert (noun["n"], noun["sentences"], noun["mean"]) == (3, 2, pytest.approx((1 + 8 + 2) / 3))
    assert noun["over_pieces"] == pytest.approx((1 + 8 + (2 + 3 + 7) / 3) / 3)
    assert (noun["pieces"], noun["split"]) == (pytest.approx(5 / 3), pytest.approx(1 / 3))
    assert (noun["p10"], noun["median"], noun["p90"]) == (1, 2, 8)
    assert noun["at_cap"] == pytest.approx(1 / 3)
    assert noun["std"] == pytest.approx(np.std([1, 2, 8]))


def test_cosines_are_those_of_first_pieces_that_ran_the_iteration() -> None:
    verb, noun = describe()["kinds"]["upos"]
    assert (noun["cosine_n"], verb["cosine_n"]) == ([3, 0], [2, 2])
    assert noun["cosine"] == [pytest.approx((-0.5 + 0.3 + 0.5) / 3), None]
    assert verb["cosine"] == pytest.approx([(0.2 + 0.1) / 2, (0.4 + 0.3) / 2])


def test_classes_are_ordered() -> None:
    kinds = describe()["kinds"]
    assert [row["class"] for row in kinds["tree_depth"]] == ["0", "1"]
    assert [row["class"] for row in kinds["frequency"]] == ["10,000 or more", "10 to 100", "below 10"]
    assert [row["class"] for row in kinds["deprel"]] == ["obj", "root", "nsubj"]
    assert describe()["all"]["n"] == 5


def test_a_word_without_its_first_piece_is_not_counted() -> None:
    pieces = np.array([False, True, True, True, True, True, True])  # the first piece of word 3 was not masked
    statistics = describe(WordPieces(WORD[pieces], FIRST[pieces], UPDATES[pieces], None))
    assert statistics["all"]["n"] == 4
    assert "cosine" not in statistics["all"]


def test_batches_add_up_in_any_order() -> None:
    first, second = (
        WordPieces(WORD[:4], FIRST[:4], UPDATES[:4], COSINES[:2]),
        WordPieces(WORD[4:], FIRST[4:], UPDATES[4:], COSINES[2:]),
    )
    assert describe(concatenate_pieces([second, first])) == describe() == describe(concatenate_pieces([first, second]))


def test_an_empty_set_has_no_row() -> None:
    nothing = WordPieces(WORD[:0], FIRST[:0], UPDATES[:0], None)
    statistics = describe(nothing)
    assert "all" not in statistics
    assert set(map(len, statistics["kinds"].values())) == {0}


class Owners:
    """Dataset of the sequences [CLS] a b b [SEP] and [CLS] c [SEP], of words 0, 1 and 2."""

    def owners(self, index: int) -> np.ndarray:
        return np.array([[-1, 0, 1, 1, -1], [-1, 2, -1]][index])


def record_pieces(**extra: torch.Tensor) -> WordPieces:
    recorder = WordRecorder(Owners())  # type: ignore[arg-type]
    ids = torch.arange(10).view(2, 5)
    batch = {"input_ids": ids, "index": torch.tensor([1, 0]), **extra}
    updates = torch.tensor([[6.0, 1, 5, 0, 0], [6, 2, 3, 4, 5]])
    valid = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    still, turned = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    states = [still.expand(2, 5, 2), turned.expand(2, 5, 2), turned.expand(2, 5, 2)]
    recorder.add(batch, DepthTrace("token", updates, valid, max_updates=6), states)
    return recorder.pieces()


def test_the_recorder_finds_the_pieces_of_a_batch() -> None:
    pieces = record_pieces()
    assert pieces.word.tolist() == [2, 0, 1, 1]
    assert pieces.first.tolist() == [True, True, True, False]
    assert pieces.updates.tolist() == [1, 2, 3, 4]
    assert pieces.cosines is not None
    nan = math.nan
    np.testing.assert_allclose(pieces.cosines, [[0, nan] + [nan] * 4, [0, 1] + [nan] * 4, [0, 1] + [nan] * 4])


def test_the_recorder_keeps_only_mask_tokens_of_masked_sentences() -> None:
    kinds = torch.tensor([[0, 2, 0, 0, 0], [0, 1, 3, 1, 0]])  # random; [MASK], kept, [MASK]
    pieces = record_pieces(mask_kind=kinds)
    assert (pieces.word.tolist(), pieces.first.tolist(), pieces.updates.tolist()) == ([0, 1], [True, False], [2, 4])
    assert pieces.cosines is not None
    assert len(pieces.cosines) == 1


# ---- tables, files and texts


def build_content(masked: bool = True) -> dict[str, Any]:
    readings = {
        "plain": describe(),
        **({"masked": describe(WordPieces(WORD[4:], FIRST[4:], UPDATES[4:], None))} if masked else {}),
    }
    return {
        "max_depth": 8, "masks": masked, "counted_words": 5, "counted_in": ["dev"], "sentences": {"dev": 2},
        "words": {"dev": 6}, "sets": {"dev": readings},
    }  # fmt: skip


def test_a_table_has_masked_words_beside_their_class() -> None:
    table = build_kind_table("dev", "upos", build_content()["sets"]["dev"])
    rows = {row["class"]: row for row in table.rows}
    assert list(rows) == ["all", "VERB", "NOUN"]
    assert (rows["NOUN"]["n"], rows["NOUN"]["masked_n"], rows["NOUN"]["masked_mean"]) == (3, 2, 4.5)
    assert not any(
        column.key.startswith("masked")
        for column in build_kind_table("dev", "upos", build_content(False)["sets"]["dev"]).columns
    )


def test_the_file_has_every_row() -> None:
    keys, rows = to_records(build_full_table(build_content()))
    cells = [dict(zip(keys, row, strict=True)) for row in rows]
    kinds = [(cell["reading"], cell["kind"], cell["class"]) for cell in cells]
    assert ("plain", "word", "all") in kinds
    assert ("plain", "deprel_full", "nsubj:pass") in kinds
    assert ("masked", "upos", "NOUN") in kinds
    assert len(kinds) == len(set(kinds))
    assert [cell["cosine_2_n"] for cell in cells if cell["kind"] == "word"] == [2, None]


def test_trackers_get_few_metrics_with_safe_names() -> None:
    names = flatten_words(build_content())
    assert names["halting/dev/upos/NOUN/mean"] == pytest.approx(11 / 3)
    assert names["halting/dev_masked/word/all/mean"] == pytest.approx(14 / 3)
    assert all(name.replace("/", "").replace("_", "").isalnum() for name in names)
    assert len(names) == 6


def test_the_text_explains_the_count_of_words() -> None:
    text = format_words(build_content())
    assert text.isascii()
    assert "depth by word, dev: 2 sentences, 5 of their 6 words" in text
    assert "first piece" in text


def test_the_figure_leaves_out_rare_classes() -> None:
    row = {"class": "NOUN", "n": 20, "low": 1.0, "mean": 2.0, "high": 3.0}
    rare, few = {**row, "class": "X", "n": 19}, {**row, "class": "SYM", "low": None}
    figure = build_kind_figure(
        "dev", "upos", {"plain": {"kinds": {"upos": [row, rare, few]}}, "masked": {"kinds": {"upos": [rare]}}}
    )
    (panel,) = figure.panels
    assert panel.y is not None
    assert panel.y.names == ["NOUN (20)"]
    assert panel.mark.rows == [(1.0, 2.0, 3.0)]
