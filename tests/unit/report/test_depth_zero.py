"""Units without any update, and skipped iterations, in every table and drawing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from adadepth.halting.trace import DepthTrace
from adadepth.metrics.depth_statistics import HaltingStatistics, flatten
from adadepth.metrics.example_sentences import SentenceSampler
from adadepth.report.depth_by_class import build_class_table, draw_class_figures, format_halting, write_halting_files
from adadepth.report.figure import Heat
from adadepth.report.pages import build_report, draw_figures, write_report
from adadepth.report.run_files import read_run
from adadepth.report.style import NOTHING
from tests.marks_support import keep_one_quick
from tests.pages_support import Page, read_report

DEPTH = 4


def make_run(directory: Path, *, is_zero_used: bool) -> dict[str, Any]:
    """Write a run of a router that lets tokens run iterations 2 and 4, or none; without zeros all run 2 and 4."""
    ids = torch.arange(20).view(2, 10) + 5
    valid = torch.ones_like(ids, dtype=torch.bool)
    ran = torch.zeros(2, 10, DEPTH, dtype=torch.bool)
    ran[:, (slice(4, None) if is_zero_used else slice(None)), 1::2] = True
    trace = DepthTrace("token", ran.sum(dim=-1), valid, DEPTH, ran=ran)
    statistics, sampler = HaltingStatistics(DEPTH, ("all",), "cpu"), SentenceSampler(str)
    losses = torch.rand(2, 10, generator=torch.Generator().manual_seed(0))
    statistics.update(trace, {"all": valid}, losses)
    sampler.update({"input_ids": ids, "attention_mask": valid.long(), "labels": ids}, trace, losses, ids)
    summary = statistics.summary()
    write_halting_files(directory, summary, sampler.sentences(), step=2)
    lines = [json.dumps({"step": step, **flatten(summary)}) for step in (1, 2)]
    (directory / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return summary


def get_depth_spans(directory: Path) -> dict[str, tuple[float, float]]:
    """Return the spans of every axis of depths, by panel."""
    panels = [
        panel
        for section in build_report(read_run(directory)).sections
        for figure in section.figures
        for panel in figure.panels
    ]
    axes = [(panel.title, axis) for panel in panels for axis in (panel.x, panel.y)]
    return {title: axis.span for title, axis in axes if axis is not None and "depth (updates)" in axis.title}


@pytest.mark.parametrize(("is_zero_used", "first"), keep_one_quick(2, [(True, 0), (False, 1)]))
def test_tables_and_axes_begin_where_the_depths_do(tmp_path: Path, is_zero_used: bool, first: int) -> None:
    summary = make_run(tmp_path, is_zero_used=is_zero_used)
    assert [row["depth"] for row in summary["steps"]] == list(range(first, DEPTH + 1))
    spans = get_depth_spans(tmp_path)
    assert spans.keys() >= {"Depth by class: mean, p10 to p90", "Depth distribution", "Mean depth by class"}
    assert all(first - 1 < low < first and DEPTH < high < DEPTH + 1 for low, high in spans.values()), spans
    columns = {column.key: column for column in build_class_table(summary).columns}
    assert columns["shape"].axis == columns["range"].axis == (first, DEPTH)
    heat = draw_class_figures(read_run(tmp_path))[0].panels[1].mark
    assert isinstance(heat, Heat)
    assert (heat.left, len(heat.columns)) == (first, DEPTH + 1 - first)
    assert sum(column[0] for column in heat.columns) == pytest.approx(1), "nobody is left out"
    shape = format_halting(summary).split("|")[1]
    assert len(shape) == DEPTH + 1 - first
    page = Page(write_report(read_report(tmp_path)))
    assert f"on the axis {first} to {DEPTH}" in page.text
    assert (f"background:{NOTHING}" in page.source and '<span class="t d0' in page.source) == is_zero_used
    assert ('<span class="t d0">0</span>' in page.source) == is_zero_used, "the key names it where it is used"
    assert len(draw_figures(read_report(tmp_path))) == 6


def test_iterations_are_reported_as_executed(tmp_path: Path) -> None:
    summary = make_run(tmp_path, is_zero_used=True)
    assert [row.get("survival") for row in summary["steps"]] == [None, 0, pytest.approx(0.6), 0, pytest.approx(0.6)]
    page = Page(write_report(read_report(tmp_path)))
    assert "ran: 2, 4" in page.source
    assert "commonest depth" in page.text
    training = (tmp_path / "tables" / "depth_over_training.csv").read_text(encoding="utf-8").splitlines()
    assert training[1].split(",")[-2] == "2"
