"""The sections of the report about an architecture: its search, and networks of several architectures compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from adadepth.analysis.architecture.comparison import (
    NOT_RETRAINED,
    compared_rows,
    conditions_text,
    measured_qualities,
    quality_points,
    set_title,
)
from adadepth.analysis.architecture.search import (
    EVALUATIONS,
    LETTERS,
    OPERATIONS,
    QUALITIES,
    architecture_history,
    is_fixed,
)
from adadepth.analysis.files import RunFiles, series
from adadepth.analysis.render import charts
from adadepth.analysis.render.colors import OPERATION_COLORS, text_on
from adadepth.analysis.render.scatter import Dot, scatter_chart
from adadepth.analysis.render.sections import MAX_ROWS, steps_range

OPERATION_TITLES = ("attention", "feed-forward", "identity")
BLOCK = "block (1 at the input)"
_FRAMES, _MAX_CELLS = 6, 360

History = Sequence[tuple[int, Mapping[str, Any]]]


def architecture_section(files: RunFiles) -> dict[str, Any] | None:
    """What the page shows of an architecture: its operations, the evaluations, the search; None without one."""
    described = files.halting.get("architecture")
    if described is None:
        return None
    history = [] if is_fixed(described) else architecture_history(files.metrics)
    evaluations = files.halting.get("evaluations", {})
    return {
        **described,
        "is_fixed": is_fixed(described),
        "letters": letters(described["string"]),
        "kept": described["blocks"] - described["string"].count("-"),
        "operations": list(zip(OPERATIONS, OPERATION_TITLES, LETTERS, strict=True)),
        "evaluations": evaluations,
        "evaluation_rows": evaluation_rows(evaluations),
        "qualities": _titled(measured_qualities([{"quality": found} for found in evaluations.values()])),
        "legend": charts.swatch_legend(list(zip(OPERATION_TITLES, OPERATION_COLORS, strict=True))),
        "now": _stack(described, "Probabilities of the operations of every block"),
        "charts": [*heat_maps(history), *_perplexities(files, list(evaluations))],
        "frames": frames(history),
        "history": _history_rows(files, history),
        "drawn": charts.thin(history, _columns(described["blocks"])),
    }


def letters(architecture: str) -> list[tuple[str, str, str]]:
    """(letter, background, text colour) of every block."""
    colors = dict(zip(LETTERS, OPERATION_COLORS, strict=True))
    return [(letter, colors[letter], text_on(colors[letter])) for letter in architecture]


def evaluation_rows(evaluations: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """The evaluations by name, with what they are."""
    return [
        {"name": name, "definition": EVALUATIONS.get(name, ""), "quality": found} for name, found in evaluations.items()
    ]


def _titled(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, QUALITIES[name]) for name in names]


def _stack(described: Mapping[str, Any], description: str) -> Markup:
    blocks = described["blocks"]
    frame = charts.Frame(
        (0.4, blocks + 0.6), (0, 1), BLOCK, "probability", charts.depth_ticks(blocks), (0, 0.25, 0.5, 0.75, 1),
        percent=True, height=charts.HEIGHT - 40,
    )  # fmt: skip
    return charts.stacked_bars(frame, described["probabilities"], OPERATION_COLORS, description)


def heat_maps(history: History) -> list[tuple[str, Markup]]:
    """The probability of each operation, and the entropy, by block and evaluation."""
    return [
        (
            title,
            charts.heat_map(
                columns, f"{title}, by block, at {len(columns)} evaluations", measure, BLOCK, 1, _MAX_CELLS
            ),
        )
        for title, measure, columns in heat_map_columns(history)
    ]


def heat_map_columns(history: History) -> list[tuple[str, str, list[tuple[int, list[float]]]]]:
    """Title, measure and (step, a share of every block) of the drawings of a search; nothing without evaluations."""
    found = [
        (
            f"Probability of {title}",
            "probability",
            [(step, [row[number] for row in now["probabilities"]]) for step, now in history],
        )
        for number, title in enumerate(OPERATION_TITLES)
    ]
    shares = [(step, [value / math.log(len(LETTERS)) for value in now["entropy"]]) for step, now in history]
    return [*found, ("Entropy", "share of ln 3", shares)] if history else []


def _columns(blocks: int) -> int:
    """How many evaluations a heat map shows, and so does the table of its numbers."""
    return max(_MAX_CELLS // blocks, 8)


def frames(history: History) -> list[tuple[str, Markup]]:
    """The probabilities of every block at up to six evaluations."""
    return [
        (f"Step {step:,}: {now['string']}", _stack(now, f"Probabilities of every block at step {step}"))
        for step, now in charts.thin(history, _FRAMES)
    ]


def _perplexities(files: RunFiles, names: Sequence[str]) -> list[tuple[str, Markup]]:
    """Perplexities of the evaluations over training; that of the first has the plain name."""
    lines = [
        (name, series(files.metrics, f"eval/{name}/perplexity" if number else "eval/perplexity"))
        for number, name in enumerate(names)
    ]
    points = [point for _, curve in lines for point in curve]
    if not points:
        return []
    span = charts.padded([value for _, value in points], floor=1.0)
    frame = charts.Frame(
        steps_range([step for step, _ in points]), span, "optimiser step", "perplexity per token",
        height=charts.HEIGHT + 20,
    )  # fmt: skip
    return [
        ("Perplexity over training", charts.line_chart(frame, lines, "Perplexity of the evaluations over training"))
    ]


def _history_rows(files: RunFiles, history: History) -> list[dict[str, Any]]:
    perplexity = dict(series(files.metrics, "eval/perplexity"))
    return [{"step": step, **now, "perplexity": perplexity.get(step)} for step, now in charts.thin(history, MAX_ROWS)]


# ---- comparison


def comparison_section(files: RunFiles) -> dict[str, Any] | None:
    """What the page shows of architectures.json: the rows and drawings; None without any."""
    comparison = files.architectures
    if not comparison.get("rows"):
        return None
    rows = compared_rows(comparison)
    return {
        **comparison,
        "rows": [{**row, "set": set_title(row.get("quality_set") or "")} for row in rows],
        "qualities": _titled(measured_qualities(rows)),
        "charts": _scatters(comparison),
        "left_out": [row["label"] for row in rows if row["trained"] == NOT_RETRAINED and row["quality"]],
        "conditions": conditions_text(comparison),
        "shape_names": [shape["name"] for shape in comparison["shapes"]],
        "is_timed": any("median" in found for row in rows for found in row["costs"].values()),
        "has_blocks": any("blocks_median" in found for row in rows for found in row["costs"].values()),
    }


def _scatters(comparison: Mapping[str, Any]) -> list[tuple[str, Markup]]:
    drawn = []
    for title, axis, points in quality_points(comparison):
        x_range, y_range = (charts.padded(values) for values in ([x for x, _, _ in points], [y for _, y, _ in points]))
        frame = charts.Frame(x_range, y_range, axis, "perplexity per token", height=charts.HEIGHT + 40)
        dots = [(row["label"], [Dot(x, y, f"{row['label']}: {y:.2f}")]) for x, y, row in points]
        drawn.append((title, scatter_chart(frame, dots, f"Perplexity against {axis}: {title}")))
    return drawn


# ---- several seeds


def architecture_seeds(seeds: Mapping[str, Any]) -> dict[str, Any] | None:
    """The architectures of several seeds, and how far they agree."""
    agreement = seeds.get("architecture_agreement")
    if agreement is None:
        return None
    operations = list(zip(OPERATIONS, OPERATION_TITLES, LETTERS, strict=True))
    return {
        **agreement,
        "rows": [(seed, letters(found)) for seed, found in agreement["strings"].items()],
        "operations": operations,
    }
