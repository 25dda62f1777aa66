"""Whether a run has the depth that its user set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from adadepth.analysis.files import RunFiles, cut_short, halts, run_unit
from adadepth.analysis.measure.names import WORK
from adadepth.analysis.verdict.finding import Finding, whole_percent
from adadepth.budget.held import CEILINGS, TOLERANCE, is_held


class Depth(NamedTuple):
    """What a budget is counted in: how a figure is written, and where the files have it."""

    written: str
    measured: float | None


def target(files: RunFiles) -> Finding | None:
    """What was set, what the evaluation measured, by how much it is missed and what may help; None without a target."""
    settings = files.config.get("budget") or {}
    wanted = settings.get("target")
    if not wanted or files.run.get("mode", "train") != "train":
        return None
    unit = str(settings.get("unit", "updates"))
    depth = _depth(files, unit)
    told = f"set to {depth.written.format(wanted)}"
    if depth.measured is None:
        return Finding("unknown", [f"It was {told}; what came of it was not measured."], {"target": wanted})
    figures = {"target": wanted, "evaluated": depth.measured}
    limit = f"within {whole_percent(TOLERANCE)} {'or below ' if unit in CEILINGS else ''}counts as reached"
    told += f", {depth.measured:.3g} in the evaluation ({limit})"
    if is_held(depth.measured, wanted, unit):
        return Finding("yes", [f"Reached: {told}."], figures)
    missed = abs(depth.measured - wanted)
    side = "below" if depth.measured < wanted else "above"
    first = f"Missed by {missed:.3g}, {whole_percent(missed / wanted)} {side}: {told}."
    return Finding("no", [first, f"What may help: {'; '.join(_advice(files, unit, wanted))}."], figures)


def _depth(files: RunFiles, unit: str) -> Depth:
    halting: dict[str, Any] = files.halting
    layers = halting.get("layers", {})
    if unit == "updates":
        return Depth(f"{{:g}} updates a {run_unit(files)}", halting.get("classes", {}).get("all", {}).get("mean"))
    if unit == "macs":
        measured = halting.get("cost", {}).get(WORK.removeprefix("cost/"))
        return Depth("{:g} of the multiply-accumulates of full depth", measured)
    if unit == "milliseconds":
        return Depth("{:g} ms for all blocks", (files.run.get("latency") or {}).get("derived"))
    if unit == "deepest_layer":
        return Depth("{:g} blocks that have to run", layers.get("deepest"))
    return Depth("a mean state of {:g}", layers.get("expected_depth"))


def _advice(files: RunFiles, unit: str, wanted: float) -> Iterator[str]:
    """The likeliest reason first."""
    asked = (files.run.get("final_metrics") or {}).get("budget/target", wanted)
    if reason := cut_short(files):
        yield f"the run was cut short ({reason}), let it end"
    elif asked != wanted:
        yield f"training ended while the budget still asked for {asked:.3g}, give it more updates"
    else:
        yield "train longer, or raise budget.gain"
    if halts(files) and unit in ("updates", "macs"):
        yield f"set the trained model to it, with mode=evaluate checkpoint=RUN 'budget.targets=[{wanted:g}]'"
