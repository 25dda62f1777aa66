"""The section on the states of every update, from the file that an evaluation writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adadepth.report.figure import Lines
from adadepth.report.run_files import STATE_DIAGNOSTICS, RunFiles
from adadepth.report.state_diagnostics import build_state_section

ROWS = [
    {"update": 1, "residual": None, "cka_previous": None, "cka_last": 0.4, "spectral_radius": 1.5, "largest_radius": 2},
    {"update": 2, "residual": 0.5, "cka_previous": 0.8, "cka_last": 1.0, "spectral_radius": 0.7, "largest_radius": 0.9},
]


def build_section(content: dict[str, Any]) -> Any:
    return build_state_section(RunFiles(Path("run"), {}, {}, [], {}, [], {}, others={STATE_DIAGNOSTICS: content}))


def test_every_diagnostic_is_drawn_where_it_is_defined() -> None:
    section = build_section({"set": "eval", "sequences": 6, "tokens": 40, "radius_sequences": 4, "rows": ROWS})
    (figure,) = section.figures
    residual, similarity, radius = (panel.mark for panel in figure.panels)
    assert isinstance(residual, Lines)
    assert residual.curves == [("mean over tokens", [(2, 0.5)])]
    assert [points for _, points in similarity.curves] == [[(2, 0.8)], [(1, 0.4), (2, 1.0)]]
    assert [points for _, points in radius.curves] == [[(1, 1.5), (2, 0.7)], [(1, 2), (2, 0.9)]]
    assert section.tables[0].rows == ROWS
    assert section.of == "n = 40 tokens of 6 sequences of eval"
    assert "4 of them" in section.html


def test_a_run_without_diagnostics_has_no_section() -> None:
    assert build_section({}) is None
