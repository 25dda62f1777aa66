from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr, zscore

from adadepth.metrics.adaptation import rank_correlation, spearman, spearman_from_table


def table_of(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    table = np.zeros((rows.max() + 1, columns.max() + 1), dtype=np.int64)
    np.add.at(table, (rows, columns), 1)
    return table


@pytest.mark.parametrize("seed", range(5))
def test_exact_with_ties(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows = generator.integers(0, 7, 400)
    columns = (rows * generator.normal(0.3, 1, 400)).round().astype(int) + 20
    found = spearman_from_table(table_of(rows, columns), resamples=2)
    assert found.value == pytest.approx(spearmanr(rows, columns).statistic, abs=1e-12)
    assert found.n == 400


@pytest.mark.parametrize("seed", range(5))
def test_values_need_no_table(seed: int) -> None:
    generator = np.random.default_rng(seed)
    steps = generator.integers(1, 7, 300)
    losses = steps * generator.normal(0.3, 1, 300)
    found = spearman(steps, losses, resamples=50)
    assert found.value == pytest.approx(spearmanr(steps, losses).statistic, abs=1e-12)
    assert (found.n, found.low < found.value < found.high) == (300, True)
    assert rank_correlation(steps, losses) == found.value
    assert spearman(steps, np.round(losses).astype(int), resamples=50) == spearman_from_table(
        table_of(steps, np.round(losses).astype(int) + 100), resamples=50
    )


def test_a_constant_has_no_correlation() -> None:
    assert spearman(np.ones(9), np.arange(9)) is None
    assert rank_correlation(np.ones(9), np.arange(9)) is None
    assert spearman(np.arange(2), np.arange(2)) is None


def test_interval_is_that_of_resampling_the_observations() -> None:
    generator = np.random.default_rng(0)
    rows = generator.integers(1, 7, 500)
    columns = rows + generator.integers(0, 8, 500)
    found = spearman_from_table(table_of(rows, columns), resamples=2000)
    draws = generator.integers(0, 500, (2000, 500))
    first, second = (zscore(rankdata(values[draws], axis=1), axis=1) for values in (rows, columns))
    expected = np.percentile((first * second).mean(axis=1), [2.5, 97.5])
    assert (found.low, found.high) == pytest.approx(tuple(expected), abs=0.01)


def test_interval_is_reproducible() -> None:
    table = np.random.default_rng(1).integers(0, 5, (4, 9))
    assert spearman_from_table(table) == spearman_from_table(table)
    assert spearman_from_table(table) != spearman_from_table(table, seed=1)


@pytest.mark.parametrize("table", [np.zeros((3, 3)), np.diag([1, 1]), [[3, 4, 5]], [[3], [4], [5]]])
def test_none_where_it_does_not_exist(table: object) -> None:
    assert spearman_from_table(np.asarray(table, dtype=np.int64)) is None
