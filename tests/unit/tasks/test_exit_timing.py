"""Timing of exit rules, which runs after their results are written and can be left out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from adadepth.halting.exit_rules import parse_rule
from adadepth.report.run_files import EXIT_RULES, read_run
from adadepth.tasks import exit_study
from tests.unit.report.synthetic_exits import make_records, make_study

RULES = [parse_rule("fixed:6"), parse_rule("confidence:0.9")]


@pytest.fixture(scope="module")
def comparison() -> dict[str, Any]:
    return make_study(make_records(), timed=False) | {"advice": {}}


def build_session(directory: Path, time_executions: bool | None) -> Any:
    trainer = SimpleNamespace(
        args=SimpleNamespace(device=torch.device("cpu")),
        unwrapped_model=SimpleNamespace(refills=False),
        is_world_process_zero=lambda: True,
    )
    trainer_config = SimpleNamespace(time_executions=time_executions)
    config = SimpleNamespace(trainer=trainer_config, model=SimpleNamespace(exit_rule=None), adopt_rule=False)
    return SimpleNamespace(trainer=trainer, config=config, run=SimpleNamespace(directory=directory, record={}))


def test_an_interrupted_timing_loses_no_result(
    comparison: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(exit_study, "measure", interrupt)
    session = build_session(tmp_path, None)
    with pytest.raises(KeyboardInterrupt):
        exit_study._report_studies({"test": comparison}, RULES, {"test": [1]}, session, 1, [8])
    (tmp_path / "run.json").write_text("{}")
    rows = read_run(tmp_path).of(EXIT_RULES)["sets"]["test"]["rows"]
    assert [row["quality"] for row in rows] == [row["quality"] for row in comparison["rows"]]
    assert (tmp_path / "pareto.csv").exists()


@pytest.mark.parametrize(("setting", "is_timed"), [(None, True), (True, True), (False, False)])
def test_a_setting_leaves_out_the_timing(
    comparison: dict[str, Any],
    setting: bool | None,
    is_timed: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    times = {"fixed:6": {8: [2.0, 2.0]}, "confidence:0.9": {8: [1.0, 1.0]}}
    monkeypatch.setattr(exit_study, "measure", lambda *arguments: times)
    session = build_session(tmp_path, setting)
    exit_study._report_studies({"test": comparison}, RULES, {"test": [1]}, session, 1, [8])
    (tmp_path / "run.json").write_text("{}")
    rows = {row["rule"]: row for row in read_run(tmp_path).of(EXIT_RULES)["sets"]["test"]["rows"]}
    assert rows["confidence:0.9"].get("time_ratio") == ({"8": 2.0} if is_timed else None)
    printed = capsys.readouterr().out
    assert ("trainer.time_executions=false: the exit rules were not timed" in printed) != is_timed
    assert ("trainer.time_executions=false leaves this out" in printed) == is_timed
