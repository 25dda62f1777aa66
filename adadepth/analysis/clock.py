"""What of a run was timed, in words: told in one way wherever a page speaks of time."""

from __future__ import annotations

from collections.abc import Iterator

from adadepth.analysis.files import RunFiles
from adadepth.analysis.measure.names import SPEEDUPS


def speedups(files: RunFiles) -> dict[str, float]:
    """How many times as fast evaluation and training are without halted tokens, as far as it was measured."""
    metrics = files.run.get("final_metrics") or {}
    return {kind: metrics[name] for kind, name in SPEEDUPS.items() if name in metrics}


def wall_clock(files: RunFiles) -> Iterator[str]:
    """Sentences: the speed-ups that were measured, and which sections hold other times; or that there are none."""
    measured, elsewhere = speedups(files), list(_timed_elsewhere(files))
    if measured:
        parts = ", ".join(f"{kind} {value:.2f} times as fast" for kind, value in measured.items())
        yield f"Measured, without halted tokens against with them: {parts}."
    if elsewhere:
        yield f"Measured times stand with {' and with '.join(elsewhere)}."
    if not measured and not elsewhere:
        yield "Wall clock was not measured; a share of work is no speed-up."


def _timed_elsewhere(files: RunFiles) -> Iterator[str]:
    studies = files.exit_rules.get("sets", {}).values()
    if any("seconds" in row for study in studies for row in study["rows"]):
        yield "the exit rules"
    if any(row.get("seconds") for row in files.architectures.get("rows", ())):
        yield "the architectures compared"
