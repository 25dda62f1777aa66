"""The first figures of a page: depth, work and correlations, with warnings."""

from __future__ import annotations

from adadepth.analysis.clock import speedups
from adadepth.analysis.files import RunFiles, halts
from adadepth.analysis.render.section import Section, absent, fill


def overview(files: RunFiles) -> Section | None:
    """Tiles for units that halt."""
    if not halts(files):
        return None
    halting = files.halting
    everyone = halting.get("classes", {}).get("all", {})
    if "mean" not in everyone:
        return Section("", "overview", absent("Halting statistics are", files, "halting.json"))
    speedup = speedups(files).get("evaluation")
    return Section("", "overview", fill("overview", halting=halting, everyone=everyone, speedup=speedup))
