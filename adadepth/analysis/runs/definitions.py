"""What the words of a page mean, and what could not be computed."""

from __future__ import annotations

from adadepth.analysis.files import RunFiles, run_unit
from adadepth.analysis.measure.adaptation import DECIDED, FEWEST
from adadepth.analysis.render.section import Section, fill
from adadepth.analysis.units import words
from adadepth.analysis.verdict.finding import whole_percent
from adadepth.analysis.verdict.one_for_all import SURE, UNDECIDED


def definitions(files: RunFiles) -> Section:
    """Terms, and reasons for what is absent."""
    unit, has_exits = run_unit(files), bool(files.exits.get("sets") or files.exit_rules.get("sets"))
    html = fill(
        "definitions", terms=words(unit).terms, unit=unit, has_exits=has_exits,
        fewest=FEWEST, decided=whole_percent(DECIDED), undecided=whole_percent(UNDECIDED), sure=whole_percent(SURE),
        not_computed=files.halting.get("missing"),
    )  # fmt: skip
    return Section("Definitions", "definitions", html, of=None)
