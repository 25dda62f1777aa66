"""What the words of a page mean, and what could not be computed."""

from __future__ import annotations

from adadepth.analysis.files import RunFiles, run_unit
from adadepth.analysis.render.section import Section, fill
from adadepth.analysis.units import words


def definitions(files: RunFiles) -> Section:
    """Terms, and reasons for what is absent."""
    unit, has_exits = run_unit(files), bool(files.exits.get("sets") or files.exit_rules.get("sets"))
    html = fill(
        "definitions", terms=words(unit).terms, unit=unit, has_exits=has_exits,
        not_computed=files.halting.get("missing"),
    )  # fmt: skip
    return Section("Definitions", "definitions", html, of=None)
