"""Target depth of a run, and whether it was reached or the run was cut, in verdict, header and comparison."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from adadepth.metrics.layer_weights import describe_layers
from adadepth.report.console_summary import format_verdict_lines
from adadepth.report.pages import write_comparison, write_report
from adadepth.report.run_files import RunFiles, read_run
from adadepth.report.run_groups import compare
from adadepth.report.verdict import verdict
from tests.pages_support import extract_sections, extract_text, read_report
from tests.unit.report.recorded import record
from tests.unit.report.synthetic import make_run

CUT = {"stopped_because": "time budget spent", "steps": {"done": 34, "planned": 60}}
CUT_REASON = "time budget spent at step 34 of 60"


def make_run_files(
    folder: Path, depth: float, target: float | None = 3.0, unit: str = "updates", **run_fields: Any
) -> RunFiles:
    return read_run(record(folder / "run", depth=depth, budget={"target": target, "unit": unit}, run=run_fields))


def write_page(folder: Path, run: dict[str, Any]) -> str:
    path = make_run(folder, max_updates=6, evaluations=2) / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | run), encoding="utf-8")
    return write_report(read_report(folder)).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("depth", "answer", "first"),
    [
        (2.97, "yes", "Reached: target 3 updates per token, 2.97 in the evaluation"),
        (2.47, "no", "Missed by 0.53, 18 % below: target 3 updates per token, 2.47 in the evaluation"),
        (3.6, "no", "Missed by 0.6, 20 % above: target 3 updates per token, 3.6 in the evaluation"),
    ],
)
def test_the_first_line_says_whether_the_target_was_reached(
    tmp_path: Path, depth: float, answer: str, first: str
) -> None:
    findings = verdict(make_run_files(tmp_path, depth))
    assert next(iter(findings)) == "target"
    assert findings["target"].answer == answer
    assert findings["target"].sentences[0].startswith(first)
    assert len(findings["target"].sentences) == (1 if answer == "yes" else 2), "advice where it was missed"
    assert format_verdict_lines(findings)[0] == (
        f"Was the target depth reached? {answer.capitalize()}: {depth:.3g}, target 3 updates per token."
    )


def test_advice_names_the_cause_of_a_missed_target(tmp_path: Path) -> None:
    early = {"final_metrics": {"eval/score": 0.5, "budget/target": 5.2}}
    (_, advice) = verdict(make_run_files(tmp_path / "early", 4.4, **early))["target"].sentences
    assert "training ended while the target was still 5.2" in advice
    assert "'budget.targets=[3]'" in advice
    (_, advice) = verdict(make_run_files(tmp_path / "cut", 4.4, **CUT))["target"].sentences
    assert f"ended early ({CUT_REASON})" in advice


def test_a_depth_before_halting_began_is_not_reached(tmp_path: Path) -> None:
    files = make_run_files(tmp_path, 3.0, **CUT)
    files = dataclasses.replace(files, halting={**files.halting, "adaptation": {"is_set": True}})
    finding = verdict(files)["target"]
    assert finding.answer == "unknown"
    assert "Training ended before halting began: all tokens had depth 3" in finding.sentences[0]
    assert f"ended early ({CUT_REASON})" in finding.sentences[1]


def test_an_interrupted_run_is_advised_to_resume_without_an_error(tmp_path: Path) -> None:
    files = make_run_files(tmp_path, 3.0, status="interrupted", error="SystemExit: 130")
    files = dataclasses.replace(files, halting={**files.halting, "adaptation": {"is_set": True}})
    answers = verdict(files)
    first, advice = answers["target"].sentences
    assert first.startswith("Training was interrupted; at the last evaluation, step 20, all tokens still had depth 3")
    assert "resume=" in advice
    assert "budget.gain" not in advice
    assert "because the run was interrupted" in answers["worth"].sentences[-1]
    assert "ended with an error" not in write_page(
        tmp_path / "page", {"status": "interrupted", "error": "SystemExit: 130"}
    )


def test_runs_without_a_target_and_evaluations_have_no_answer(tmp_path: Path) -> None:
    assert "target" not in verdict(make_run_files(tmp_path / "none", 3.0, target=None))
    assert "target" not in verdict(make_run_files(tmp_path / "evaluation", 3.0, mode="evaluate"))


def test_fewer_blocks_than_a_ceiling_are_within_the_budget(tmp_path: Path) -> None:
    halting = {"unit": "task", "layers": describe_layers([0.0, 0.5, 0.5, 0.0, 0.0]), "cost": {}}
    for blocks, answer in ((3, "yes"), (1, "no")):
        files = make_run_files(tmp_path / str(blocks), 1.0, blocks, "deepest_layer")
        assert verdict(dataclasses.replace(files, halting=halting))["target"].answer == answer


def test_the_page_of_a_cut_run_has_a_remark(tmp_path: Path) -> None:
    page = write_page(tmp_path, CUT)
    assert f"run ended early: {CUT_REASON}" in extract_text(page.split("<main")[0]), "header"
    assert CUT_REASON in extract_sections(page)["verdict"]
    assert "run finished" not in extract_text(page)


def test_a_comparison_has_remarks_on_cut_runs(tmp_path: Path) -> None:
    runs = [make_run_files(tmp_path / "cut", 2.0, **CUT), make_run_files(tmp_path / "whole", 3.0, target=4.0)]
    sections = extract_sections(write_comparison(tmp_path, compare(runs)).read_text(encoding="utf-8"))
    assert f"ended early, {CUT_REASON}" in sections["differs"]
    assert "ended early" in sections["runs"]
    assert "Was the target depth reached?" in sections["verdicts"]


def test_a_budget_spent_with_the_last_update_cuts_nothing(tmp_path: Path) -> None:
    assert "ended early" not in extract_text(write_page(tmp_path, {**CUT, "steps": {"done": 60, "planned": 60}}))


def test_a_cut_run_of_an_older_version_has_a_shorter_remark(tmp_path: Path) -> None:
    assert "run ended early: time budget spent" in extract_text(
        write_page(tmp_path, {"stopped_because": "time budget spent"})
    )
