"""The verdict of a run, and the first section of its page."""

from __future__ import annotations

from adadepth.analysis.files import RunFiles, cut_short, halts, run_unit
from adadepth.analysis.render.section import Section, fill
from adadepth.analysis.verdict.cost import cost
from adadepth.analysis.verdict.finding import ANSWERS, QUESTIONS, Finding, Verdict
from adadepth.analysis.verdict.one_for_all import chooses_layers, chooses_operations
from adadepth.analysis.verdict.target import target
from adadepth.analysis.verdict.units import adapts
from adadepth.analysis.verdict.worth import worth


def verdict(files: RunFiles) -> Verdict:
    """What the files of a run answer; empty where they do not say how deep anything went."""
    depth = _depth(files)
    if depth is None:
        return {}
    asked = {} if (found := target(files)) is None else {"target": found}
    return {**asked, "adapts": depth, "worth": worth(files), "cost": cost(files)}


def _depth(files: RunFiles) -> Finding | None:
    halting, unit = files.halting, run_unit(files)
    if "layers" in halting:
        return chooses_layers(halting["layers"])
    if "architecture" in halting:
        return chooses_operations(halting["architecture"])
    is_measured = halts(files) and "mean" in halting.get("classes", {}).get("all", {}) and unit == halting.get("unit")
    return adapts(halting) if is_measured else None


def verdict_section(files: RunFiles) -> Section | None:
    """The answers in words."""
    found = verdict(files)
    if not found:
        return None
    advice = files.halting.get("adaptation", {}).get("advice")
    return Section(
        "Verdict",
        "verdict",
        fill("verdict", verdict=found, questions=QUESTIONS, answers=ANSWERS, advice=advice, cut=cut_short(files)),
    )
