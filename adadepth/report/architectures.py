"""Tables and sections about searched architectures: operations, gates, evaluations, and comparisons of networks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from adadepth.metrics.architectures import (
    EVALUATION_COSTS,
    LETTERS,
    OPERATION_NAMES,
    QUALITIES,
    architecture_history,
    compared_rows,
    conditions_text,
    is_fixed,
    measured_qualities,
    quality_points,
    set_title,
)
from adadepth.report.depth_by_class import describe_cost, format_at_step, list_unavailable
from adadepth.report.exits import NOT_MEASURED
from adadepth.report.figure import (
    Axis,
    Dot,
    Figure,
    Panel,
    Scatter,
    Stacks,
    build_depth_axis,
    build_heat_over_steps,
    build_line_panel,
    is_followed,
    pad_range,
    subsample,
)
from adadepth.report.run_files import ARCHITECTURES, RunFiles, get_run_unit, series
from adadepth.report.run_metadata import tokenizer
from adadepth.report.section import Section, SectionEntry, absent, explain_damage, fill
from adadepth.report.style import OPERATION_COLORS, get_text_color
from adadepth.report.svg import render_swatch_legend
from adadepth.report.table import Column, Table, make_number_format, percent, text, to_text

OPERATION_TITLES = ("attention", "feed-forward", "identity")


def build_third_table(thirds: Sequence[Mapping[str, int]]) -> Table:
    """Build the table that counts each operation in the lower, middle and upper third of the blocks, and in total."""
    operations = zip(OPERATION_NAMES, OPERATION_TITLES, LETTERS, strict=True)
    columns = [
        Column("third", "third of the blocks", text, "text"),
        *(Column(key, f"{title} {letter}") for key, title, letter in operations),
    ]
    rows = [{"third": name, **counts} for name, counts in zip(("first", "middle", "last"), thirds, strict=True)]
    total = {key: sum(counts[key] for counts in thirds) for key in OPERATION_NAMES}
    return Table("operations_by_third", columns, [*rows, {"third": "all", **total}])


def build_gate_table(described: Mapping[str, Any]) -> Table:
    """Build the table of operation probabilities of every block of a supernet."""
    columns = [
        Column("block"),
        Column("operation", "operation", text, "text"),
        *(Column(key, title, _format_percent) for key, title in zip(OPERATION_NAMES, OPERATION_TITLES, strict=True)),
        Column("entropy", "entropy (nats)", make_number_format(3)),
    ]
    blocks = zip(described["string"], described["probabilities"], described["entropy"], strict=True)
    rows = [
        {"block": number, "operation": letter, **dict(zip(OPERATION_NAMES, row, strict=True)), "entropy": entropy}
        for number, (letter, row, entropy) in enumerate(blocks, start=1)
    ]
    return Table("gates", columns, rows)


def _format_percent(share: float) -> str:
    return make_number_format(2)(100 * share) + "%"


def build_evaluation_table(evaluations: Mapping[str, Mapping[str, float]]) -> Table:
    """Build the table of the metrics of an architecture search, with a row for each kind of evaluation."""
    names = measured_qualities([{"quality": qualities} for qualities in evaluations.values()])
    columns = [
        Column("evaluation", "evaluation", text, "text", remark="definition"),
        *(Column(name, QUALITIES[name], make_number_format(4)) for name in names),
    ]
    rows = [
        {"evaluation": name, "definition": EVALUATION_COSTS.get(name, ""), **qualities}
        for name, qualities in evaluations.items()
    ]
    return Table("evaluations", columns, rows)


def build_history_table(rows: Sequence[Mapping[str, Any]], first: str) -> Table:
    """Build the table of the searched architecture and its perplexity at every evaluation."""
    columns = [
        Column("step"),
        Column("string", "most probable operations", text, "code"),
        Column("expected_blocks", "blocks expected", make_number_format(2)),
        Column("mean_entropy", "mean entropy (nats)", make_number_format(3)),
        Column("temperature", "temperature", make_number_format(3)),
        Column("perplexity", f"perplexity, {first}" if first else "perplexity", make_number_format(2)),
    ]
    return Table("architecture_over_training", columns, rows)


def format_architecture(halting: Mapping[str, Any], step: int | None = None) -> str:
    """Format a search or a fixed architecture as text: a header, a line per gated block, and the evaluations.

    The bar of a block has one letter for every 4 % of probability of an operation.

    Args:
        halting: Contents of halting.json of a task. Its unit is `architecture`.
        step: Number of optimiser steps done, for the header.
    """
    architecture = halting["architecture"]
    header = [
        f"architecture{format_at_step(step)}: {architecture['string']}",
        f"{architecture['blocks'] - architecture['string'].count('-')} of {architecture['blocks']} blocks kept",
    ]
    if architecture["temperature"] is not None:
        header += [
            f"expected {architecture['expected_blocks']:.2f}",
            f"mean entropy {architecture['mean_entropy']:.3f} of ln 3 nats",
        ]
        header.append(f"temperature {architecture['temperature']:.3f}")
    thirds = ", ".join("/".join(str(third[name]) for name in OPERATION_NAMES) for third in architecture["thirds"])
    second = [f"{'/'.join(LETTERS)} by third of depth: {thirds}"]
    second += describe_cost(halting)
    lines = [
        "; ".join(header),
        "; ".join(second),
        *([] if is_fixed(architecture) else ["", *format_gate_lines(architecture)]),
    ]
    lines += ["", to_text(build_evaluation_table(halting["evaluations"]))] if halting["evaluations"] else []
    return "\n".join([*lines, *list_unavailable(halting)])


def format_gate_lines(described: Mapping[str, Any]) -> list[str]:
    """Return the heading, the rule and one line for every block of a supernet."""
    head, rule, *rows = to_text(build_gate_table(described)).splitlines()
    bars = [
        "".join(letter * round(25 * share) for letter, share in zip(LETTERS, row, strict=True))
        for row in described["probabilities"]
    ]
    return [head, rule, *(f"{row}  {bar}" for row, bar in zip(rows, bars, strict=True))]


# ---- networks compared


def build_quality_table(comparison: Mapping[str, Any]) -> Table:
    """Build the table that compares the quality of networks with different architectures."""
    rows = compared_rows(comparison)
    columns = [
        Column("label", "network", text, "text", remark="kind"),
        Column("architecture", "architecture", text, "code"),
        Column("counts", "s/f/-", text),
        Column("parameters"),
        *(Column(name, QUALITIES[name], make_number_format(4)) for name in measured_qualities(rows)),
        Column("set", "set", text, "text", absent=NOT_MEASURED),
    ]
    table_rows = []
    for row in rows:
        same = {key: row[key] for key in ("label", "architecture", "parameters")}
        kind, counts = f"{row['kind']}, {row['trained']}", "/".join(map(str, row["counts"]))
        where = set_title(row["quality_set"]) if row["quality"] else None
        table_rows.append({**(row["quality"] or {}), **same, "kind": kind, "counts": counts, "set": where})
    return Table("architectures", columns, table_rows)


def build_cost_table(comparison: Mapping[str, Any], shape: str) -> Table:
    """Build the table of the cost of networks at an input shape, also relative to the cost of the reference network."""
    rows = compared_rows(comparison)
    share_title = f"of {comparison['reference']}"
    has_blocks = any("blocks_median" in costs for row in rows for costs in row["costs"].values())
    blocks = [
        Column("blocks_median", "blocks alone, ms", _format_milliseconds, absent=NOT_MEASURED),
        Column("blocks_median_share", share_title, percent),
    ]
    columns = [
        Column("label", "network", text, "text"),
        Column("macs", "MACs (M)", _format_millions, absent=NOT_MEASURED),
        Column("macs_share", share_title, percent),
        Column("median", "median ms", _format_milliseconds, absent=NOT_MEASURED),
        Column("p10", "p10", _format_milliseconds),
        Column("p90", "p90", _format_milliseconds),
        Column("median_share", share_title, percent),
        *(blocks if has_blocks else []),
    ]
    return Table(f"cost_{shape}", columns, [{"label": row["label"], **row["costs"][shape]} for row in rows])


def _format_millions(macs: float) -> str:
    return make_number_format(2)(macs / 1e6)


def _format_milliseconds(seconds: float) -> str:
    return make_number_format(2)(1e3 * seconds)


def format_architecture_comparison(comparison: Mapping[str, Any]) -> str:
    """Format networks of several architectures as text: quality, then MACs and time for every input shape.

    Args:
        comparison: Contents of architectures.json; see `comparison`.
    """
    lines = [to_text(build_quality_table(comparison))]
    for shape in (shape["name"] for shape in comparison["shapes"]):
        lines += ["", f"{shape}:", to_text(build_cost_table(comparison, shape))]
    lines += ["", f"shares relative to the cost of {comparison['reference']}: less is cheaper"]
    lines.append("MACs: of the blocks, per sequence; ms: median forward pass of the batch; perplexity: per token")
    return "\n".join([*lines, conditions_text(comparison)])


BLOCK = "block (1 at the input)"
_FRAMES, _MAX_CELLS, _MAX_ROWS = 6, 360, 40
_PARTS = list(zip(OPERATION_TITLES, OPERATION_COLORS, strict=True))

History = Sequence[tuple[int, Mapping[str, Any]]]


def get_search_history(files: RunFiles) -> list[tuple[int, dict[str, Any]]]:
    """Return (step, description) of every evaluation of a search, or an empty list for a fixed architecture."""
    described = files.halting.get("architecture")
    return [] if described is None or is_fixed(described) else architecture_history(files.metrics)


def build_architecture_tiles(files: RunFiles) -> Section | None:
    """Build the headline figures of a searched architecture, or explain why the run has none."""
    described = files.halting.get("architecture")
    if described is None:
        return _explain_missing_architecture(files, "", "overview")
    block_count = described["blocks"] - described["string"].count("-")
    evaluations = files.halting.get("evaluations", {})
    html = fill(
        "architectures:tiles", described=described, fixed=is_fixed(described), kept=block_count, evaluations=evaluations
    )
    return Section("", "overview", html)


def architecture(files: RunFiles) -> Section | None:
    """Build the report section on the operations of every block and the quality of the architecture."""
    described = files.halting.get("architecture")
    if described is None:
        return _explain_missing_architecture(files, "Architecture", "architecture")
    thirds, evaluations = build_third_table(described["thirds"]), files.halting.get("evaluations", {})
    quality = build_evaluation_table(evaluations) if evaluations else None
    gates = None if is_fixed(described) else build_gate_table(described)
    content = {
        "described": described,
        "thirds": thirds,
        "gates": gates,
        "quality": quality,
        "legend": render_swatch_legend(_PARTS),
    }
    now = build_stack_panel("Probabilities at the last evaluation", described)
    html = fill(
        "architectures:architecture",
        **content,
        letters=letters(described["string"]),
        token_unit=token_unit(files),
        now=now,
    )
    tables = [table for table in (thirds, gates, quality) if table is not None]
    return Section("Architecture", "architecture", html, tables=tables)


def _explain_missing_architecture(files: RunFiles, title: str, name: str) -> Section | None:
    """Return a report section that says why the run has no searched architecture, or None if it searched none."""
    if get_run_unit(files) != "architecture" or files.of(ARCHITECTURES).get("rows"):
        return None
    return Section(title, name, absent("The architecture is", files, "halting.json"))


def token_unit(files: RunFiles) -> str:
    """Return a sentence on the tokenizer, because perplexities of different tokenizers cannot be compared."""
    name = tokenizer(files)
    remark = f" ({name})" if name else ", which the files do not name"
    return f"Perplexities are per token of the tokenizer{remark}; those of other tokenizers compare per word only."


def letters(architecture: str) -> list[tuple[str, str, str]]:
    """Return for every block the letter of its operation, with background and text colour."""
    colors = dict(zip(LETTERS, OPERATION_COLORS, strict=True))
    return [(letter, colors[letter], get_text_color(colors[letter])) for letter in architecture]


def build_stack_panel(title: str, described: Mapping[str, Any], description: str = "") -> Panel:
    """Build a panel of stacked bars: the operation probabilities of every block, with the chosen operation as label."""
    x, y = (
        build_depth_axis(BLOCK, described["blocks"], air=0.6),
        Axis("probability", (0, 1), (0, 0.25, 0.5, 0.75, 1), percent=True),
    )
    stacks = Stacks(described["probabilities"], _PARTS, described["string"])
    return Panel(title, stacks, x, y, description or f"{title}: probabilities of the operations of every block", 0.9)


def build_frame_panel(step: int, described: Mapping[str, Any]) -> Panel:
    """Build the panel of gate probabilities at one evaluation, as one frame of an animation of the search."""
    temperature = described["temperature"]
    remark = "" if temperature is None else f", temperature {temperature:.3f}"
    return build_stack_panel(f"Step {step:,}: mean entropy {described['mean_entropy']:.3f} nats{remark}", described)


# ---- the search over training


def search(files: RunFiles) -> Section | None:
    """Build the report section on the operation probabilities of every block over training."""
    described = files.halting.get("architecture")
    if described is None or is_fixed(described):
        return None
    title, history = "Search over training", get_search_history(files)
    if not history:
        otherwise = "metrics.jsonl holds no probabilities of operations"
        return Section(title, "search", absent("The search over training", files, "metrics.jsonl", otherwise))
    figure = Figure("gates", build_heat_panels(history))
    evaluations = list(files.halting.get("evaluations", {}))
    frames = [
        build_stack_panel(f"Step {step:,}: {now['string']}", now, f"Probabilities of every block at step {step}")
        for step, now in subsample(history, _FRAMES)
    ]
    perplexity = dict(series(files.metrics, "eval/perplexity"))
    rows = [{"step": step, **now, "perplexity": perplexity.get(step)} for step, now in subsample(history, _MAX_ROWS)]
    table = build_history_table(rows, evaluations[0] if evaluations else "")
    panels = [*figure.panels, *_build_perplexity_panels(files, evaluations)]
    shown_history = subsample(history, max(_MAX_CELLS // described["blocks"], 8))
    html = fill(
        "architectures:search",
        panels=panels,
        frames=frames,
        table=table,
        drawn=shown_history,
        operations=OPERATION_TITLES,
    )
    return Section(title, "search", html, [figure], [table])


def build_heat_panels(history: History) -> list[Panel]:
    """Build panels of the probability of each operation, and of the entropy, for every block and evaluation."""
    operation_heats = [
        (
            f"Probability of {title}",
            "probability",
            [(step, [row[number] for row in now["probabilities"]]) for step, now in history],
        )
        for number, title in enumerate(OPERATION_TITLES)
    ]
    shares = [(step, [value / math.log(len(LETTERS)) for value in now["entropy"]]) for step, now in history]
    return [
        build_heat_over_steps(title, columns, measure, BLOCK, max_cells=_MAX_CELLS)
        for title, measure, columns in [*operation_heats, ("Entropy", "share of ln 3", shares)]
    ]


def _build_perplexity_panels(files: RunFiles, names: Sequence[str]) -> list[Panel]:
    """Build the panel of perplexity over training, with one curve for each kind of evaluation."""
    lines = [
        (name, series(files.metrics, f"eval/{name}/perplexity" if number else "eval/perplexity"))
        for number, name in enumerate(names)
    ]
    if not is_followed(lines):
        return []
    return [
        build_line_panel("Perplexity over training", lines, "perplexity per token", 1.0, "Perplexity over training")
    ]


# ---- comparison


def comparison(files: RunFiles) -> Section | None:
    """Build the report section that compares networks of several architectures."""
    title, compared = "Architectures compared", files.of(ARCHITECTURES)
    if not compared.get("rows"):
        return explain_damage(title, "comparison", "The comparison is", files, ARCHITECTURES)
    rows = compared_rows(compared)
    shapes = [shape["name"] for shape in compared["shapes"]]
    quality, costs = build_quality_table(compared), {shape: build_cost_table(compared, shape) for shape in shapes}
    content = {"quality": quality, "costs": costs, "reference": compared["reference"]}
    html = fill("comparison", **content, conditions=conditions_text(compared), token_unit=token_unit(files))
    sample = f"n = {len(rows)} networks, one seed each"
    return Section(title, "comparison", html, tables=[quality, *costs.values()], of=sample)


def build_network_panels(compared: Mapping[str, Any]) -> list[Panel]:
    """Build panels of perplexity against measured time or MACs, one for each evaluated set and input shape."""
    panels = []
    for title, axis, points in quality_points(compared):
        x, y = (pad_range(values) for values in ([x for x, _, _ in points], [y for _, y, _ in points]))
        dots = [(row["label"], [Dot(x, y, f"{row['label']}: {y:.2f}")]) for x, y, row in points]
        axes = Axis(axis, x), Axis("perplexity per token", y, start=1.0)
        panels.append(Panel(title, Scatter(dots), *axes, f"Perplexity against {axis}: {title}", 1.16))
    return panels


SECTIONS = (
    SectionEntry(40, build_architecture_tiles),
    SectionEntry(110, architecture),
    SectionEntry(130, search),
    SectionEntry(140, comparison),
)
