"""The page of a comparison, and its figures as files."""

from __future__ import annotations

from pathlib import Path

from adadepth.analysis.comparisons.groups import Comparison, listed
from adadepth.analysis.comparisons.sections import number_of_runs, sections_of
from adadepth.analysis.files import CONFIG, HALTING, METRICS, RUN
from adadepth.analysis.render.page import write_page
from adadepth.analysis.render.report import draw
from adadepth.analysis.runs.facts import title

COMPARISONS = "comparisons"  # the folder of such pages
_SOURCES = (RUN, CONFIG, METRICS, HALTING)


def write_comparison(folder: Path, comparison: Comparison) -> Path:
    """Write report.html with its tables, and its figures but for PNG and PDF, as a run has them; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(title(run) for run in comparison.runs))
    return write_page(
        folder, sections_of(comparison, folder), title=listed(names, 3), sources=_SOURCES, whose="these runs",
        subtitle=f"Comparison of runs, {number_of_runs(comparison)}",
    )  # fmt: skip


def draw_comparison(folder: Path, comparison: Comparison) -> list[Path]:
    """Draw the figures of the page as PNG and PDF; returns the files."""
    return draw(sections_of(comparison, folder), folder)
