"""Table of trained matched baselines: every standard deviation is of one kind, which its heading names."""

from __future__ import annotations

from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from adadepth.report.matched_networks import build_rival_table, format_rivals, rivals
from adadepth.report.resources import compute_ratio, describe_matches
from adadepth.report.run_files import RIVALS, RunFiles


def make_rows(seeds: int) -> list[dict[str, Any]]:
    """Return rows of an adaptive network and a baseline, with a deviation of .8 over units and others over seeds."""
    return [
        {"kind": kind, "n": 10, "mean": 3.0, "std": 0.8, "max_depth": 3, "adaptive_macs": 50.0, "group": "a",
         "metrics": {"eval/score": 0.5 + 0.1 * seed}}
        for kind in ("adaptive", "fixed depth") for seed in range(seeds)
    ]  # fmt: skip


def test_a_heading_names_the_kind_of_standard_deviation() -> None:
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


def test_the_depth_of_a_baseline_is_in_updates_of_the_adaptive_network() -> None:
    rows = make_rows(2)
    for row in rows[2:]:
        row |= {"mean": 1.0, "max_depth": 1, "depth": 2}  # two layers with one exit
    adaptive, baseline = build_rival_table({"rows": rows}).rows
    assert (adaptive["mean"], baseline["network"], baseline["mean"]) == (3.0, "fixed depth 2", 2)


def read_section(rows: list[dict[str, Any]]) -> str:
    section = rivals(RunFiles(Path("run"), {}, {}, [], {}, [], {}, others={RIVALS: {"rows": rows}}))
    assert section is not None
    return str(section.html)


@pytest.mark.parametrize(("steps", "is_equal"), [((48, 48), True), ((48, 10), False), ((None, 10), True)])
def test_unequal_numbers_of_steps_are_named(steps: tuple[int | None, int], is_equal: bool) -> None:
    rows = [row | {"steps": count} for row, count in zip(make_rows(1), steps, strict=True)]
    text, page = format_rivals({"rows": rows}), read_section(rows)
    sentence = "The networks were trained for different numbers of steps: adaptive: 48; fixed depth 3: 10."
    assert (sentence in text, sentence in page) == (not is_equal, not is_equal)
    assert ("trained the same way" in page) == is_equal
    assert str(steps[1]) in next(line for line in text.splitlines() if "fixed depth 3" in line)


def test_sizes_are_shown_with_what_is_matched() -> None:
    """Compare a looped network of 3 loops with a control of one loop: 1 % more parameters, a third of the cache."""
    adaptive, baseline = make_rows(1)
    adaptive |= {"parameters": 1000, "cache_bytes_per_token": 96.0}
    baseline |= {"parameters": 1010, "cache_bytes_per_token": 32.0, "adaptive_macs": 30.0}
    table = build_rival_table({"rows": [adaptive, baseline]})
    first, second = table.rows
    assert (second["parameters"], second["cache_bytes_per_token"], second["compute"]) == (1010, 32.0, 0.6)
    assert first.get("matches") is None
    assert second["matches"] == "matched: parameters; not matched: compute, cache bytes per token"
    assert "cache bytes per token" in format_rivals({"rows": [adaptive, baseline]})
    assert "parameters" not in format_rivals({"rows": make_rows(1)}), "runs of earlier versions have no sizes"


def test_the_screen_has_at_most_100_columns() -> None:
    rows = make_rows(2)
    for row in rows:
        row["metrics"] |= {"eval/task_loss": 0.7, "eval/beyond/task_loss": 1.9, "eval/beyond/score": 0.4}
        row |= {"steps": 20_000, "parameters": 1e8, "cache_bytes_per_token": 96.0}
    rows[-1]["steps"] = 10_000
    rows[-1]["parameters"] = 2e8
    lines = format_rivals({"rows": rows}).splitlines()
    assert max(map(len, lines[:-1])) <= 100
    assert lines[2].split("  ")[-2:] == ["score", "sd over seeds"]
    assert "fixed depth 3, matched: compute, cache bytes per token; not matched: parameters" in lines
    assert "beyond/score" in [column.heading for column in build_rival_table({"rows": rows}).columns]


def test_a_comparison_says_which_resources_are_matched() -> None:
    networks = [{"compute": 100.0, "parameters": 7.0, "cache_bytes_per_token": None}] * 2
    assert describe_matches(networks) == "matched: compute, parameters"
    networks = [*networks, {"compute": 102.0, "parameters": 7.0, "cache_bytes_per_token": 8.0}]
    assert describe_matches(networks) == "matched: parameters; not matched: compute; not known: cache bytes per token"
    assert describe_matches([{}, {}]) == ""
    assert compute_ratio({"parameters": 3.0}, {"parameters": 4.0}, "parameters") == 0.75
    assert compute_ratio({"parameters": 3.0}, {}, "parameters") is None
