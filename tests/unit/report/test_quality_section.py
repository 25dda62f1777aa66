"""First section of a page: quality against compute, with a line through points of one model only."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from adadepth.report.figure import Panel, Scatter
from adadepth.report.pages import build_report, write_report
from adadepth.report.quality_against_compute import build_quality_section
from adadepth.report.run_files import BUDGETS, EXIT_RULES, EXITS, MATCHED_BASELINE, RIVALS, RunFiles, read_run
from tests.pages_support import extract_sections, read_report
from tests.unit.report.recorded import record
from tests.unit.report.synthetic import make_run
from tests.unit.report.synthetic_architectures import make_comparison, make_search_run
from tests.unit.report.synthetic_exits import add_exit_files, add_halting_files, make_records, make_summary

BUDGET_ROWS = [
    {"target": None, "fit": None, "mean": 4.0, "adaptive_over_full": 0.5, "metrics": {"mlm_loss": 2.0}},
    {"target": 2, "fit": {"is_reached": True}, "mean": 2.0, "adaptive_over_full": 0.25, "metrics": {"mlm_loss": 3.0}},
    {"target": 6, "fit": {"is_reached": False}, "mean": 5.5, "adaptive_over_full": 0.7, "metrics": {"mlm_loss": 1.5}},
]
RIVAL_ROWS = [
    {"kind": "adaptive", "max_depth": 6, "mean": 2.5, "adaptive_macs": 30.0, "metrics": {"eval/score": 0.9}},
    {"kind": "fixed depth", "max_depth": 4, "mean": 4.0, "adaptive_macs": 40.0, "metrics": {"eval/score": 0.8}},
]


def build_panels(files: RunFiles) -> list[Panel]:
    section = build_quality_section(files)
    assert section is not None
    return [panel for figure in section.figures for panel in figure.panels]


def get_scatter(panel: Panel) -> Scatter:
    assert isinstance(panel.mark, Scatter)
    return panel.mark


def get_points(panel: Panel) -> dict[str, list[tuple[float, float]]]:
    return {name: [(dot.x, dot.y) for dot in dots] for name, dots in get_scatter(panel).groups}


def test_the_exit_rules_of_one_model_come_first_with_their_compute(tmp_path: Path) -> None:
    files = read_run(add_halting_files(add_exit_files(tmp_path)))
    study = files.of(EXIT_RULES)["sets"]["validation"]
    (panel,) = build_panels(files)
    points_of_rules = sorted(point for points in get_points(panel).values() for point in points)
    rules = [row for row in study["rows"] if not row["rule"].startswith("oracle")]  # they see labels
    assert len(rules) < len(study["rows"])
    assert points_of_rules == sorted((row["macs"], row["quality"]["score"]) for row in rules)
    (line,) = get_scatter(panel).lines
    assert line == sorted((row["macs"], row["quality"]["score"]) for row in study["rows"] if "macs" in row["pareto"])
    sections = extract_sections(write_report(read_report(tmp_path)).read_text(encoding="utf-8"))
    assert next(iter(sections)) == "quality"
    assert "n = 300 sequences of validation" in sections["quality"]


def test_quality_against_compute_is_drawn_once(tmp_path: Path) -> None:
    report = build_report(read_run(add_halting_files(add_exit_files(tmp_path))))
    titles = [panel.x.title for section in report.sections for figure in section.figures for panel in figure.panels
              if panel.x is not None]  # fmt: skip
    assert sum("MACs" in title for title in titles) == 1


def test_a_line_joins_the_exits_of_one_network_without_its_mixture(tmp_path: Path) -> None:
    summary = make_summary(make_records(steps=4))
    files = dataclasses.replace(read_run(make_run(tmp_path)), others={EXITS: {"sets": {"validation": summary}}})
    (panel,) = build_panels(files)
    fixed, at_exits = get_points(panel).values()
    expected = [(step / 4, row["quality"]["score"]) for step, row in enumerate(summary["steps"], start=1)]
    assert fixed == expected
    assert get_scatter(panel).lines == [expected]
    assert at_exits == [(pytest.approx(summary["exit"]["mean"] / 4), summary["exit"]["quality"]["score"])]


@pytest.mark.parametrize(("set_name", "often", "expected"), [
    ("validation", 2.0, (10 + 2 * 5) / 45), ("validation", 1.0, (10 + 5) / 45),
    ("test", 1.0, "mean"), ("test", 2.0, None),
])  # fmt: skip
def test_exits_of_one_network_are_drawn_at_their_compute(
    set_name: str, often: float, expected: float | str | None, tmp_path: Path
) -> None:
    """Count 10 of 40 per unit for the first set, and 5 for every prediction; full depth has one prediction."""
    records, compute = make_records(steps=3), [0.38, 0.69, 1.0]
    summary = make_summary(records)
    for row, share in zip(summary["steps"], compute, strict=True):
        row["compute"] = share
    cost = {"adaptive_macs": 100.0, "adaptive_over_full": 0.25}
    halting = {"set": "validation", "n": 10, "cost": cost, "prediction_macs": 5.0, "predictions_per_unit": often}
    files = dataclasses.replace(
        read_run(make_run(tmp_path)), halting=halting, others={EXITS: {"sets": {set_name: summary}}}
    )
    (panel,) = build_panels(files)
    fixed, [(at_exit, _)] = get_points(panel).values()
    assert panel.x is not None
    if expected is None:  # the predictions of a further set were not counted
        assert panel.x.title == "updates, share of full depth"
        return
    assert panel.x.title == "compute, share of full depth"
    assert [x for x, _ in fixed] == compute
    mean = sum(compute[int(step) - 1] for step in records.depth) / len(records.depth)
    assert at_exit == pytest.approx(mean if expected == "mean" else expected)


def test_one_checkpoint_at_several_depths_is_one_line(tmp_path: Path) -> None:
    budgets = {"rows": BUDGET_ROWS, "set": "held_out", "unit": "updates", "knob": "k", "fitted_on": 5, "measured_on": 6}
    files = dataclasses.replace(read_run(make_run(tmp_path)), others={BUDGETS: budgets})
    (panel,) = build_panels(files)
    assert get_points(panel) == {"fitted to a target": [(0.25, 3.0), (0.7, 1.5)], "as trained": [(0.5, 2.0)]}
    assert get_scatter(panel).lines == [[(0.25, 3.0), (0.5, 2.0), (0.7, 1.5)]]
    assert panel.y is not None
    assert panel.y.title == "mlm loss, less is better"
    section = build_quality_section(files)
    assert section is not None
    assert section.of == "n = 6 sequences of held_out"


def test_separately_trained_networks_have_no_line(tmp_path: Path) -> None:
    files = dataclasses.replace(read_run(record(tmp_path / "run", work=0.6)), others={RIVALS: {"rows": RIVAL_ROWS}})
    (panel,) = build_panels(files)
    points = get_points(panel)
    assert points.pop("this run") == [(0.6, 0.9)]
    assert list(points.values()) == [[(pytest.approx(0.6 * 40 / 30), 0.8)]]
    assert not get_scatter(panel).lines


def test_compared_architectures_come_first_without_a_line(tmp_path: Path) -> None:
    make_comparison(make_search_run(tmp_path))
    report = build_report(read_run(tmp_path))
    first, *rest = [section for section in report.sections if section.title]
    assert first.title == "Quality against measured time"
    assert not any(get_scatter(panel).lines for figure in first.figures for panel in figure.panels)
    assert all(figure.name != "architectures" for section in rest for figure in section.figures)


def test_differences_below_the_least_relevant_one_are_drawn_small(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = json.loads(json.dumps(RIVAL_ROWS))
    rows[1]["metrics"]["eval/score"] = 0.9001
    files = dataclasses.replace(read_run(record(tmp_path / "run")), others={RIVALS: {"rows": rows}})
    (panel,) = build_panels(files)
    assert panel.y is not None
    low, high = panel.y.span
    assert high - low >= 4 * 0.005


def test_a_training_run_begins_with_its_own_fixed_and_shuffled_depths(tmp_path: Path) -> None:
    entry: dict[str, Any] = {
        "examples": 240, "of_examples": 512, "rule": None, "max_depth": 8, "n": 900, "mean": 3.2, "std": 1.1,
        "own": {"score": 0.6}, "permuted": {"quality": {"score": 0.5}},
        "fixed": [{"depth": 3, "quality": {"score": 0.55}}, {"depth": 4, "quality": {"score": 0.57}}],
    }  # fmt: skip
    files = dataclasses.replace(
        read_run(make_run(tmp_path)), others={MATCHED_BASELINE: {"sets": {"inside": entry, "one": entry | {"std": 0}}}}
    )
    (panel,) = build_panels(files)
    assert get_points(panel) == {
        "fixed depth": [(3 / 8, 0.55), (4 / 8, 0.57)],
        "its own depths": [(3.2 / 8, 0.6)],
        "its own depths, shuffled": [(3.2 / 8, 0.5)],
    }
    assert get_scatter(panel).lines == [[(3 / 8, 0.55), (4 / 8, 0.57)]]
    assert "inside" in panel.title
    fitted = dataclasses.replace(
        files, others={MATCHED_BASELINE: {"sets": {"inside": entry | {"rule": "margin:0.25"}}}}
    )
    (panel,) = build_panels(fitted)
    assert "depths by margin:0.25" in get_points(panel)


def test_a_run_with_one_point_has_no_section_on_quality(tmp_path: Path) -> None:
    assert build_quality_section(read_run(make_run(tmp_path))) is None
