"""The sections of the report about exits: steps of an evaluation, and exit rules against compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from adadepth.analysis.depth.difficulty import correlation_table
from adadepth.analysis.depth.halting import curve
from adadepth.analysis.exits.costs import X_AXES, batches, cost, score_title, warnings
from adadepth.analysis.exits.tables import exit_class_table, exit_facts, step_table, study_table
from adadepth.analysis.files import EXIT_RULES, EXITS, RunFiles
from adadepth.analysis.render.figure import (
    Axis,
    Curves,
    Dot,
    Figure,
    Lines,
    Panel,
    Points,
    Scatter,
    depth_axis,
    padded,
)
from adadepth.analysis.render.section import Section, fill, told_if_damaged

SHARE = "share or probability"


# ---- steps of an evaluation


def exits(files: RunFiles) -> Section | None:
    """What every step, and every exit, of the evaluated sets is worth."""
    title, sets = "Steps and exits", files.exits.get("sets", {})
    if not sets:
        return told_if_damaged(title, "exits", "Steps and exits are", files, EXITS)
    panels = {name: step_panels(summary) for name, summary in sets.items()}
    tables = {name: _step_tables(name, summary) for name, summary in sets.items()}
    told = [
        {**summary, "name": name, "facts": exit_facts(summary), "panels": panels[name], "tables": tables[name]}
        for name, summary in sets.items()
    ]
    all_tables = [table for of_set in tables.values() for table in of_set.values()]
    return Section(title, "exits", fill("exits", sets=told), _figures("exits", panels), all_tables, of=_examples(sets))


def _examples(sets: Mapping[str, Mapping[str, Any]]) -> str:
    """How many examples the sets have."""
    return "n = " + ", ".join(f"{found['n']:,} examples of {name}" for name, found in sets.items())


def _figures(name: str, panels: Mapping[str, Sequence[Panel]]) -> list[Figure]:
    """The panels of all sets; of several, each panel says of which set it is."""
    drawn = [
        panel if len(panels) == 1 else replace(panel, title=f"{of}: {panel.title}")
        for of, of_set in panels.items()
        for panel in of_set
    ]
    return [Figure(name, drawn, columns=max(map(len, panels.values())))] if drawn else []


def _step_tables(name: str, summary: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        key: key.replace("updates_", "exit step, ").replace("expected_steps_", "expected steps, ")
        for key in summary["spearman"]
    }
    found = {"steps": step_table(name, summary), "classes": exit_class_table(name, summary)}
    if names:
        correlations = {names[key]: value for key, value in summary["spearman"].items()}
        found["spearman"] = correlation_table(f"exit_correlations_{name}", "rank correlation", "of", correlations)
    return found


def step_panels(summary: Mapping[str, Any]) -> list[Panel]:
    """Exit shares with the halting distribution, score and loss of every step, and the reliability of confidence."""
    depth = summary["max_steps"]
    panels = []
    for title, unit, lines in _step_curves(summary):
        values = [value for _, points in lines for _, value in points]
        span = (0.0, 1.05 * max(values) or 1.0) if unit == SHARE else padded(values)
        axes = depth_axis("step k", depth), Axis(unit, span)
        panels.append(Panel(title, Lines(lines), *axes, f"{title}, steps 1 to {depth}"))
    if bins := summary["calibration"].get("confidence", {}).get("bins"):
        reliability: Curves = [
            ("right among those so confident", [(row["confidence"], row["accuracy"]) for row in bins]),
            ("calibrated", [(0.0, 0.0), (1.0, 1.0)]),
        ]
        axes = Axis("confidence at exit", (0, 1)), Axis("share right", (0, 1.03))
        panels.append(Panel("Reliability at exit", Lines(reliability), *axes, "Share right by confidence at exit"))
    return panels


def _step_curves(summary: Mapping[str, Any]) -> list[tuple[str, str, Curves]]:
    """Title, axis title and curves over steps of every chart that there are numbers for."""
    steps, calibration = summary["steps"], summary["calibration"].get("halting")
    first = [] if calibration is None else list(enumerate(calibration["first_correct"], start=1))
    mass: Curves = [
        ("examples that exit at k", curve(steps, "step", "share")),
        ("mean halting distribution", curve(steps, "step", "posterior")),
        ("prior", curve(steps, "step", "prior")),
        ("examples first right at k", first),
    ]
    quality = [{"step": row["step"], **row.get("quality", {})} for row in steps]
    score = summary["exit"].get("quality", {}).get("score")
    scores: list[tuple[str, Points]] = [("everyone exits at k", curve(quality, "step", "score"))]
    if score is not None and scores[0][1]:
        scores.append(("own exits", [(1, score), (summary["max_steps"], score)]))
    loss = "mean squared error" if summary["problem"] == "regression" else "mean loss (nats)"
    found: list[tuple[str, str, Curves]] = [
        ("Exit steps and halting distribution", SHARE, mass),
        ("Score of every step", "score", scores),
        ("Loss of every step", loss, [("loss", curve(steps, "step", "loss"))]),
    ]
    return [(title, unit, lines) for title, unit, lines in found if any(points for _, points in lines)]


# ---- exit rules


def exit_rules(files: RunFiles) -> Section | None:
    """Quality against compute of exit rules. Sets after the first get one drawing on the page only."""
    title, sets = "Exit rules", files.exit_rules.get("sets", {})
    if not sets:
        return told_if_damaged(title, "exit-rules", "The study of exit rules is", files, EXIT_RULES)
    panels = {name: study_panels(study) for name, study in sets.items()}
    told = [
        {
            **study,
            "name": name,
            "ran": any("online" in row for row in study["rows"]),
            "is_timed": bool(batches(study)),
            "panels": panels[name][: None if not position else 1],
            "warnings": warnings(study),
            "table": study_table({name: study}),
        }
        for position, (name, study) in enumerate(sets.items())
    ]
    figures = _figures("exit_rules", panels)
    html = fill("exit_rules", studies=told)
    return Section(title, "exit-rules", html, figures, [study_table(sets)], of=_examples(sets))


def study_panels(study: Mapping[str, Any]) -> list[Panel]:
    """A scatter plot of the score against each cost that there are numbers for."""
    axes = [*X_AXES, *(f"seconds/{batch}" for batch in batches(study))]
    return [panel for axis in axes if (panel := _study_panel(study, axis)) is not None]


def _study_panel(study: Mapping[str, Any], axis: str) -> Panel | None:
    groups = _groups(study, axis)
    if not groups:
        return None
    dots = [dot for group in groups.values() for dot in group]
    controls = _permuted(study, axis)
    x, y = (padded(values) for values in zip(*((dot.x, dot.y) for dot in dots), *controls, strict=True))
    front = sorted((dot.x, dot.y) for dot in dots if dot.marked)
    members = [row["rule"] for row in study["rows"] if axis in row["pareto"]]
    return Panel(
        f"Against {_axis_title(axis)}", Scatter(list(groups.items()), front, controls),
        Axis(_axis_title(axis), x), Axis(score_title(study), y),
        f"{score_title(study)} against {_axis_title(axis)} for every exit rule. Pareto set: {', '.join(members)}", 1.24,
    )  # fmt: skip


def _axis_title(axis: str) -> str:
    """What a cost axis measures, with its unit."""
    titles = {"mean_updates": "executed updates per example (mean)", "macs": "multiply-accumulates per example"}
    return titles.get(axis) or f"milliseconds per example, batch {axis.partition('/')[2]}"


def _groups(study: Mapping[str, Any], axis: str) -> dict[str, list[Dot]]:
    """By rule without its parameters: the rows that have both cost and score; times in milliseconds."""
    scale = 1000.0 if axis.startswith("seconds") else 1.0
    groups: dict[str, list[Dot]] = {}
    for row in study["rows"]:
        x, y = cost(row, axis), row["quality"].get("score")
        if x is not None and y is not None:
            dot = Dot(scale * x, y, f"{row['rule']}: {y:.3f}", marked=axis in row["pareto"])
            groups.setdefault(row["rule"].partition(":")[0], []).append(dot)
    return groups


def _permuted(study: Mapping[str, Any], axis: str) -> Sequence[tuple[float, float]]:
    """(cost, score) of the permuted controls; none for times, which nobody measures for them."""
    if axis.startswith("seconds"):
        return []
    found = []
    for row in study["rows"]:
        control = row.get("permuted", {})
        x = control.get("macs") if axis == "macs" else row["mean_updates"]
        if (y := control.get("quality", {}).get("score")) is not None:
            found.append((float(x), float(y)))
    return found
