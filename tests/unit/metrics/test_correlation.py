"""Rank correlations of depth, compared with scipy, and their intervals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from adadepth.metrics.adaptation import rank_correlation, spearman, spearman_from_table
from adadepth.metrics.significance import GROUPS, assign_groups

NO_GROUPS = np.zeros((GROUPS, 1, 1), dtype=np.int64)


def make_table(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    table = np.zeros((rows.max() + 1, columns.max() + 1), dtype=np.int64)
    np.add.at(table, (rows, columns), 1)
    return table


@pytest.mark.parametrize("seed", range(5))
def test_a_table_with_ties_has_the_exact_correlation(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows = generator.integers(0, 7, 400)
    columns = (rows * generator.normal(0.3, 1, 400)).round().astype(int) + 20
    correlation = spearman_from_table(make_table(rows, columns), NO_GROUPS)
    assert correlation.value == pytest.approx(spearmanr(rows, columns).statistic, abs=1e-12)
    assert correlation.n == 400


@pytest.mark.parametrize("seed", range(5))
def test_values_have_the_correlation_of_their_table(seed: int) -> None:
    generator = np.random.default_rng(seed)
    steps = generator.integers(1, 7, 300)
    losses = steps * generator.normal(0.3, 1, 300)
    correlation = spearman(steps, losses)
    assert correlation.value == pytest.approx(spearmanr(steps, losses).statistic, abs=1e-12)
    assert (correlation.n, correlation.low < correlation.value < correlation.high) == (300, True)
    assert rank_correlation(steps, losses) == correlation.value
    counted = spearman_from_table(make_table(steps, np.round(losses).astype(int) + 100), NO_GROUPS)
    assert spearman(steps, np.round(losses).astype(int)).value == counted.value


def test_a_constant_has_no_correlation() -> None:
    assert spearman(np.ones(9), np.arange(9)) is None
    assert rank_correlation(np.ones(9), np.arange(9)) is None
    assert spearman(np.arange(2), np.arange(2)) is None


@pytest.mark.parametrize(("size", "sequences"), [(1, 300), (10, 60), (30, 60)])
def test_interval_covers_the_correlation_of_dependent_tokens(size: int, sequences: int) -> None:
    """Use depths and losses that share only an effect of their sequence each, so that the correlation is 0."""
    generator, draws = np.random.default_rng(size), 200
    clusters = np.repeat(np.arange(sequences), size)
    covered = 0
    for _ in range(draws):
        depth, loss = (
            generator.normal(size=sequences)[clusters] + generator.normal(size=len(clusters)) for _ in range(2)
        )
        correlation = spearman(depth.round(), loss, clusters)
        covered += correlation.low <= 0 <= correlation.high
    assert covered / draws >= 0.95 - 3 * (0.05 * 0.95 / draws) ** 0.5


def test_a_table_by_groups_has_the_interval_of_its_observations() -> None:
    generator = np.random.default_rng(0)
    clusters = np.arange(500) // 5
    rows = generator.integers(1, 7, 500)
    columns = rows + generator.integers(0, 8, 500)
    groups = np.stack(
        [
            make_table(np.append(rows[members], 6), np.append(columns[members], 13))
            for members in (assign_groups(clusters) == group for group in range(GROUPS))
        ]
    )
    groups[:, 6, 13] -= 1  # added above, so that all tables have one shape
    correlation = spearman_from_table(groups.sum(axis=0), groups)
    assert correlation == pytest.approx(tuple(spearman(rows, columns, clusters)))


def test_few_sequences_have_no_interval() -> None:
    generator = np.random.default_rng(0)
    correlation = spearman(generator.normal(size=90), generator.normal(size=90), np.arange(90) // 10)
    assert (correlation.low, correlation.high) == (-1.0, 1.0)


@pytest.mark.parametrize("table", [np.zeros((3, 3)), np.diag([1, 1]), [[3, 4, 5]], [[3], [4], [5]]])
def test_an_undefined_correlation_is_none(table: object) -> None:
    assert spearman_from_table(np.asarray(table, dtype=np.int64), NO_GROUPS) is None
