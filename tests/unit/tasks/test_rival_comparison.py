"""Rows of matched baselines, whose metrics mean the same in every network."""

from __future__ import annotations

from pathlib import Path

import pytest

from adadepth.report.run_files import RunFiles
from adadepth.tasks.rival_comparison import describe_network


@pytest.mark.parametrize(("decided", "is_listed"), [(0.78, False), (0.75, True), (None, True)])
def test_a_task_loss_of_all_exits_is_left_out(decided: float | None, is_listed: bool) -> None:
    """Leave out the weighted losses of all exits: the loss at the decided depths is another quantity."""
    everyone = {"n": 10, "mean": 1.5, "std": 0.5} | ({} if decided is None else {"loss": decided})
    metrics = {"eval/task_loss": 0.75, "eval/beyond/task_loss": 1.4, "eval/score": 0.7}
    halting = {"classes": {"all": everyone}, "cost": {}, "max_depth": 4}
    row = describe_network(RunFiles(Path("run"), {"final_metrics": metrics}, {}, [], halting, [], {}), "adaptive")
    assert row["metrics"] == (metrics if is_listed else {"eval/score": 0.7})
