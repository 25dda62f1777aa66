"""The table of trained matched baselines: every standard deviation is of one kind, which its heading names."""

from __future__ import annotations

from statistics import stdev
from typing import Any

import pytest

from adadepth.report.matched_networks import build_rival_table, format_rivals


def make_rows(seeds: int) -> list[dict[str, Any]]:
    """Rows of an adaptive network and of one baseline, with a deviation of .8 over units and of others over seeds."""
    return [
        {"kind": kind, "n": 10, "mean": 3.0, "std": 0.8, "max_depth": 3, "adaptive_macs": 50.0, "group": "a",
         "metrics": {"eval/score": 0.5 + 0.1 * seed}}
        for kind in ("adaptive", "fixed depth") for seed in range(seeds)
    ]  # fmt: skip


def test_a_standard_deviation_names_what_it_is_over() -> None:
    table = build_rival_table({"rows": make_rows(3)})
    headings = {column.key: column.heading for column in table.columns}
    assert (headings["std"], headings["eval/score/std"]) == ("sd over units", "sd over seeds")
    for row in table.rows:
        assert row["std"] == pytest.approx(0.8)
        assert row["eval/score/std"] == pytest.approx(stdev([0.5, 0.6, 0.7]))


def test_one_seed_has_no_deviation_over_seeds() -> None:
    text = format_rivals({"rows": make_rows(1)})
    assert "sd over units" in text
    assert "over seeds" not in text


def test_the_depth_of_a_baseline_is_that_in_updates_of_the_adaptive_network() -> None:
    rows = make_rows(2)
    for row in rows[2:]:
        row |= {"mean": 1.0, "max_depth": 1, "depth": 2}  # two layers with one exit
    adaptive, baseline = build_rival_table({"rows": rows}).rows
    assert (adaptive["mean"], baseline["network"], baseline["mean"]) == (3.0, "fixed depth 2", 2)
