"""The tables of an evaluation as plain ASCII text, readable in a terminal and in a log file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from adadepth.analysis.architecture.comparison import compared_rows, conditions_text, measured_qualities, set_title
from adadepth.analysis.architecture.search import LETTERS, OPERATIONS, QUALITIES, is_fixed
from adadepth.analysis.exits.study import batches, cost, in_pareto_sets, score_title, warnings
from adadepth.analysis.measure.budgets import budget_label, drawn_quality, rival_columns
from adadepth.analysis.measure.grids import measure_of
from adadepth.analysis.measure.seeds import headline_metrics

_LEVELS = " .:-=+*#%@"
_BAR = 40
_COLUMNS = (("class", 24), ("n", 10), ("mean", 7), ("sd", 6), ("p10", 4), ("p90", 4), ("cap %", 6), ("loss", 7))
_ACCURACY = ("acc %", 7)  # where anything is predicted


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
    has_accuracy = any("accuracy" in described for described in summary["classes"].values())
    columns = (*_COLUMNS, _ACCURACY) if has_accuracy else _COLUMNS
    head = "".join(_cell(name, width, first=not index) for index, (name, width) in enumerate(columns)) + f"  {title}"
    lines = [*_header(summary, step), "", head, "-" * len(head)]
    for name, described in summary["classes"].items():
        cap, accuracy = described.get("at_cap"), described.get("accuracy")
        values = (
            name, f"{described['n']:,}", _number(described, "mean"), _number(described, "std"),
            str(described.get("p10", "-")), str(described.get("p90", "-")),
            "-" if cap is None else f"{100 * cap:.1f}", _number(described, "loss"),
            *(["-" if accuracy is None else f"{100 * accuracy:.1f}"] if has_accuracy else []),
        )  # fmt: skip
        cells = zip(values, columns, strict=True)
        line = "".join(_cell(value, width, first=not index) for index, (value, (_, width)) in enumerate(cells))
        lines.append(f"{line}  |{_sparkline(described.get('histogram', [])[1:])}|" if cap is not None else line)
    loss = "loss in nats, of values squared error" if summary["unit"] == "sequence" else "loss in nats"
    lines.append(f"shares from none to the class's highest: '{_LEVELS}'; {loss}, over units that have one")
    lines += [f"not available: {name}: {reason}" for name, reason in summary["missing"].items()]
    if warning := summary.get("adaptation", {}).get("warning"):
        lines.append(f"warning: {warning}")
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
    second = _ratios(cost)
    if "executed_over_dense" in cost:
        second.append(f"executed over dense {cost['executed_over_dense']:.3f}")
    correlations = (("loss", summary["spearman"].get("all")),
                    ("difficulty", summary.get("difficulty", {}).get("spearman")))  # fmt: skip
    for other, found in correlations:
        if found:
            interval = f"[{found['low']:+.3f}, {found['high']:+.3f}]"
            second.append(f"Spearman(depth, {other}) {found['value']:+.3f} {interval}, n {found['n']:,}")
    return ["; ".join(part) for part in (first, second) if part]


def _ratios(cost: Mapping[str, Any]) -> list[str]:
    found = [f"layer ratio {cost['layer_ratio']:.2f}"] if "layer_ratio" in cost else []
    if "executed_over_full" in cost:
        executed, adaptive = cost["executed_over_full"], cost["adaptive_over_full"]
        found.append(f"work executed {executed:.3f}, needed by the depths {adaptive:.3f} of full depth")
    return found


def budgets_table(found: Mapping[str, Any]) -> str:
    """Draw one checkpoint at several depths as text.

    Args:
        found: What budgets.json holds.
    """
    quality = drawn_quality(found)
    names = [name for name in found["rows"][0]["metrics"] if name != "tokens_per_second"]
    names = [quality, *(name for name in names if name != quality)] if quality else names
    widths = [max(len(name), 9) for name in names]
    head = f"{'target':20}{'depth':>7}{'sd':>7}{'work':>8}  " + "  ".join(
        f"{name:>{width}}" for name, width in zip(names, widths, strict=True)
    )
    lines = [
        f"one checkpoint at several depths ({found['unit']}), by {found['knob']}: fitted on {found['fitted_on']:,} "
        f"examples of {found['set']}, measured on {found['measured_on']:,} others; work as a share of full depth",
        "", head, "-" * len(head),
    ]  # fmt: skip
    for row in found["rows"]:
        values = [row["metrics"].get(name) for name in names]
        cells = "  ".join(
            f"{'-' if value is None else f'{value:.4f}':>{width}}" for value, width in zip(values, widths, strict=True)
        )
        work = row.get("adaptive_over_full")
        shown = "-" if work is None else f"{work:.3f}"
        lines.append(f"{budget_label(row):20}{row['mean']:>7.2f}{row['std']:>7.2f}{shown:>8}  {cells}")
    return "\n".join(lines)


def rivals_table(found: Mapping[str, Any]) -> str:
    """Draw an adaptive run beside its rivals of equal work as text.

    Args:
        found: What rivals.json holds.
    """
    columns, rows = rival_columns(found)
    widths = [20, *(max(len(name), 9) for name in columns[1:])]
    shown = [columns, *([row[0], *("-" if value is None else f"{value:.4f}" for value in row[1:])] for row in rows)]
    lines = [
        "  ".join(
            f"{cell:{'<' if not index else '>'}{width}}"
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in shown
    ]
    return "\n".join(["rivals of equal work (work as a multiple of the adaptive run's):", "", *lines])


def difficulty_table(adaptive: Mapping[str, Any], rival: Mapping[str, Any]) -> str:
    """Draw the depth by difficulty of an adaptive run, and its accuracy beside a rival's, as text.

    Args:
        adaptive: What its halting.json holds; a run that knows no difficulty gives an empty text.
        rival: That of the rival.
    """
    rows = [
        (name, row, other)
        for (name, found), (_, others) in zip(_difficulties(adaptive), _difficulties(rival), strict=False)
        for row, other in zip(found, others, strict=False)
        if "accuracy" in row
    ]
    if not rows:
        return ""
    lines = [f"{'set':12}{'difficulty':>11}{'n':>8}{'depth':>8}{'accuracy':>10}{'of the rival':>14}"]
    for name, row, other in rows:
        right, others_right = (f"{100 * found['accuracy']:.1f}" for found in (row, other))
        lines.append(f"{name:12}{row['difficulty']:>11}{row['n']:>8,}{row['mean']:>8.2f}{right:>10}{others_right:>14}")
    return "\n".join(lines)


def _difficulties(halting: Mapping[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """(name of the set, rows by difficulty) of every evaluated set."""
    sets = {halting.get("set", "first"): halting, **halting.get("further_sets", {})}
    return [(name, found["difficulty"]["rows"]) for name, found in sets.items() if found.get("difficulty")]


def grid_picture(grid: Mapping[str, Any]) -> str:
    """Draw a grid twice, side by side: what each cell needs, and how many updates it received.

    Args:
        grid: Of grids.json. Walls show as `##`, the start as `S`, cells that cannot be reached as `.`.
    """

    def row_of(values: Sequence[Any], number: int) -> str:
        line = ""
        for cell, value in zip(grid["cells"][number], values, strict=True):
            if cell is None or cell in "#S":
                line += {None: "   ", "#": " ##", "S": "  S"}[cell]
                continue
            line += f"{'.' if value is None else value:>3}"
        return line

    far = [row_of(values, number) for number, values in enumerate(grid["difficulty"])]
    deep = [row_of(values, number) for number, values in enumerate(grid["updates"])]
    width = max(*map(len, far), len(measure_of(grid))) + 4
    heading = f"{measure_of(grid):<{width}}updates"
    return "\n".join([heading, *(f"{left:<{width}}{right}" for left, right in zip(far, deep, strict=True))])


def layers_table(summary: Mapping[str, Any], step: int | None = None) -> str:
    """Draw the distribution over layers as text: a header, a line per state, and what is missing with the reason.

    Bars are relative to the largest weight, and any weight at all shows; one of exactly 0 is printed as 0.

    Args:
        summary: From `HaltingStatistics.summary`, of a task with `layers`.
        step: Optimiser steps done, for the header.
    """
    layers, when = summary["layers"], "" if step is None else f" at step {step:,}"
    weights = layers["weights"]
    header = [
        f"layers{when}: entropy {layers['entropy']:.3f} nats, as {layers['effective_layers']:.2f} equal ones",
        f"expected depth {layers['expected_depth']:.2f}",
        f"blocks that must run {layers['deepest']} of {len(weights) - 1} (deepest state)",
    ]
    cost = _ratios(summary["cost"])
    if "added_parameters" in layers:
        cost.append(f"added parameters {layers['added_parameters']:,}")
    lines = ["; ".join(part) for part in (header, cost) if part] + ["", "state  weight"]
    for state, weight in enumerate(weights):
        bar = "#" * math.ceil(_BAR * weight / max(weights))
        lines.append(f"{state:>5}  {f'{weight:.4f}' if weight else '0':6}  {bar}".rstrip())
    lines += [f"not available: {name}: {reason}" for name, reason in summary["missing"].items()]
    return "\n".join(lines)


def architecture_table(halting: Mapping[str, Any], step: int | None = None) -> str:
    """Draw a search, or a fixed architecture, as text: a header, a line per gated block, the evaluations.

    A bar has a letter for every 4 % that an operation of the block has.

    Args:
        halting: What halting.json holds, of a task whose unit is `architecture`.
        step: Optimiser steps done, for the header.
    """
    found, when = halting["architecture"], "" if step is None else f" at step {step:,}"
    header = [
        f"architecture{when}: {found['string']}",
        f"{found['blocks'] - found['string'].count('-')} of {found['blocks']} blocks kept",
    ]
    if found["temperature"] is not None:
        header += [f"expected {found['expected_blocks']:.2f}", f"mean entropy {found['mean_entropy']:.3f} of ln 3 nats"]
        header.append(f"temperature {found['temperature']:.3f}")
    thirds = ", ".join("/".join(str(third[name]) for name in OPERATIONS) for third in found["thirds"])
    second = [f"{'/'.join(LETTERS)} by third of depth: {thirds}"]
    if "executed_over_full" in halting["cost"]:
        executed, adaptive = halting["cost"]["executed_over_full"], halting["cost"]["adaptive_over_full"]
        second.append(f"work executed {executed:.3f}, of the architecture {adaptive:.3f} of alternating blocks")
    lines = ["; ".join(header), "; ".join(second), *([] if is_fixed(found) else _gate_lines(found))]
    lines += ["", *_quality_lines(halting["evaluations"])] if halting["evaluations"] else []
    lines += [f"not available: {name}: {reason}" for name, reason in halting["missing"].items()]
    return "\n".join(lines)


def _gate_lines(found: Mapping[str, Any]) -> list[str]:
    """A line for every block of a supernet."""
    lines = ["", f"block   {'       '.join(LETTERS)}   entropy"]
    for block, (row, entropy) in enumerate(zip(found["probabilities"], found["entropy"], strict=True), start=1):
        bar = "".join(letter * round(25 * share) for letter, share in zip(LETTERS, row, strict=True))
        lines.append(f"{block:>5}" + "".join(f"{share:8.4f}" for share in row) + f"{entropy:8.3f}  {bar}")
    return lines


def _quality_lines(evaluations: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A line for every evaluation, under the names of the figures that any of them has."""
    names = [name for name in QUALITIES if any(name in found for found in evaluations.values())]
    rows = [evaluation.ljust(12) + _qualities(found, names) for evaluation, found in evaluations.items()]
    return ["evaluation".ljust(12) + _wide(names, names), *rows]


def _qualities(found: Mapping[str, float], names: Sequence[str]) -> str:
    return _wide([_figure(found.get(name), "f") for name in names], names)


def _wide(cells: Sequence[str], names: Sequence[str]) -> str:
    """Cells of the columns with these names."""
    return "".join(cell.rjust(max(len(name), 9) + 2) for cell, name in zip(cells, names, strict=True))


def comparison_table(comparison: Mapping[str, Any]) -> str:
    """Networks of several architectures as text: quality, then multiply-accumulates and measured time by shape.

    Args:
        comparison: What architectures.json holds; see `comparison`.
    """
    rows = compared_rows(comparison)
    width, names = max(len(row["label"]) for row in rows) + 2, measured_qualities(rows)
    head = "network".ljust(width) + "parameters".rjust(12) + _wide(names, names)
    lines = [f"{head}  {'set'.ljust(14)}architecture", "-" * (len(head) + 28)]
    for row in rows:
        quality = row["quality"] or {}
        title = set_title(row["quality_set"]) if quality else "not measured"
        cells = f"{row['parameters']:>12,}{_qualities(quality, names)}"
        lines.append(f"{row['label'].ljust(width)}{cells}  {title.ljust(14)}{row['architecture']}")
    for shape in (shape["name"] for shape in comparison["shapes"]):
        lines += ["", f"{shape}".ljust(width) + "".join(name.rjust(12) for name, _, _ in _COSTS)]
        for row in rows:
            costs = row["costs"][shape]
            cells = "".join(_scaled(costs.get(key), scale).rjust(12) for _, key, scale in _COSTS)
            lines.append(row["label"].ljust(width) + cells)
    lines += ["", f"x reference: share of the cost of {comparison['reference']}, less is cheaper; -: not measured"]
    lines.append("MACs: of the blocks, per sequence; ms: median forward pass of the batch; perplexity: per token")
    return "\n".join([*lines, conditions_text(comparison)])


_COSTS = (
    ("MACs (M)", "macs", 1e-6), ("x reference", "macs_share", 1), ("ms", "median", 1e3),
    ("x reference", "median_share", 1), ("blocks ms", "blocks_median", 1e3), ("x reference", "blocks_median_share", 1),
)  # fmt: skip


def _scaled(value: float | None, scale: float) -> str:
    return "-" if value is None else f"{scale * value:.3f}"


def exits_table(summary: Mapping[str, Any]) -> str:
    """The step summary of an evaluated set as text: a header, a line per step, and what is missing with the reason.

    Args:
        summary: From `step_summary`.
    """
    at_exit, halting, calibration = summary["exit"], summary["halting"], summary["calibration"]
    quality = [f"{name} {value:.4f}" for name, value in at_exit.get("quality", {}).items()]
    header = [
        f"exits: {summary['n']:,} examples",
        f"step {_mean_std(at_exit)} (median {at_exit['median']:g}) of at most {summary['max_steps']}",
        *quality,
    ]
    found = [f"{name.replace('_', ' ')} {_mean_std(halting[name])}" for name in _HALTING_FIGURES if name in halting]
    if "halting" in calibration:
        found.append(f"first right step against it: TV {calibration['halting']['total_variation']:.3f}")
    if "confidence" in calibration:
        found.append(f"calibration error {calibration['confidence']['ece']:.3f}")
    columns = (("step", "step", "d"), ("exit %", "share", "%"), ("p_n", "posterior", "f"), ("prior", "prior", "f"))
    lines = ["; ".join(part) for part in (header, found) if part]
    lines += ["", "".join(name.rjust(8) for name, *_ in columns) + "score".rjust(9) + "loss".rjust(9)]
    for row in summary["steps"]:
        cells = [_figure(row.get(key), form).rjust(8) for _, key, form in columns]
        score = _figure(row.get("quality", {}).get("score"), "f")
        lines.append("".join(cells) + score.rjust(9) + _figure(row.get("loss"), "f").rjust(9))
    lines.append("score and loss as if every example exited at that step")
    lines += [f"not available: {name}: {reason}" for name, reason in summary["missing"].items()]
    return "\n".join(lines)


_HALTING_FIGURES = ("expected_steps", "entropy", "kl")


def study_table(study: Mapping[str, Any]) -> str:
    """Exit rules on one set as text: quality beside layer ratio, MACs ratio and time ratio, Pareto sets marked.

    Args:
        study: From `study`, or `add_timings`.
    """
    timed = batches(study)
    width = max(len(row["rule"]) for row in study["rows"]) + 2
    ran = any("online" in row for row in study["rows"])
    online = ["online", "updates"] if ran else []
    names = [
        "score",
        "+-",
        "permuted",
        *online,
        "updates",
        "layers x",
        "MACs x",
        *(f"time x {batch}" for batch in timed),
    ]
    head = "rule".ljust(width) + "".join(name.rjust(10) for name in names) + "  Pareto set"
    lines = [f"{score_title(study)}; {study['n']:,} examples, {study['max_steps']} steps", head, "-" * len(head)]
    for row in study["rows"]:
        control = row.get("permuted", {}).get("quality", {})
        cells = [
            _figure(row["quality"].get("score"), "f"), _figure(row.get("quality_std", {}).get("score"), "f"),
            _figure(control.get("score"), "f"), *(_online(row) if ran else ()), f"{row['mean_updates']:.2f}",
            f"{row['layer_ratio']:.2f}",
            f"{row['macs_ratio']:.2f}", *(_ratio(row, batch) for batch in timed),
        ]  # fmt: skip
        lines.append(row["rule"].ljust(width) + "".join(cell.rjust(10) for cell in cells) + f"  {in_pareto_sets(row)}")
    lines.append("x: full depth over the rule, time by batch size; -: not measured or without meaning")
    lines.append("+-: sd over draws; permuted: score of the same exits dealt to the examples at random")
    if ran:
        lines.append("online: score and updates when the rule really ran, so that exits change what others see")
    lines.append(_conditions(study))
    lines += [f"warning: {line}" for line in warnings(study)]
    return "\n".join(lines)


def _online(row: Mapping[str, Any]) -> tuple[str, str]:
    found = row.get("online", {})
    return _figure(found.get("quality", {}).get("score"), "f"), _figure(found.get("mean_updates"), ".2f")


def _ratio(row: Mapping[str, Any], batch: str) -> str:
    if cost(row, f"seconds/{batch}") is None:
        return "-"
    return _figure(row["time_ratio"].get(batch), ".2f")


def _conditions(study: Mapping[str, Any]) -> str:
    """Under which the times were measured."""
    timing = study.get("timing", {})
    return f"time: {', '.join(f'{key} {value}' for key, value in timing.items())}" if timing else "time: not measured"


def seeds_table(summary: Mapping[str, Any]) -> str:
    """The headline metrics of several seeds: mean +- standard deviation, n, and the values in the order of seeds.

    Args:
        summary: From `summarise_seeds`.
    """
    metrics = headline_metrics(summary)
    width = max((len(name) for name in metrics), default=6) + 2
    seeds = [str(seed) for seed in summary["seeds"]]
    lines = [f"{len(seeds)} seed{'s' * (len(seeds) != 1)}: {', '.join(seeds)}"]
    lines.append(f"{'metric'.ljust(width)}{'mean +- sd':>18}{'n':>4}  values")
    lines.append("-" * (width + 30))
    for name, found in metrics.items():
        spread = f"{found['mean']:.4f} +- {found['std']:.4f}" if "std" in found else f"{found['mean']:.4f}"
        values = " ".join(_figure(found["values"].get(seed), "f") for seed in seeds)
        lines.append(f"{name.ljust(width)}{spread:>18}{found['n']:>4}  {values}")
    if distance := summary.get("layer_distance"):
        spread = f"mean {distance['mean']:.4f}, max {distance['max']:.4f}"
        lines.append(f"layer distributions of two seeds: total variation {spread}, {distance['pairs']} pairs")
    if agreement := summary.get("architecture_agreement"):
        lines += [f"architecture of seed {seed}: {string}" for seed, string in agreement["strings"].items()]
        spread = f"mean {agreement['mean']:.3f}, min {agreement['min']:.3f}"
        lines.append(f"blocks on which two seeds agree: {spread} of 1, {agreement['pairs']} pairs")
    return "\n".join(lines)


def _mean_std(found: Mapping[str, Any]) -> str:
    return f"{found['mean']:.2f} +- {found['std']:.2f}"


def _figure(value: float | None, form: str) -> str:
    """A number for a table; `f` has four decimals, `%` one."""
    if value is None:
        return "-"
    return {"f": f"{value:.4f}", "%": f"{100 * value:.1f}", "d": f"{value:.0f}", ".2f": f"{value:.2f}"}[form]


def _cell(text: str, width: int, first: bool) -> str:
    return text.ljust(width) if first else text.rjust(width)


def _number(described: Mapping[str, Any], key: str) -> str:
    return f"{described[key]:.2f}" if key in described else "-"


def _sparkline(counts: Sequence[int]) -> str:
    """One character a depth, relative to the highest share; any unit at all shows."""
    highest, darkest = max(counts, default=0) or 1, len(_LEVELS) - 1
    return "".join(_LEVELS[math.ceil(darkest * count / highest)] for count in counts)
