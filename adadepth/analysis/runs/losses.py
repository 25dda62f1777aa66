"""Losses over training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from adadepth.analysis.files import RunFiles, loss_curves
from adadepth.analysis.render.figure import Curves, Figure, is_followed, line_panel
from adadepth.analysis.render.section import Section, absent, fill


def losses(files: RunFiles) -> Section:
    """A panel for every loss, training and evaluation in one; what is zero throughout or known once is named."""
    curves = loss_curves(files.metrics)
    if not curves:
        message = absent("Losses over training", files, "metrics.jsonl", "metrics.jsonl holds none")
        return Section("Losses over training", "losses", message)
    drawn = {name: lines for name, lines in curves.items() if is_followed(lines) and not _is_zero(lines)}
    panels = [line_panel(loss_title(name), lines, _loss_unit(name)) for name, lines in drawn.items()]
    figures = [Figure("losses", panels, columns=3)] if panels else []
    html = fill("losses", figures=figures, remarks=list(_not_drawn(curves)))
    logs = sum(any(name in line for name in ("train/loss", "eval/loss")) for line in files.metrics)
    return Section("Losses over training", "losses", html, figures, of=f"n = {logs:,} logs of 1 run")


def _is_zero(lines: Curves) -> bool:
    return all(value == 0 for _, points in lines for _, value in points)


def _not_drawn(curves: Mapping[str, Curves]) -> Iterator[str]:
    zero = [loss_title(name) for name, lines in curves.items() if _is_zero(lines)]
    once = [loss_title(name) for name, lines in curves.items() if not _is_zero(lines) and not is_followed(lines)]
    if zero:
        yield f"Zero throughout, and not drawn: {', '.join(zero)}."
    if once:
        yield f"Known at one step only, and not drawn: {', '.join(once)}. The figures are among the final metrics."


def loss_title(name: str) -> str:
    """`mlm_loss` as MLM loss."""
    first, *rest = name.split("_")
    return " ".join([first.upper() if first in ("lm", "mlm", "sop", "kl") else first.capitalize(), *rest])


def _loss_unit(name: str) -> str:
    """What a loss is measured in: cross-entropies in nats, the others as they enter the total."""
    return "nats" if name in ("lm_loss", "mlm_loss", "sop_loss") else "weighted loss"
