"""Report, figures and console of exits and exit rules."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adadepth.metrics.step_records import POSITIONS
from adadepth.report.exits import build_study_panels, format_exit_study, format_exits, write_exit_study
from adadepth.report.figure import Axis, Dot, Panel, Scatter
from adadepth.report.pages import build_report, draw_figures, write_report
from adadepth.report.run_files import EXIT_RULES, EXITS, read_run, write_exits
from adadepth.report.style import get_shape_style
from adadepth.report.svg import render_chart
from tests.figures_support import find_inked_pixels
from tests.pages_support import Page, check_accessible, check_stands_alone, read_report
from tests.unit.report.synthetic import make_run
from tests.unit.report.synthetic_exits import (
    add_exit_files,
    add_halting_files,
    make_records,
    make_study,
    make_summary,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = add_halting_files(add_exit_files(tmp_path_factory.mktemp("run")))
    record = {"config_name": "ponder_tiny", "final_metrics": {"eval/score": 0.71234, "eval/step_2/score": 0.61234}}
    (directory / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return Page(write_report(read_report(run)))


@pytest.fixture(scope="module")
def untimed() -> dict[str, Any]:
    return make_study(make_records(), timed=False)


@pytest.fixture
def study(untimed: dict[str, Any]) -> dict[str, Any]:
    """Return a study without times, which a test may change."""
    return copy.deepcopy(untimed)


def read_sets(run: Path, name: str) -> dict[str, Any]:
    return json.loads((run / name).read_text(encoding="utf-8"))["sets"]


def test_the_page_is_self_contained_and_accessible(page: Page) -> None:
    check_stands_alone(page)
    assert not page.of("script")
    assert check_accessible(page) > 0


@pytest.mark.parametrize("unit", ["sequence", "token"])
def test_pages_name_what_exits_by_its_unit(unit: str, tmp_path: Path) -> None:
    """Record sequences, or tokens whose index holds the sequence; no page calls them examples."""
    records = make_records(steps=4)
    if unit == "token":
        records = dataclasses.replace(records, index=records.index * POSITIONS + 1)
    summary, study = make_summary(records), make_study(records)
    files = dataclasses.replace(
        read_run(make_run(tmp_path)),
        others={EXITS: {"sets": {"inside": summary}}, EXIT_RULES: {"sets": {"inside": study}}},
    )
    sections = {section.anchor: section for section in build_report(files).sections}
    pages = [sections[anchor] for anchor in ("quality", "exits", "exit-rules")]
    texts = [format_exits(summary), format_exit_study(study), *(str(section.html) for section in pages)]
    assert all(f"{unit}s" in text for text in texts[:2])
    assert not any("example" in text for text in texts)
    assert all(section.of == f"n = {len(records):,} {unit}s of inside" for section in pages)


def test_exits_of_every_set_are_printed(run: Path, page: Page) -> None:
    for name, summary in read_sets(run, EXITS).items():
        assert f"{name} {summary['n']} sequences" in re.sub(r"\s+", " ", page.text)
        for value in (summary["exit"]["quality"]["accuracy"], summary["exit"]["loss"], summary["steps"][2]["loss"]):
            assert f"{value:.4f}" in page.text
        assert f"{summary['halting']['expected_steps']['mean']:.2f} ±" in page.text
        assert f"{summary['calibration']['halting']['total_variation']:.3f} (total variation)" in page.text
        assert f"{summary['spearman']['updates_loss']['value']:+.3f}" in page.text
        for label, described in summary["classes"].items():
            row = rf"{re.escape(label)}.*?{described['n']}\s+{described['mean']:.2f}\s+{described['std']:.2f}"
            assert re.search(row, page.text), label


def test_exit_rules_are_printed_with_three_kinds_of_ratio(run: Path, page: Page) -> None:
    study = read_sets(run, EXIT_RULES)["validation"]
    for heading in (
        "full / mean updates",
        "compute ratio",
        "time ratio",
        "ms, batch 8",
        "permuted exits",
        "Pareto set",
    ):
        assert heading in page.text
    for row in study["rows"]:
        cells = [row["rule"], f"{row['mean_updates']:.2f}", f"{row['layer_ratio']:.2f}", f"{row['macs_ratio']:.2f}"]
        times = [
            f"{row['time_ratio'][batch]:.2f}" if "seconds" in row else "not measured" for batch in ("1", "8", "32")
        ]
        assert re.search(r".*?".join(map(re.escape, [*cells, *times])), page.text), row["rule"]
    assert "device CPU, precision float32, length 64, repetitions 5" in page.text
    assert page.source.count("Pareto set: ") == 5  # one drawing for every cost
    for heading in (
        "two fixed depths",
        "updates from oracle",
        "correlation with difficulty",
        "Exit steps of each rule",
    ):
        assert heading in page.text


def test_a_page_without_times_has_a_remark(study: dict[str, Any], tmp_path: Path) -> None:
    write_exit_study(tmp_path, {"validation": study})
    page = Page(write_report(read_report(tmp_path)))
    assert "The wall-clock time of the rules was not measured" in page.text
    assert page.text.count("not measured") > len(read_sets(tmp_path, EXIT_RULES)["validation"]["rows"])
    assert "milliseconds" not in page.text


def test_warnings_and_missing_figures_are_sentences(study: dict[str, Any], tmp_path: Path) -> None:
    first, second = study["rows"][3], study["rows"][4]
    first["warning"] = second["warning"] = "never fires: every sequence runs all steps"
    write_exit_study(tmp_path, {"validation": study})
    write_exits(tmp_path, {"validation": make_summary(make_records(), truncation=None, prior_pmf=None)}, step=1)
    page = Page(write_report(read_report(tmp_path)))
    assert f"never fires: every sequence runs all steps ({first['rule']}, {second['rule']})" in page.text
    assert "halting (the model has no halting probabilities)" in page.text
    assert "KL(" not in page.text


def test_a_page_names_sequences_as_its_units(page: Page) -> None:
    assert "Depth by sequence class" in page.text
    assert "share of sequences" in page.text
    assert "[MASK]" not in page.text
    assert not re.search(r"\btokens?\b", page.text.replace("real tokens, special ones included", ""))


def test_single_steps_are_no_final_metrics(page: Page) -> None:
    assert "0.7123" in page.text
    assert "eval/step_2/score" not in page.text


def test_pages_of_runs_without_exits_do_not_mention_them(tmp_path: Path) -> None:
    text = Page(write_report(read_report(tmp_path))).text
    assert not re.search(r"exit|oracle|Pareto", text, re.IGNORECASE)


@pytest.mark.parametrize("name", [EXITS, EXIT_RULES])
def test_a_damaged_file_becomes_a_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{ not json", encoding="utf-8")
    assert f"{name} is damaged" in Page(write_report(read_report(tmp_path))).text


def test_text_is_escaped(run: Path, tmp_path: Path) -> None:
    evil = "<b>&'\"</b>"
    study, summary = read_sets(run, EXIT_RULES)["validation"], make_summary(make_records(), labels=(evil, "x"))
    study["rows"][0]["rule"] = study["metrics"][0] = study["timing"]["device"] = evil
    write_exit_study(tmp_path, {evil: study})
    write_exits(tmp_path, {evil: summary}, step=1)
    page = Page(write_report(read_report(tmp_path)))
    assert "b" not in {tag for tag, _ in page.tags}
    assert page.text.count(evil) >= 6


@pytest.mark.slow
def test_pages_of_many_steps_rules_and_sets_stay_small(tmp_path: Path) -> None:
    records = make_records(steps=24)
    study, summary = make_study(records), make_summary(records)
    write_exit_study(tmp_path, {"matched": study, "mismatched": study})
    write_exits(tmp_path, {"matched": summary, "mismatched": summary}, step=1)
    add_halting_files(tmp_path)
    assert write_report(read_report(tmp_path)).stat().st_size < 800_000


# ---- drawings


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("sets", [1, 2])
def test_figures_are_drawn_and_not_blank(tmp_path: Path, sets: int) -> None:
    names = ("matched", "mismatched")[:sets]
    write_exits(tmp_path, dict.fromkeys(names, make_summary(make_records(size=60))), step=1)
    write_exit_study(tmp_path, dict.fromkeys(names, make_study(make_records(size=60), timed=sets == 1)))
    paths = draw_figures(read_report(tmp_path))
    figures = ("quality_against_compute", "exits", "exit_rules", "exit_steps")
    assert [path.name for path in paths] == [f"{name}.{kind}" for name in figures for kind in ("png", "pdf")]
    for path in paths[::2]:
        halves = [half for axis in (0, 1) for half in np.array_split(find_inked_pixels(path), 2, axis=axis)]
        most = 0.9 if path.stem == "exit_steps" else 0.5  # cells of a heat map touch
        assert all(0.005 < half.mean() < most for half in halves), path.name


def test_a_scatter_plot_has_every_point_at_its_coordinates() -> None:
    groups = [(f"g{number}", [Dot(number, 0.5, f"point {number}", marked=number == 1)]) for number in range(6)]
    mark = Scatter(groups, lines=[[(1, 0.5), (2, 0.5)]], background=[(3, 0.25)])
    drawing = str(render_chart(Panel("text", mark, Axis("x", (0, 10)), Axis("y", (0, 1)))))
    across = [58 + number / 10 * (440 - 58 - 16) for number in range(6)]  # of the margins of a chart
    for number in range(6):
        assert f"{across[number]:.1f}" in drawing
        assert f"<title>point {number}</title>" in drawing
    assert drawing.count('r="7"') == 1
    assert drawing.count('r="3"') == 1
    assert f"{250 - 40 - 0.25 * (250 - 12 - 40):.1f}" in drawing
    assert len({get_shape_style(index) for index in range(30)}) == 30


def test_a_drawing_names_the_members_of_its_pareto_set(study: dict[str, Any]) -> None:
    panel, *_ = build_study_panels(study)
    title, drawing = panel.title, render_chart(panel)
    members = [row["rule"] for row in study["rows"] if "mean_updates" in row["pareto"]]
    assert title == "Against executed updates per sequence (mean)"
    assert f"Pareto set: {', '.join(members)}" in str(drawing)
    assert str(drawing).count('r="7"') == len(members)
