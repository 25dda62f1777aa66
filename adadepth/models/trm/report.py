"""Section of the report on test-time breadth: accuracy of several rollouts of a puzzle against that of more steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from adadepth.metrics.significance import LEVEL
from adadepth.metrics.unit_costs import format_macs
from adadepth.models.trm.breadth import CHOICES
from adadepth.report.figure import Axis, Figure, Lines, Panel, pad_range
from adadepth.report.quality_pairs import RELEVANT_SCORE
from adadepth.report.run_files import RunFiles
from adadepth.report.section import Section, SectionEntry
from adadepth.report.svg import render_charts
from adadepth.report.table import Column, Table, format_p_value, make_number_format, to_html, to_text

BREADTH = "breadth.json"
_MEASURES = (*CHOICES, "mean", "any")  # of the rollouts of a puzzle: one that is chosen, a random one, any one


def build_breadth_table(breadth: Mapping[str, Any]) -> Table:
    """Build the table of accuracies by number of rollouts and steps, with depth alone at the same number of steps.

    Args:
        breadth: Contents of breadth.json.
    """
    share, depth = make_number_format(3), {row["steps"]: row for row in breadth["depth"]}
    rows = []
    for row in breadth["rows"]:
        cells = {key: row[key] for key in ("rollouts", "steps", "updates", "macs", *_MEASURES)}
        cells |= {f"{key}_error": row[f"{key}_error"] for key in _MEASURES}
        cells |= {f"{key}_p": row[key + "_against_depth"]["p"] for key in CHOICES}
        alone = depth[row["rollouts"] * row["steps"]]
        rows.append(cells | {f"depth_{key}": alone[key] for key in ("updates", "macs", "accuracy", "error")})
    columns = [
        Column("rollouts", "rollouts"),
        Column("steps", "steps"),
        Column("updates", "run", make_number_format(1)),
        Column("macs", "MACs", format_macs),
        Column("depth_updates", where="file"),
        Column("depth_macs", where="file"),
        Column("depth_accuracy", "depth alone", share),
        Column("depth_error", "se", share),
    ]
    for key in _MEASURES:
        columns += [Column(key, key, share), Column(f"{key}_error", "se", share)]
        columns += [Column(f"{key}_p", "p", format_p_value)] if key in CHOICES else []
    return Table("breadth", columns, rows)


def describe_breadth(breadth: Mapping[str, Any]) -> str:
    """Return the sentences that say whether rollouts are better than as many steps of depth alone."""
    compared = [
        (row, by, row[f"{by}_against_depth"]) for row in breadth["rows"] if row["rollouts"] > 1 for by in CHOICES
    ]
    if not compared:
        return "One rollout is no breadth, so there is nothing to compare."
    relevant = [test for *_, test in compared if test["p"] < LEVEL and abs(test["difference"]) >= RELEVANT_SCORE]
    better = sum(test["difference"] > 0 for test in relevant)
    row, by, test = max(compared, key=lambda entry: float(entry[2]["difference"]))
    bounds = "" if test["low"] is None else f" [{test['low']:+.3f}, {test['high']:+.3f}]"
    return (
        f"At an equal number of steps, several rollouts are significantly better than depth alone in {better} of "
        f"{len(compared)} comparisons, and worse in {len(relevant) - better} ({breadth['n']:,} puzzles, one seed, p "
        f"corrected by Holm). The largest difference is {test['difference']:+.3f}{bounds}, p "
        f"{format_p_value(test['p'])}: {row['rollouts']} rollouts of {row['steps']} steps, chosen by {by}."
    )


def format_breadth(breadth: Mapping[str, Any]) -> str:
    """Format the comparison of breadth and depth as text.

    Args:
        breadth: Contents of breadth.json.
    """
    header = f"accuracy of several rollouts on {breadth['set']}, noise {breadth['noise']:g}, {breadth['exit_rule']}"
    table = build_breadth_table(breadth)
    short = replace(table, columns=[column for column in table.columns if not column.key.endswith(("_error", "_p"))])
    return f"{header}\n\n{to_text(short)}\n\n{describe_breadth(breadth)}"


def build_breadth_figure(breadth: Mapping[str, Any]) -> Figure:
    """Build the figure of accuracy against steps run: one panel per choice, one line per number of rollouts."""
    alone = [(math.log2(row["updates"]), row["accuracy"]) for row in breadth["depth"]]
    panels = []
    for key in (*CHOICES, "any"):
        curves = [("depth alone", alone)]
        for rollouts in sorted({row["rollouts"] for row in breadth["rows"]}):
            chosen = [row for row in breadth["rows"] if row["rollouts"] == rollouts]
            curves.append((f"{rollouts} rollouts", [(math.log2(row["updates"]), row[key]) for row in chosen]))
        x, y = zip(*(point for _, points in curves for point in points), strict=True)
        powers = range(math.floor(min(x)), math.ceil(max(x)) + 1)
        axis = Axis("steps run per puzzle, all rollouts", pad_range(x), powers, [str(2**power) for power in powers])
        title = "any rollout is right (upper bound)" if key == "any" else f"answer chosen by {key}"
        panels.append(Panel(title, Lines(curves), axis, Axis("solved puzzles", pad_range(y))))
    return Figure("breadth", panels, columns=2)


def build_breadth_section(files: RunFiles) -> Section | None:
    """Build the section on rollouts, or return None if the run evaluated none."""
    if not (breadth := files.of(BREADTH)):
        return None
    figure, table = build_breadth_figure(breadth), build_breadth_table(breadth)
    note = (
        f"Before every step, a rollout adds noise of standard deviation {breadth['noise']:g} to the reasoning state. "
        f"Each rollout exits by {breadth['exit_rule']}. Depth alone is one rollout without noise that may run as many "
        "steps as all rollouts together. p is that of the difference from depth alone, corrected by Holm."
    )
    html = Markup('<p>{}</p>\n<p class="note">{}</p>\n').format(describe_breadth(breadth), note)
    html += render_charts(figure) + to_html(table)
    sample = f"n = {breadth['n']:,} puzzles of {breadth['set']}"
    return Section("Breadth against depth", "breadth", html, [figure], [table], of=sample)


BREADTH_SECTION = SectionEntry(165, build_breadth_section)
