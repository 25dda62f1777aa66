"""The section on length and loops: its heat map, its curves and its table, and the table of the last screen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adadepth.report.console_summary import format_screen, format_table_lines
from adadepth.report.figure import Heat, Lines
from adadepth.report.lengths import build_lengths_section, list_length_rows
from adadepth.report.run_files import EXITS, RunFiles, read_run
from adadepth.report.verdict import verdict
from tests.unit.report.synthetic import make_run

INSIDE = [
    {"loops": 1, "n": 20, "accuracy": [1.0, 0.9, 0.5], "rule_accuracy": 1.0, "rule_loops": 1.2},
    {"loops": 2, "n": 30, "accuracy": [0.1, 0.75, 0.8], "rule_accuracy": 0.7, "rule_loops": 1.9},
]
BEYOND = [{"loops": 4, "n": 25, "accuracy": [0.0, 0.2, 0.3], "rule_accuracy": 0.28, "rule_loops": 2.6}]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    run = read_run(make_run(tmp_path_factory.mktemp("run"), max_updates=3, evaluations=2))
    sets = {"inside": {"n": 90, "exit": {}, "lengths": INSIDE}, "beyond_4": {"n": 25, "exit": {}, "lengths": BEYOND}}
    return replace(run, others={**run.others, EXITS: {"step": 1, "sets": sets}})


def test_oracle_and_best_loops_follow_from_the_heat_map(files: RunFiles) -> None:
    rows = list_length_rows(files)
    assert [row.get("given_accuracy") for row in rows] == [1.0, 0.75, None]  # four loops did not run
    assert [(row["best_accuracy"], row["best_loops"]) for row in rows] == [(1.0, 1), (0.8, 3), (0.3, 3)]


def test_the_section_draws_every_pair_and_both_readings(files: RunFiles) -> None:
    section = build_lengths_section(files)
    assert section is not None
    heat, accuracy, loops = (panel.mark for panel in section.figures[0].panels)
    assert isinstance(heat, Heat)
    assert isinstance(accuracy, Lines)
    assert isinstance(loops, Lines)
    assert heat.columns == [row["accuracy"] for row in INSIDE + BEYOND]
    assert heat.bottom == 1
    assert [points for _, points in accuracy.curves] == [[(0, 1.0), (1, 0.75)], [(0, 1.0), (1, 0.7), (2, 0.28)]]
    assert [points for _, points in loops.curves] == [[(0, 1.0), (1, 2.0), (2, 4.0)], [(0, 1.2), (1, 1.9), (2, 2.6)]]
    for text in ("T(n)", "100.0%", "75.0%", "28.0%"):
        assert text in section.html


def test_runs_without_lengths_have_no_section(files: RunFiles) -> None:
    contents: dict[str, Any] = {EXITS: {"step": 1, "sets": {"inside": {"n": 90}}}}
    assert build_lengths_section(replace(files, others=contents)) is None


def test_the_last_screen_has_the_longest_texts(files: RunFiles) -> None:
    head, *lines = format_table_lines(files, 2)
    assert head.split()[:3] == ["T(n)", "texts", "right"]
    assert [line.split()[0] for line in lines] == ["2", "4"]
    assert "28.0%" in lines[1]
    screen = format_screen(files, verdict(files), report=Path("report.html")).splitlines()
    assert screen[0] == format_table_lines(files, 10)[0]  # before the verdict
    assert len(screen) <= 24
    assert max(map(len, screen)) <= 80
