"""Depth by what is known of puzzles against plain loops, and how it is told."""

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
from tests.unit.report.synthetic_difficulty import summarised

GENERATOR = np.random.default_rng(0)
GIVENS = GENERATOR.integers(17, 27, 400)
RATING = GENERATOR.geometric(0.02, 400) - 1
DEPTH = (3 - GIVENS // 10 + GENERATOR.integers(1, 4, 400)).astype(np.int64)
RIGHT = GENERATOR.random(400) < 0.8


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    return summarised()


@pytest.fixture(scope="module")
def told() -> dict[str, dict[str, Any]]:
    return describe_attributes({"givens": GIVENS, "rating": RATING, "cells": np.full(400, 81)}, DEPTH, RIGHT)


def test_few_values_have_a_row_each(told: dict[str, dict[str, Any]]) -> None:
    rows = told["givens"]["rows"]
    assert [row["value"] for row in rows] == sorted(set(GIVENS.tolist()))
    for row in rows:
        here = [number for number in range(400) if GIVENS[number] == row["from"] == row["to"]]
        assert row["n"] == row["accuracy_n"] == len(here)
        assert row["mean"] == pytest.approx(sum(DEPTH[number] for number in here) / len(here))
        assert row["accuracy"] == pytest.approx(sum(RIGHT[number] for number in here) / len(here))


def test_many_values_are_told_in_ranges_that_share_none(told: dict[str, dict[str, Any]]) -> None:
    rows = told["rating"]["rows"]
    assert len(set(RATING.tolist())) > len(rows) == PARTS
    assert all(before["to"] < after["from"] for before, after in pairwise(rows))
    assert sum(row["n"] for row in rows) == 400
    for row in rows:
        here = [number for number in range(400) if row["from"] <= RATING[number] <= row["to"]]
        assert row["n"] == len(here) > 10
        assert row["value"] == pytest.approx(np.mean(RATING[here]))
        assert row["mean"] == pytest.approx(np.mean(DEPTH[here]))


def test_rare_values_join_their_neighbours() -> None:
    """Rounds 2, 3 (n 1, 9 and 30 of 4), a long tail: at least ten a row, and none is lost."""
    rounds = np.repeat([2, 3, 4, 5, 6, 9, 13], [1, 9, 30, 12, 9, 2, 1])
    found = describe_attributes({"rounds": rounds}, np.ones(64, dtype=np.int64), np.ones(64, dtype=bool))
    assert [(row["from"], row["to"], row["n"]) for row in found["rounds"]["rows"]] == [
        (2, 3, 10), (4, 4, 30), (5, 5, 12), (6, 13, 12),
    ]  # fmt: skip


def test_correlations_are_scipys(told: dict[str, dict[str, Any]]) -> None:
    for name, values in (("givens", GIVENS), ("rating", RATING)):
        found = told[name]["spearman"]
        assert found["value"] == pytest.approx(spearmanr(values, DEPTH).statistic)
        assert found["n"] == 400


def test_what_is_the_same_for_all_is_left_out(told: dict[str, dict[str, Any]]) -> None:
    assert told.keys() == {"givens", "rating"}


def test_the_report_tells_attributes_instead_of_difficulty(
    told: dict[str, dict[str, Any]], summary: dict[str, Any], tmp_path: Path
) -> None:
    further = {"hard": {**summary, "attributes": {"givens": told["givens"]}}, "plain": {}}
    write_halting_files(tmp_path, {**summary, "attributes": told}, [], step=3, name="test", further_sets=further)
    halting = read_run(tmp_path).halting
    assert halting["further_sets"].keys() == {"hard"}
    assert {name: list(sets) for name, sets in get_attribute_statistics(halting).items()} == {
        "givens": ["test", "hard"], "rating": ["test"],
    }  # fmt: skip
    page = write_report(read_report(tmp_path)).read_text(encoding="utf-8")
    for text in ("Mean depth by givens", "Accuracy by rating", "Spearman (depth, attribute)", "givens, hard"):
        assert text in page
    assert "Mean depth by difficulty" not in page


def test_a_row_is_a_value_or_a_range(told: dict[str, dict[str, Any]]) -> None:
    first, last = told["rating"]["rows"][0], told["rating"]["rows"][-1]
    table = build_difficulty_table("rating", "test", told["rating"])
    assert f"{last['from']} to {last['to']}" in to_text(table)
    assert to_csv(table).splitlines()[1].startswith(f"{first['from']},{first['to']},{first['n']},")
    assert "17 " in to_text(build_difficulty_table("givens", "test", told["givens"])).splitlines()[2]
