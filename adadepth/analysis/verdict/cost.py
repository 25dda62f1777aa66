"""What the model costs at its own depths: updates, work, and time where somebody measured it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from adadepth.analysis.clock import speedups, wall_clock
from adadepth.analysis.files import RunFiles, run_unit
from adadepth.analysis.measure.names import WORK
from adadepth.analysis.units import words
from adadepth.analysis.verdict.finding import Finding, whole_percent

NEEDED = WORK.removeprefix("cost/")


def cost(files: RunFiles) -> Finding:
    """Updates of the most possible, the work that they need as a share of full depth's, and measured speed-up.

    How the evaluation ran is no cost of the model: section Work tells it.
    """
    halting, unit = files.halting, run_unit(files)
    needed = halting.get("cost", {}).get(NEEDED)
    figures = {} if needed is None else {NEEDED: needed}
    figures |= {f"speedup_in_{kind}": value for kind, value in speedups(files).items()}
    return Finding(None, [*_updates(halting, unit), *_work(needed, unit), *wall_clock(files)], figures)


def _updates(halting: Mapping[str, Any], unit: str) -> Iterator[str]:
    if unit == "task":
        if layers := halting.get("layers"):
            yield f"{layers['deepest']} of {len(layers['weights']) - 1} blocks have to run."
    elif words(unit).halts:
        mean, most = halting["classes"]["all"]["mean"], halting["max_depth"]
        yield f"{mean:.2f} of {most} updates a {unit}, {whole_percent(mean / most)}."


def _work(needed: float | None, unit: str) -> Iterator[str]:
    if needed is not None:
        about = words(unit)
        yield f"{about.needing} {whole_percent(needed)} of the multiply-accumulates of {about.of_full}."
