"""The halting table of an evaluation as plain ASCII text, readable in a terminal and in a log file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

_LEVELS = " .:-=+*#%@"
_COLUMNS = (("class", 22), ("n", 10), ("mean", 7), ("sd", 6), ("p10", 4), ("p90", 4), ("cap %", 6), ("loss", 7))


def halting_table(summary: Mapping[str, Any], step: int | None = None) -> str:
    """Draw the summary of `HaltingStatistics` as text: a header, a line per class, and what is missing with the reason.

    Args:
        summary: From `HaltingStatistics.summary`.
        step: Optimiser steps done, for the header.

    Returns:
        Lines of ASCII without a trailing newline. A figure that is absent shows as `-`.
    """
    depth_limit = summary["max_depth"]
    title = f"shares of depths 1..{depth_limit}"
    head = "".join(_cell(name, width, first=not index) for index, (name, width) in enumerate(_COLUMNS)) + f"  {title}"
    lines = [*_header(summary, step), "", head, "-" * len(head)]
    for name, described in summary["classes"].items():
        cap = described.get("at_cap")
        values = (
            name, f"{described['n']:,}", _number(described, "mean"), _number(described, "std"),
            str(described.get("p10", "-")), str(described.get("p90", "-")),
            "-" if cap is None else f"{100 * cap:.1f}", _number(described, "loss"),
        )  # fmt: skip
        cells = zip(values, _COLUMNS, strict=True)
        line = "".join(_cell(value, width, first=not index) for index, (value, (_, width)) in enumerate(cells))
        lines.append(f"{line}  |{_sparkline(described.get('histogram', [])[1:])}|" if cap is not None else line)
    lines.append(f"shares from none to the class's highest: '{_LEVELS}'; loss in nats, over units that have one")
    lines += [f"not available: {name}: {reason}" for name, reason in summary["missing"].items()]
    return "\n".join(lines)


def _header(summary: Mapping[str, Any], step: int | None) -> list[str]:
    everyone, cost = summary["classes"]["all"], summary["cost"]
    when = "" if step is None else f" at step {step:,}"
    first = [f"halting{when}: {summary['n']:,} {summary['unit']}s"]
    if "mean" in everyone:
        first.append(
            f"updates {everyone['mean']:.2f} +- {everyone['std']:.2f} (median {everyone['median']}) "
            f"of at most {summary['max_depth']}"
        )
    first += [f"{key.replace('_', ' ')} {everyone[key]:.3f}" for key in ("remainder", "ponder_cost") if key in everyone]
    second = [f"layer ratio {cost['layer_ratio']:.2f}"] if "layer_ratio" in cost else []
    if "executed_over_full" in cost:
        executed, adaptive = cost["executed_over_full"], cost["adaptive_over_full"]
        second.append(f"work executed {executed:.3f}, needed by the depths {adaptive:.3f} of full depth")
    if found := summary["spearman"].get("all"):
        interval = f"[{found['low']:+.3f}, {found['high']:+.3f}]"
        second.append(f"Spearman(depth, loss) {found['value']:+.3f} {interval}, n {found['n']:,}")
    return ["; ".join(part) for part in (first, second) if part]


def _cell(text: str, width: int, first: bool) -> str:
    return text.ljust(width) if first else text.rjust(width)


def _number(described: Mapping[str, Any], key: str) -> str:
    return f"{described[key]:.2f}" if key in described else "-"


def _sparkline(counts: Sequence[int]) -> str:
    """One character a depth, relative to the highest share; any unit at all shows."""
    highest, darkest = max(counts, default=0) or 1, len(_LEVELS) - 1
    return "".join(_LEVELS[math.ceil(darkest * count / highest)] for count in counts)
