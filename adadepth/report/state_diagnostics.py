"""Report section on the states of a repeated map: residual, similarity, and spectral radius of every update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adadepth.report.figure import Axis, Figure, Lines, Panel, build_depth_axis
from adadepth.report.halting import curve
from adadepth.report.run_files import STATE_DIAGNOSTICS, RunFiles
from adadepth.report.section import Section, SectionEntry, explain_damage, fill
from adadepth.report.table import Column, Table, make_number_format

_PANELS = {
    "Residual": ("||s_k - s_(k-1)|| / ||s_(k-1)||", {"residual": "mean over tokens"}),
    "Similarity of states": (
        "linear CKA",
        {"cka_previous": "with the state before", "cka_last": "with the last state"},
    ),
    "Spectral radius": (
        "spectral radius of the Jacobian",
        {"spectral_radius": "mean over sequences", "largest_radius": "largest sequence"},
    ),
}


def build_state_section(files: RunFiles) -> Section | None:
    """Build the report section on residuals, similarities and spectral radii of the states of every update."""
    title, diagnostics = "States of every update", files.of(STATE_DIAGNOSTICS)
    if not diagnostics:
        return explain_damage(title, "state-diagnostics", "The diagnostics of states are", files, STATE_DIAGNOSTICS)
    rows = diagnostics["rows"]
    panels = [panel for name, spec in _PANELS.items() if (panel := _build_panel(name, *spec, rows)) is not None]
    figure, table = Figure("state_diagnostics", panels, columns=3), _build_table(rows)
    html = fill("state_diagnostics", figure=figure, table=table, diagnostics=diagnostics)
    sample = f"n = {diagnostics['tokens']:,} tokens of {diagnostics['sequences']} sequences of {diagnostics['set']}"
    return Section(title, "state-diagnostics", html, [figure], [table], of=sample)


def _build_panel(title: str, unit: str, names: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> Panel | None:
    measured = {key: [row for row in rows if row.get(key) is not None] for key in names}
    curves = [(name, curve(measured[key], "update", key)) for key, name in names.items()]
    values = [value for _, points in curves for _, value in points]
    if not values:
        return None
    x = build_depth_axis("update k", len(rows))
    return Panel(title, Lines(curves), x, Axis(unit, (0.0, 1.05 * max(values))), f"{title} of updates 1 to {len(rows)}")


def _build_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    write = make_number_format(4)
    columns = [
        Column("update", "update k"),
        Column("residual", "residual", write),
        Column("cka_previous", "CKA with the state before", write),
        Column("cka_last", "CKA with the last state", write),
        Column("spectral_radius", "spectral radius", write),
        Column("largest_radius", "largest of a sequence", write),
    ]
    return Table("state_diagnostics", columns, rows)


SECTIONS = (SectionEntry(255, build_state_section),)
