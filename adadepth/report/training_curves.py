"""Report sections on depth and losses over training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from adadepth.metrics.adaptation import FEWEST_DEPTHS, effective_depths, is_collapsed
from adadepth.metrics.metric_names import find_least_depth, metric_name
from adadepth.report.figure import (
    Curves,
    Figure,
    Lines,
    Panel,
    build_depth_axis,
    build_heat_over_steps,
    build_line_panel,
    build_step_axis,
    is_followed,
    subsample,
)
from adadepth.report.run_files import RunFiles, distributions, evaluated, get_loss_curves, get_run_unit, halts, series
from adadepth.report.section import Section, SectionEntry, absent, fill
from adadepth.report.table import Column, Table, make_number_format, percent

MAX_ROWS = 40
_TOKEN_CURVES = ("mask", "plain", "cls", "sep")
_HALTING_CURVES = {"mean": "all/mean", "std": "all/std", "entropy": "entropy", "ponder_cost": "ponder_cost"}
_CURVES = {name: f"halting/{key}" for name, key in _HALTING_CURVES.items()}
Shares = Sequence[tuple[int, Sequence[float]]]


def training(files: RunFiles) -> Section | None:
    """Build the report section on depth shares and mean depths over training.

    The result is None if nothing halts, or if the run only evaluated a trained model.
    """
    if not halts(files) or "evaluated" in files.run:
        return None
    title, histograms = "Depth over training", distributions(files.metrics, "halting/all/histogram")
    if not histograms:
        otherwise = "metrics.jsonl holds no depth histograms"
        return Section(title, "training", absent(title, files, "metrics.jsonl", otherwise))
    first = find_least_depth(counts for _, counts in histograms)
    shares = [(step, [count / sum(counts) for count in counts[first:]]) for step, counts in histograms]
    figures = [Figure("depth_over_training", _build_panels(files, shares, first))] if len(shares) > 1 else []
    collapsed = [
        step
        for step, row in shares
        if is_collapsed(effective_depths(row)) and step > _count_steps_of_one_depth(files, shares[-1][0])
    ]
    table = _build_table(files, shares, first)
    content = {
        "figures": figures,
        "table": table,
        "unit": get_run_unit(files),
        "collapsed": collapsed,
        "count": len(shares),
    }
    collapsed_now = bool(collapsed) and collapsed[-1] == shares[-1][0]
    html = fill("training:training", **content, fewest=FEWEST_DEPTHS, collapsed_now=collapsed_now)
    sample = f"{evaluated(files).partition(', step')[0]}, at {len(shares)} evaluation{'s' * (len(shares) != 1)}"
    return Section(title, "training", html, figures, [table], of=sample)


def _count_steps_of_one_depth(files: RunFiles, last: int) -> float:
    """Return the number of first steps after which one depth is no collapse, because nothing should halt yet.

    A depth budget grows the depth and holds full depth first. A model without an exit rule never halts.

    Args:
        files: Files of the run.
        last: Step of the last evaluation.
    """
    if (files.config.get("model") or {}).get("exit_rule", "") is None:
        return last
    budget, trainer = files.config.get("budget") or {}, files.config.get("trainer") or {}
    if budget.get("target") is None:
        return 0
    planned = (files.run.get("steps") or {}).get("planned", trainer.get("max_steps", 0))
    return float((budget.get("grow", 0) + budget.get("hold", 0)) * planned)


def _build_panels(files: RunFiles, shares: Shares, first: int) -> list[Panel]:
    unit, max_updates = get_run_unit(files), first + len(shares[0][1]) - 1
    y = build_depth_axis("mean depth (updates)", max_updates, first, air=0.2)
    x, title = build_step_axis([step for step, _ in shares]), f"Mean depth of {unit} classes over training"
    return [
        build_heat_over_steps(f"Share of {unit}s at each depth", shares, f"share of {unit}s", "depth (updates)", first),
        Panel("Mean depth by class", Lines(_means(files)), x, y, title, 1.08),
    ]


def _means(files: RunFiles) -> Curves:
    """Return curves of mean depth over training for at most six classes of tokens or sequences."""
    classes = files.halting.get("classes", {})
    by_label = [name for name in classes if name.startswith("label: ")]
    names = ("all", "correct", "wrong", *by_label[:3]) if "correct" in classes else ("all", *_TOKEN_CURVES)
    # Runs of older versions logged the classes under their own names.
    return [
        (name, series(files.metrics, metric_name(class_metric)) or series(files.metrics, class_metric))
        for name in names
        for class_metric in [f"halting/{name}/mean"]
    ]


def _build_table(files: RunFiles, shares: Shares, first: int) -> Table:
    curves = {key: dict(series(files.metrics, name)) for key, name in _CURVES.items()}
    rows: list[dict[str, Any]] = [
        {"step": step, "commonest": list(row).index(max(row)) + first, "share": max(row)}
        | {key: values.get(step) for key, values in curves.items()}
        for step, row in subsample(shares, MAX_ROWS)
    ]
    columns = [
        Column("step"),
        Column("mean", "mean", make_number_format(2)),
        Column("std", "sd", make_number_format(2)),
        Column("entropy", "entropy (nats)", make_number_format(2)),
        Column("ponder_cost", "ponder cost", make_number_format(2)),
        Column("commonest", "commonest depth"),
        Column("share", "its share", percent),
    ]
    return Table("depth_over_training", columns, rows)


def losses(files: RunFiles) -> Section | None:
    """Build the report section on losses over training, with one panel per loss.

    The result is None if the run only evaluated a trained model.
    """
    if "evaluated" in files.run:
        return None
    curves = get_loss_curves(files.metrics)
    if not curves:
        message = absent("Losses over training", files, "metrics.jsonl", "metrics.jsonl holds none")
        return Section("Losses over training", "losses", message)
    followed = {name: lines for name, lines in curves.items() if is_followed(lines) and not _is_zero(lines)}
    panels = [
        build_line_panel(format_loss_title(name), lines, _get_loss_unit(name)) for name, lines in followed.items()
    ]
    figures = [Figure("losses", panels, columns=3)] if panels else []
    html = fill("training:losses", figures=figures, remarks=list(_explain_omissions(curves)))
    logs = sum(any(name in line for name in ("train/loss", "eval/loss")) for line in files.metrics)
    return Section("Losses over training", "losses", html, figures, of=f"n = {logs:,} logs of 1 run")


def _is_zero(lines: Curves) -> bool:
    return all(value == 0 for _, points in lines for _, value in points)


def _explain_omissions(curves: Mapping[str, Curves]) -> Iterator[str]:
    zero = [format_loss_title(name) for name, lines in curves.items() if _is_zero(lines)]
    once = [format_loss_title(name) for name, lines in curves.items() if not _is_zero(lines) and not is_followed(lines)]
    if zero:
        yield f"Not drawn, because zero throughout: {', '.join(zero)}."
    if once:
        yield f"Not drawn, because known at one step only: {', '.join(once)}. See the final metrics."


def format_loss_title(name: str) -> str:
    """Return the display name of a loss, such as MLM loss for `mlm_loss`."""
    first, *rest = name.split("_")
    return " ".join([first.upper() if first in ("lm", "mlm", "sop", "kl") else first.capitalize(), *rest])


def _get_loss_unit(name: str) -> str:
    """Return the unit of a loss: nats for cross-entropies, otherwise its weighted share of the total loss."""
    return "nats" if name in ("lm_loss", "mlm_loss", "sop_loss") else "weighted loss"


SECTIONS = (SectionEntry(210, training), SectionEntry(270, losses))
