"""Depth by attributes of puzzles, compared with plain loops, and its tables and figures."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from adadepth.metrics.unit_classes import PARTS, describe_attributes
from adadepth.report.depth_by_class import write_halting_files
from adadepth.report.difficulty import build_difficulty_table, get_attribute_statistics
from adadepth.report.pages import write_report
from adadepth.report.run_files import read_run
from adadepth.report.table import to_csv, to_text
from tests.pages_support import read_report
from tests.unit.report.synthetic_difficulty import summarise_batches

GENERATOR = np.random.default_rng(0)
GIVENS = GENERATOR.integers(17, 27, 400)
RATING = GENERATOR.geometric(0.02, 400) - 1
DEPTH = (3 - GIVENS // 10 + GENERATOR.integers(1, 4, 400)).astype(np.int64)
RIGHT = GENERATOR.random(400) < 0.8


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    return summarise_batches()


@pytest.fixture(scope="module")
def attribute_statistics() -> dict[str, dict[str, Any]]:
    return describe_attributes({"givens": GIVENS, "rating": RATING, "cells": np.full(400, 81)}, DEPTH, RIGHT)


def test_every_one_of_few_values_has_a_row(attribute_statistics: dict[str, dict[str, Any]]) -> None:
    rows = attribute_statistics["givens"]["rows"]
    assert [row["value"] for row in rows] == sorted(set(GIVENS.tolist()))
    for row in rows:
        members = [number for number in range(400) if GIVENS[number] == row["from"] == row["to"]]
        assert row["n"] == row["accuracy_n"] == len(members)
        assert row["mean"] == pytest.approx(sum(DEPTH[number] for number in members) / len(members))
        assert row["accuracy"] == pytest.approx(sum(RIGHT[number] for number in members) / len(members))


def test_many_values_are_grouped_in_disjoint_ranges(attribute_statistics: dict[str, dict[str, Any]]) -> None:
    rows = attribute_statistics["rating"]["rows"]
    assert len(set(RATING.tolist())) > len(rows) == PARTS
    assert all(before["to"] < after["from"] for before, after in pairwise(rows))
    assert sum(row["n"] for row in rows) == 400
    for row in rows:
        members = [number for number in range(400) if row["from"] <= RATING[number] <= row["to"]]
        assert row["n"] == len(members) > 10
        assert row["value"] == pytest.approx(np.mean(RATING[members]))
        assert row["mean"] == pytest.approx(np.mean(DEPTH[members]))


def test_rare_values_join_their_neighbours() -> None:
    """Join rounds 2, 3 (n 1, 9 and 30 of 4) and a long tail: at least ten a row, and none is lost."""
    rounds = np.repeat([2, 3, 4, 5, 6, 9, 13], [1, 9, 30, 12, 9, 2, 1])
    attributes = describe_attributes({"rounds": rounds}, np.ones(64, dtype=np.int64), np.ones(64, dtype=bool))
    assert [(row["from"], row["to"], row["n"]) for row in attributes["rounds"]["rows"]] == [
        (2, 3, 10), (4, 4, 30), (5, 5, 12), (6, 13, 12),
    ]  # fmt: skip


def test_correlations_equal_those_of_scipy(attribute_statistics: dict[str, dict[str, Any]]) -> None:
    for name, values in (("givens", GIVENS), ("rating", RATING)):
        correlation = attribute_statistics[name]["spearman"]
        assert correlation["value"] == pytest.approx(spearmanr(values, DEPTH).statistic)
        assert correlation["n"] == 400


def test_constant_attributes_are_left_out(attribute_statistics: dict[str, dict[str, Any]]) -> None:
    assert attribute_statistics.keys() == {"givens", "rating"}


def test_the_report_has_attributes_instead_of_difficulty(
    attribute_statistics: dict[str, dict[str, Any]], summary: dict[str, Any], tmp_path: Path
) -> None:
    further_sets = {"hard": {**summary, "attributes": {"givens": attribute_statistics["givens"]}}, "plain": {}}
    write_halting_files(
        tmp_path, {**summary, "attributes": attribute_statistics}, [], step=3, name="test", further_sets=further_sets
    )
    halting = read_run(tmp_path).halting
    assert halting["further_sets"].keys() == {"hard"}
    assert {name: list(sets) for name, sets in get_attribute_statistics(halting).items()} == {
        "givens": ["test", "hard"], "rating": ["test"],
    }  # fmt: skip
    page = write_report(read_report(tmp_path)).read_text(encoding="utf-8")
    for text in ("Mean depth by givens", "Accuracy by rating", "Spearman (depth, attribute)", "givens, hard"):
        assert text in page
    assert "Mean depth by difficulty" not in page


def test_a_row_is_a_value_or_a_range(attribute_statistics: dict[str, dict[str, Any]]) -> None:
    first, last = attribute_statistics["rating"]["rows"][0], attribute_statistics["rating"]["rows"][-1]
    table = build_difficulty_table("rating", "test", attribute_statistics["rating"])
    assert f"{last['from']} to {last['to']}" in to_text(table)
    assert to_csv(table).splitlines()[1].startswith(f"{first['from']},{first['to']},{first['n']},")
    assert "17 " in to_text(build_difficulty_table("givens", "test", attribute_statistics["givens"])).splitlines()[2]
