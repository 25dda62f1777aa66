"""Positions of nodes of pointer chains in drawings, and grids in a terminal."""

from __future__ import annotations

from pathlib import Path

from adadepth.metrics.grid_examples import draw_grid_text, format_grid_caption, locate_chain_nodes
from adadepth.report.example_grids import draw_depth_cells, draw_distance_cells
from adadepth.report.pages import write_report
from adadepth.report.run_files import write_grids
from tests.pages_support import read_report
from tests.unit.report.synthetic import make_run


def test_a_chain_lies_in_a_row_and_a_joining_chain_in_another():
    symbols = [">2", "red", ">1", ">2", ">0", "blue"]  # 4 > 0 > 2 > 1 (red), 3 > 2, and 5 alone
    hops = [2, 0, 1, 2, 3, 0]
    rows, columns = locate_chain_nodes(symbols, hops)
    assert columns == hops
    assert rows[4] == rows[0] == rows[2] == rows[1]
    assert rows[3] != rows[0]
    assert rows[5] != rows[1]
    assert len(set(zip(rows, columns, strict=True))) == 6


MAZE = {
    "index": 3, "kind": "cells", "cells": [["S", "."], ["#", "."]], "difficulty": [[None, 1], [None, 2]],
    "updates": [[2, 3], [1, 12]], "label": [[None, "a"], [None, "a"]], "predicted": [[None, "a"], [None, "b"]],
}  # fmt: skip
CHAINS = {
    "index": 0, "kind": "chains", "cells": [["red", ">0"], [None, ">0"]], "difficulty": [[0, 1], [None, 1]],
    "updates": [[1, 2], [None, 2]], "label": [["r", "r"], [None, "r"]], "predicted": [["r", "r"], [None, "r"]],
}  # fmt: skip


def test_a_caption_names_the_counted_nodes() -> None:
    partly = {**CHAINS, "label": [[None, "r"], [None, "b"]], "predicted": [[None, "r"], [None, "r"]]}
    assert format_grid_caption(partly) == "sequence 0: 1 of 2 labelled nodes right, mean depth 1.67 over 3"


def test_a_page_explains_nodes_without_a_label(tmp_path: Path) -> None:
    partly = {**CHAINS, "label": [[None, "r"], [None, "b"]], "predicted": [[None, "r"], [None, "r"]]}
    for name, grid, is_told in (("all", CHAINS, False), ("partly", partly, True)):
        folder = make_run(tmp_path / name)
        write_grids(folder, {"beyond": [grid]}, max_updates=6, step=3)
        page = write_report(read_report(folder)).read_text(encoding="utf-8")
        assert ("Only labelled nodes are scored" in page) is is_told


def test_a_maze_is_printed_in_a_terminal():
    heading, *rows = draw_grid_text(MAZE).splitlines()
    assert heading.split() == ["steps", "from", "the", "start", "updates"]
    assert [row.split() for row in rows] == [["S", "1", "S", "3"], ["##", "2", "##", "12"]]


def test_chains_have_holes():
    first, second = draw_grid_text(CHAINS).splitlines()[1:]
    assert (first.split(), second.split()) == (["0", "1", "1", "2"], ["1", "2"])
    assert second.index("1") == first.index("1")
    assert second.index("2") == first.index("2")
    assert len(draw_distance_cells(CHAINS)) == len(draw_depth_cells(CHAINS, 4)) == 3
    assert format_grid_caption(CHAINS) == "sequence 0: 3 of 3 nodes right, mean depth 1.67"
