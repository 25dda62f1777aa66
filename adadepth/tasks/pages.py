"""The report and figures of a run, with the sections that are its family's own."""

from __future__ import annotations

from pathlib import Path

from adadepth.analysis.files import read_run
from adadepth.analysis.render import report
from adadepth.analysis.render.section import SectionOf
from adadepth.analysis.verdict.finding import Verdict
from adadepth.analysis.verdict.section import verdict
from adadepth.families.registry import families, load


def judge(directory: Path) -> Verdict:
    """What the files of a run say of its depth."""
    return verdict(read_run(directory))


def write_report(directory: Path) -> Path:
    """Write the report of a run; returns its path."""
    return report.write_report(directory, own_sections(directory))


def draw_figures(directory: Path) -> list[Path]:
    """Draw the figures of a run; returns the files."""
    return report.draw_figures(directory, own_sections(directory))


def own_sections(directory: Path) -> list[SectionOf]:
    """The sections that the family of a run's model adds; none of a family that is not installed any more."""
    model = read_run(directory).config.get("model") or {}
    about = families().get(model.get("name", ""))
    return [] if about is None else [load(place) for place in about.sections]
