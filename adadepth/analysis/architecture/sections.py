"""The sections of the report about an architecture: its search, and networks of several architectures compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from adadepth.analysis.architecture.comparison import (
    NOT_RETRAINED,
    compared_rows,
    conditions_text,
    quality_points,
)
from adadepth.analysis.architecture.search import (
    LETTERS,
    architecture_history,
    is_fixed,
)
from adadepth.analysis.architecture.tables import (
    OPERATION_TITLES,
    cost_table,
    evaluation_table,
    gate_table,
    history_table,
    quality_table,
    third_table,
)
from adadepth.analysis.files import ARCHITECTURES, RunFiles, run_unit, series
from adadepth.analysis.render.colors import OPERATION_COLORS, text_on
from adadepth.analysis.render.figure import (
    Axis,
    Dot,
    Figure,
    Panel,
    Scatter,
    Stacks,
    depth_axis,
    heat_over_steps,
    is_followed,
    line_panel,
    padded,
    thin,
)
from adadepth.analysis.render.section import Section, absent, fill, told_if_damaged
from adadepth.analysis.render.svg import swatch_legend
from adadepth.analysis.runs.facts import tokenizer

BLOCK = "block (1 at the input)"
_FRAMES, _MAX_CELLS, _MAX_ROWS = 6, 360, 40
_PARTS = list(zip(OPERATION_TITLES, OPERATION_COLORS, strict=True))

History = Sequence[tuple[int, Mapping[str, Any]]]


def search_history(files: RunFiles) -> list[tuple[int, dict[str, Any]]]:
    """The evaluations of a search; none of a network that has nothing to choose."""
    described = files.halting.get("architecture")
    return [] if described is None or is_fixed(described) else architecture_history(files.metrics)


def architecture_overview(files: RunFiles) -> Section | None:
    """Tiles of the architecture."""
    described = files.halting.get("architecture")
    if described is None:
        return _undescribed(files, "", "overview")
    kept = described["blocks"] - described["string"].count("-")
    evaluations = files.halting.get("evaluations", {})
    html = fill("architecture_tiles", found=described, fixed=is_fixed(described), kept=kept, evaluations=evaluations)
    return Section("", "overview", html)


def architecture(files: RunFiles) -> Section | None:
    """The operations of every block, and the quality of the evaluations."""
    described = files.halting.get("architecture")
    if described is None:
        return _undescribed(files, "Architecture", "architecture")
    thirds, evaluations = third_table(described["thirds"]), files.halting.get("evaluations", {})
    quality = evaluation_table(evaluations) if evaluations else None
    gates = None if is_fixed(described) else gate_table(described)
    html = fill(
        "architecture", found=described, letters=letters(described["string"]), legend=swatch_legend(_PARTS),
        thirds=thirds, gates=gates, quality=quality, token_unit=token_unit(files),
        now=stack_panel("Probabilities at the last evaluation", described),
    )  # fmt: skip
    tables = [table for table in (thirds, gates, quality) if table is not None]
    return Section("Architecture", "architecture", html, tables=tables)


def _undescribed(files: RunFiles, title: str, name: str) -> Section | None:
    """What stands instead of an architecture; nothing in other runs, and where networks are compared."""
    if run_unit(files) != "architecture" or files.architectures.get("rows"):
        return None
    return Section(title, name, absent("The architecture is", files, "halting.json"))


def token_unit(files: RunFiles) -> str:
    """What a perplexity is per."""
    name = tokenizer(files)
    told = f" ({name})" if name else ", which the files do not name"
    return f"Perplexities are per token of the tokenizer{told}; those of other tokenizers compare per word only."


def letters(architecture: str) -> list[tuple[str, str, str]]:
    """(letter, background, text colour) of every block."""
    colors = dict(zip(LETTERS, OPERATION_COLORS, strict=True))
    return [(letter, colors[letter], text_on(colors[letter])) for letter in architecture]


def stack_panel(title: str, described: Mapping[str, Any], description: str = "") -> Panel:
    """The probabilities of every block as stacked bars, with the operation that each would get."""
    x, y = (
        depth_axis(BLOCK, described["blocks"], air=0.6),
        Axis("probability", (0, 1), (0, 0.25, 0.5, 0.75, 1), percent=True),
    )
    stacks = Stacks(described["probabilities"], _PARTS, described["string"])
    return Panel(title, stacks, x, y, description or f"{title}: probabilities of the operations of every block", 0.9)


def frame_panel(step: int, described: Mapping[str, Any]) -> Panel:
    """The gates at one evaluation: a frame of the search as a film."""
    temperature = described["temperature"]
    told = "" if temperature is None else f", temperature {temperature:.3f}"
    return stack_panel(f"Step {step:,}: mean entropy {described['mean_entropy']:.3f} nats{told}", described)


# ---- the search over training


def search(files: RunFiles) -> Section | None:
    """What every block chose at every evaluation."""
    described = files.halting.get("architecture")
    if described is None or is_fixed(described):
        return None
    title, history = "Search over training", search_history(files)
    if not history:
        otherwise = "metrics.jsonl holds no probabilities of operations"
        return Section(title, "search", absent("The search over training", files, "metrics.jsonl", otherwise))
    figure = Figure("gates", heat_panels(history))
    evaluations = list(files.halting.get("evaluations", {}))
    frames = [
        stack_panel(f"Step {step:,}: {now['string']}", now, f"Probabilities of every block at step {step}")
        for step, now in thin(history, _FRAMES)
    ]
    perplexity = dict(series(files.metrics, "eval/perplexity"))
    rows = [{"step": step, **now, "perplexity": perplexity.get(step)} for step, now in thin(history, _MAX_ROWS)]
    table = history_table(rows, evaluations[0] if evaluations else "")
    html = fill(
        "search", panels=[*figure.panels, *_perplexities(files, evaluations)], frames=frames, table=table,
        drawn=thin(history, max(_MAX_CELLS // described["blocks"], 8)), operations=OPERATION_TITLES,
    )  # fmt: skip
    return Section(title, "search", html, [figure], [table])


def heat_panels(history: History) -> list[Panel]:
    """The probability of each operation, and the entropy, by block and evaluation."""
    found = [
        (f"Probability of {title}", "probability",
         [(step, [row[number] for row in now["probabilities"]]) for step, now in history])
        for number, title in enumerate(OPERATION_TITLES)
    ]  # fmt: skip
    shares = [(step, [value / math.log(len(LETTERS)) for value in now["entropy"]]) for step, now in history]
    return [
        heat_over_steps(title, columns, measure, BLOCK, max_cells=_MAX_CELLS)
        for title, measure, columns in [*found, ("Entropy", "share of ln 3", shares)]
    ]


def _perplexities(files: RunFiles, names: Sequence[str]) -> list[Panel]:
    """Perplexities of the evaluations over training; that of the first has the plain name."""
    lines = [
        (name, series(files.metrics, f"eval/{name}/perplexity" if number else "eval/perplexity"))
        for number, name in enumerate(names)
    ]
    if not is_followed(lines):
        return []
    return [line_panel("Perplexity over training", lines, "perplexity per token", 1.0, "Perplexity over training")]


# ---- comparison


def comparison(files: RunFiles) -> Section | None:
    """Networks of several architectures side by side."""
    title, found = "Architectures compared", files.architectures
    if not found.get("rows"):
        return told_if_damaged(title, "comparison", "The comparison is", files, ARCHITECTURES)
    rows, panels = compared_rows(found), _scatters(found)
    figures = [Figure("architectures", panels, columns=3)] if panels else []
    shapes = [shape["name"] for shape in found["shapes"]]
    quality, costs = quality_table(found), {shape: cost_table(found, shape) for shape in shapes}
    html = fill(
        "comparison", quality=quality, costs=costs, figures=figures, reference=found["reference"],
        left_out=[row["label"] for row in rows if row["trained"] == NOT_RETRAINED and row["quality"]],
        conditions=conditions_text(found), token_unit=token_unit(files),
    )  # fmt: skip
    of = f"n = {len(rows)} networks, one seed each"
    return Section(title, "comparison", html, figures, [quality, *costs.values()], of=of)


def _scatters(found: Mapping[str, Any]) -> list[Panel]:
    """Perplexity against measured time, or multiply-accumulates, for every evaluated set and shape."""
    panels = []
    for title, axis, points in quality_points(found):
        x, y = (padded(values) for values in ([x for x, _, _ in points], [y for _, y, _ in points]))
        dots = [(row["label"], [Dot(x, y, f"{row['label']}: {y:.2f}")]) for x, y, row in points]
        axes = Axis(axis, x), Axis("perplexity per token", y, start=1.0)
        panels.append(Panel(title, Scatter(dots), *axes, f"Perplexity against {axis}: {title}", 1.16))
    return panels
