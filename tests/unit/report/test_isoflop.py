"""Quality against size at equal training compute: budgets, minima and points of a grid of recorded runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from adadepth.report.comparison import build_comparison_sections
from adadepth.report.figure import Scatter
from adadepth.report.isoflop import SIZE, build_isoflop_section, compute_training_operations
from adadepth.report.run_files import read_run
from adadepth.report.run_groups import Comparison, compare
from tests.unit.report.recorded import record

SIZES = (100, 200, 400, 800, 1600)
STEPS = (160, 320, 640, 1280)  # of the smallest size
LENGTH, ROWS, HEAD = 8, 2, 3.0


def record_run(folder: Path, size: int, steps: int, loss: float) -> None:
    """Record a run of 4 tokens with `size` multiply-accumulates of a token in its layers, and HEAD of a prediction."""
    settings = {"max_steps": steps, "per_device_train_batch_size": ROWS, "metric_for_best_model": "eval_loss"}
    run = {"steps": {"done": steps, "planned": steps}, SIZE: size}
    record(
        folder, score=1.0 - loss, run=run, model={"hidden_size": size}, trainer=settings,
        dataset={"sequence_length": LENGTH},
    )  # fmt: skip
    halting = json.loads((folder / "halting.json").read_text())
    halting["cost"]["full_macs"], halting["prediction_macs"] = 4.0 * size, HEAD
    (folder / "halting.json").write_text(json.dumps(halting))


def record_grid(folder: Path, sizes: tuple[int, ...], best: Callable[[int], int]) -> Path:
    """Record a grid of equal compute up to the head; the loss is least at the size number `best(budget)`."""
    for number, most in enumerate(STEPS):
        for column, size in enumerate(sizes):
            loss = 0.9 - 0.1 * number + 0.02 * abs(column - best(number))
            record_run(folder / f"{number}-{column}", size, most * 100 // size, loss)
    return folder


def read_grid(folder: Path) -> Comparison:
    return compare([read_run(path) for path in sorted(folder.iterdir())])


def test_operations_are_six_for_a_multiply_accumulate_of_a_token(tmp_path: Path) -> None:
    record_run(tmp_path / "run", 100, 5, 0.5)
    assert compute_training_operations(read_run(tmp_path / "run")) == 6 * (100 + HEAD) * 5 * ROWS * LENGTH


def test_minima_are_marked_only_inside_of_the_sizes(tmp_path: Path) -> None:
    """Let the best size grow with the budget: at the smallest size, at two inner ones, and at the largest."""
    comparison = read_grid(record_grid(tmp_path, SIZES, lambda number: (0, 1, 3, 4)[number]))
    section = build_isoflop_section(comparison, tmp_path)
    assert section is not None
    (table,), (figure,) = section.tables, section.figures
    assert len(table.rows) == 20
    # 6 (size + 3) steps 2 8 with steps = 16,000 / size for the first budget, and a mean over sizes
    assert {row["budget"] for row in table.rows} == {"1.55M", "3.11M", "6.22M", "12.4M"}
    best = {row[SIZE]: row["best"] for row in table.rows if row["best"]}
    edge = "at the edge: no minimum"
    assert best == {100: edge, 200: "minimum", 800: "minimum", 1600: edge}
    (panel,) = figure.panels
    assert isinstance(panel.mark, Scatter)
    dots = [dot for _, group in panel.mark.groups for dot in group]
    assert [(dot.x, dot.y) for dot in dots] == [
        (pytest.approx(math.log10(row[SIZE])), pytest.approx(row["quality"])) for row in table.rows
    ]
    assert [round(10**dot.x) for dot in dots if dot.marked] == [200, 800]
    assert panel.x is not None
    assert panel.x.names == ["100", "200", "400", "800", "1.6k"]
    assert any(section.anchor == "isoflop" for section in build_comparison_sections(comparison, tmp_path))


@pytest.mark.parametrize("sizes", [SIZES[:4], (100, 101, 100, 101, 100)])
def test_a_grid_of_fewer_sizes_has_no_section(sizes: tuple[int, ...], tmp_path: Path) -> None:
    comparison = read_grid(record_grid(tmp_path, sizes, lambda _: 1))
    assert build_isoflop_section(comparison, tmp_path) is None
