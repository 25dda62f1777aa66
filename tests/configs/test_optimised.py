"""Which metrics can be asked for: every one that a run of any family has had."""

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
def test_whatever_a_run_has_had_can_be_asked_for(path: Path) -> None:
    found = json.loads(path.read_text())
    names = {metric_name(name) for name in found.get("final_metrics", found) if not name.startswith("eval/")}
    assert names
    assert not {name for name in names if not may_be_logged(name)}


@pytest.mark.parametrize(("name", "given"), [
    ("halting/a_class_of_the_data/mean", ()), ("cost/speedup_over_dense", ("trainer.halting_statistics=false",)),
    ("train/ponder_loss", ()), ("budget/measured", ("budget=depth", "budget.target=2", "model.act_penalty=0")),
])  # fmt: skip
def test_what_may_come_of_a_run_is_accepted(name: str, given: tuple[str, ...]) -> None:
    assert configured("act_tiny", f"optimise={name}", *given).optimise == name
