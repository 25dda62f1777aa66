"""Losses over training."""

from __future__ import annotations

from adadepth.analysis.files import RunFiles, loss_curves
from adadepth.analysis.render.figure import Figure, line_panel
from adadepth.analysis.render.section import Section, absent
from adadepth.analysis.render.svg import charts


def losses(files: RunFiles) -> Section:
    """A panel for every loss, training and evaluation in one."""
    curves = loss_curves(files.metrics)
    if not curves:
        message = absent("Losses over training", files, "metrics.jsonl", "metrics.jsonl holds none")
        return Section("Losses over training", "losses", message)
    panels = [line_panel(loss_title(name), lines, _loss_unit(name)) for name, lines in curves.items()]
    figure = Figure("losses", panels, columns=3)
    logs = sum(any(name in line for name in ("train/loss", "eval/loss")) for line in files.metrics)
    return Section("Losses over training", "losses", charts(figure), [figure], of=f"n = {logs:,} logs of 1 run")


def loss_title(name: str) -> str:
    """`mlm_loss` as MLM loss."""
    first, *rest = name.split("_")
    return " ".join([first.upper() if first in ("lm", "mlm", "sop", "kl") else first.capitalize(), *rest])


def _loss_unit(name: str) -> str:
    """What a loss is measured in: cross-entropies in nats, the others as they enter the total."""
    return "nats" if name in ("lm_loss", "mlm_loss", "sop_loss") else "weighted loss"
