"""What depth cost: updates, work, and time where somebody measured it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from adadepth.analysis.files import RunFiles, run_unit
from adadepth.analysis.units import words
from adadepth.analysis.verdict.finding import Finding, whole_percent

_SPEEDUPS = {"evaluation": "cost/speedup_over_dense", "training": "cost/training_speedup_over_dense"}


def cost(files: RunFiles) -> Finding:
    """Updates of the most possible, work as a share, and measured speed-up."""
    halting, unit = files.halting, run_unit(files)
    found = halting.get("cost", {})
    metrics = files.run.get("final_metrics") or {}
    figures: dict[str, float] = {key: found[key] for key in _SHARES if key in found}
    figures |= {f"speedup_in_{kind}": metrics[name] for kind, name in _SPEEDUPS.items() if name in metrics}
    from_cache = bool(halting.get("layers", {}).get("from_cache"))
    sentences = [*_updates(halting, unit), *_work(found, unit, from_cache), _time(metrics)]
    return Finding(None, sentences, figures)


_SHARES = ("executed_over_full", "adaptive_over_full", "executed_over_dense")


def _updates(halting: Mapping[str, Any], unit: str) -> Iterator[str]:
    if unit == "task":
        if layers := halting.get("layers"):
            yield f"{layers['deepest']} of {len(layers['weights']) - 1} blocks have to run."
    elif words(unit).halts:
        mean, most = halting["classes"]["all"]["mean"], halting["max_depth"]
        yield f"{mean:.2f} of {most} updates a {unit}, {whole_percent(mean / most)}."


def _work(found: Mapping[str, float], unit: str, from_cache: bool) -> Iterator[str]:
    if "executed_over_full" in found:
        needed = "the depths need" if words(unit).halts else "it needs"
        cached = ", with the states of the base read from a cache" if from_cache else ""
        yield (
            f"The work executed is {whole_percent(found['executed_over_full'])} of {words(unit).of_full}, padding "
            f"included{cached}; without padding {needed} {whole_percent(found['adaptive_over_full'])}."
        )


def _time(metrics: Mapping[str, float]) -> str:
    parts = [f"{kind} {metrics[name]:.2f} times as fast" for kind, name in _SPEEDUPS.items() if name in metrics]
    if not parts:
        return "Wall clock was not measured; a share of work is no speed-up."
    return f"Measured, without halted tokens against with them: {', '.join(parts)}."
