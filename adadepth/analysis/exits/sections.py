"""The sections of the report about exits: steps of an evaluation, exit rules against compute, several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from adadepth.analysis.exits.study import X_AXES, batches, cost, in_pareto_sets, score_title, warnings
from adadepth.analysis.measure.seeds import headline_metrics
from adadepth.analysis.measure.sequence_classes import definition
from adadepth.analysis.render import charts
from adadepth.analysis.render.scatter import Dot, scatter_chart
from adadepth.analysis.render.sections import curve

Curves = list[tuple[str, list[tuple[int, float]]]]
SHARE = "share or probability"


# ---- steps of an evaluation


def exit_sets(exits: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the page shows of every evaluated set: the summary with its drawings and its table of classes."""
    return [
        {
            **summary,
            "name": name,
            "facts": exit_facts(summary),
            "charts": step_charts(summary),
            "class_rows": _class_rows(summary),
        }
        for name, summary in exits.get("sets", {}).items()
    ]


def exit_facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The figures of a set that are one number, with their names, as far as there are any."""
    at_exit, halting, calibration = summary["exit"], summary["halting"], summary["calibration"]
    found = [(f"{name} at exit", f"{value:.4f}") for name, value in at_exit.get("quality", {}).items()]
    if "loss" in at_exit:
        found.append(("loss at exit", f"{at_exit['loss']:.4f}"))
    found.append(("updates", f"{_spread(at_exit)}, median {at_exit['median']:g} of at most {summary['max_steps']}"))
    if halting:
        found.append((f"expected steps ({halting['truncation']})", _spread(halting["expected_steps"])))
        found.append(("entropy of the halting distribution", f"{_spread(halting['entropy'])} nats"))
    if "kl" in halting:
        direction = "KL(posterior, prior)" if halting["kl_direction"] == "posterior_prior" else "KL(prior, posterior)"
        expected = f"the prior expects {halting['prior_expected_steps']:.2f} steps"
        found.append((direction, f"{_spread(halting['kl'])} nats; {expected}"))
    if confidence := calibration.get("confidence"):
        found.append(("expected calibration error of the confidence at exit", f"{confidence['ece']:.3f}"))
    if of_halting := calibration.get("halting"):
        found.append(
            ("halting distribution against first right step", f"{of_halting['total_variation']:.3f} (total variation)")
        )
        found.append(("never right at any step", f"{100 * of_halting['never_correct']:.1f}%"))
    return found


def _spread(found: Mapping[str, Any]) -> str:
    return f"{found['mean']:.2f} +- {found['std']:.2f}"


def _class_rows(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "definition": definition(name), **described} for name, described in summary["classes"].items()
    ]


def step_curves(summary: Mapping[str, Any]) -> list[tuple[str, str, Curves]]:
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
    scores: Curves = [("everyone exits at k", curve(quality, "step", "score"))]
    if score is not None and scores[0][1]:
        scores.append(("own exits", [(1, score), (summary["max_steps"], score)]))
    loss = "mean squared error" if summary["problem"] == "regression" else "mean loss (nats)"
    found = [
        ("Exit steps and halting distribution", SHARE, mass),
        ("Score of every step", "score", scores),
        ("Loss of every step", loss, [("loss", curve(steps, "step", "loss"))]),
    ]
    return [(title, unit, lines) for title, unit, lines in found if any(points for _, points in lines)]


def step_charts(summary: Mapping[str, Any]) -> list[tuple[str, Markup]]:
    """Exit shares with the halting distribution, score and loss of every step, and the reliability of confidence."""
    depth, drawn = summary["max_steps"], []
    for title, unit, lines in step_curves(summary):
        values = [value for _, points in lines for _, value in points]
        span = (0.0, 1.05 * max(values) or 1.0) if unit == SHARE else charts.padded(values)
        frame = charts.Frame((0.5, depth + 0.5), span, "step k", unit, charts.depth_ticks(depth))
        drawn.append((title, charts.line_chart(frame, lines, f"{title}, steps 1 to {depth}")))
    if bins := summary["calibration"].get("confidence", {}).get("bins"):
        frame = charts.Frame((0, 1), (0, 1.03), "confidence at exit", "share right")
        reliability: list[tuple[str, charts.Points]] = [
            ("right among those so confident", [(row["confidence"], row["accuracy"]) for row in bins]),
            ("calibrated", [(0.0, 0.0), (1.0, 1.0)]),
        ]
        drawn.append(
            ("Reliability at exit", charts.line_chart(frame, reliability, "Share right by confidence at exit"))
        )
    return drawn


# ---- exit rules


def study_sets(exit_rules: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the page shows of every studied set: rows, drawings, warnings. Sets after the first get one drawing only."""
    sets = exit_rules.get("sets", {})
    return [
        {
            **study,
            "name": name,
            "rows": [{**row, "pareto_text": in_pareto_sets(row)} for row in study["rows"]],
            "ran": any("online" in row for row in study["rows"]),
            "batches": batches(study),
            "columns": quality_columns(study),
            "charts": study_charts(study, study_axes(study)[: None if not position else 1]),
            "warnings": warnings(study),
        }
        for position, (name, study) in enumerate(sets.items())
    ]


def quality_columns(study: Mapping[str, Any]) -> list[str]:
    """The metrics that rows have, `score` only if it is a mean of several."""
    names = dict.fromkeys(name for row in study["rows"] for name in row["quality"])
    return [name for name in names if name != "score" or len(names) > 2]


def axis_title(axis: str) -> str:
    """What a cost axis measures, with its unit."""
    titles = {"mean_updates": "executed updates per example (mean)", "macs": "multiply-accumulates per example"}
    return titles.get(axis) or f"milliseconds per example, batch {axis.partition('/')[2]}"


def study_points(study: Mapping[str, Any], axis: str) -> dict[str, list[tuple[float, float, Mapping[str, Any]]]]:
    """By rule without its parameters: (cost, score, row), of the rows that have both; times in milliseconds."""
    scale = 1000.0 if axis.startswith("seconds") else 1.0
    groups: dict[str, list[tuple[float, float, Mapping[str, Any]]]] = {}
    for row in study["rows"]:
        x, y = cost(row, axis), row["quality"].get("score")
        if x is not None and y is not None:
            groups.setdefault(row["rule"].partition(":")[0], []).append((scale * x, y, row))
    return groups


def permuted_points(study: Mapping[str, Any], axis: str) -> list[tuple[float, float]]:
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


def study_axes(study: Mapping[str, Any]) -> list[str]:
    """The cost axes that there are numbers for."""
    return [*X_AXES, *(f"seconds/{batch}" for batch in batches(study))]


def study_charts(study: Mapping[str, Any], axes: Sequence[str]) -> list[tuple[str, Markup]]:
    """A scatter plot of the score against each cost."""
    drawn = []
    for axis in axes:
        groups = study_points(study, axis)
        if not groups:
            continue
        points = [point for group in groups.values() for point in group]
        controls = permuted_points(study, axis)
        spots = [*((x, y) for x, y, _ in points), *controls]
        x_range, y_range = (charts.padded(values) for values in zip(*spots, strict=True))
        frame = charts.Frame(x_range, y_range, axis_title(axis), score_title(study), height=charts.HEIGHT + 60)
        front = sorted((x, y) for x, y, row in points if axis in row["pareto"])
        dots = [(family, [_dot(point, axis) for point in group]) for family, group in groups.items()]
        background = [Dot(x, y) for x, y in controls]
        drawing = scatter_chart(frame, dots, _sentence(study, axis), front, background)
        drawn.append((f"Against {axis_title(axis)}", drawing))
    return drawn


def _dot(point: tuple[float, float, Mapping[str, Any]], axis: str) -> Dot:
    x, y, row = point
    return Dot(x, y, f"{row['rule']}: {y:.3f}", marked=axis in row["pareto"])


def _sentence(study: Mapping[str, Any], axis: str) -> str:
    members = [row["rule"] for row in study["rows"] if axis in row["pareto"]]
    return f"{score_title(study)} against {axis_title(axis)} for every exit rule. Pareto set: {', '.join(members)}"


# ---- seeds


def seed_rows(seeds: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The headline metrics of several seeds, with the values in the order of the seeds."""
    order: Sequence[str] = [str(seed) for seed in seeds.get("seeds", [])]
    return [
        {"name": name, **found, "ordered": [found["values"].get(seed) for seed in order]}
        for name, found in (headline_metrics(seeds) if seeds else {}).items()
    ]
