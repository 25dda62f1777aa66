"""Metrics that `optimise` accepts: every one that a run of any family has logged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adadepth.cli.checks.measures import may_be_logged
from adadepth.metrics.metric_names import metric_name
from tests.configs.support import configured

BEFORE = Path(__file__).parents[1] / "before"
LOGGED = [*BEFORE.glob("*/evaluated.json"), *BEFORE.glob("*/finished/**/run.json")]


@pytest.mark.parametrize("path", LOGGED, ids=lambda path: str(path.relative_to(BEFORE)))
def test_every_logged_metric_is_accepted(path: Path) -> None:
    record = json.loads(path.read_text())
    names = {metric_name(name) for name in record.get("final_metrics", record) if not name.startswith("eval/")}
    assert names
    assert not {name for name in names if not may_be_logged(name)}


@pytest.mark.parametrize(("name", "overrides"), [
    ("halting/a_class_of_the_data/mean", ()), ("cost/speedup_over_dense", ("trainer.halting_statistics=false",)),
    ("train/ponder_loss", ()), ("budget/measured", ("budget=depth", "budget.target=2", "model.act_penalty=0")),
])  # fmt: skip
def test_metrics_that_depend_on_settings_are_accepted(name: str, overrides: tuple[str, ...]) -> None:
    assert configured("act_tiny", f"optimise={name}", *overrides).optimise == name
