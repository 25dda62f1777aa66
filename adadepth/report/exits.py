"""Report sections on early exits: statistics of every step, and quality of exit rules against compute."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adadepth.metrics.exit_pareto import (
    CONTROL,
    X_AXES,
    batches,
    format_pareto_axes,
    format_score_title,
    name_units,
    row_cost,
    warnings,
)
from adadepth.metrics.metric_names import definition
from adadepth.report.compute_cost import contains_one, format_rule, format_speed
from adadepth.report.depth_by_class import list_unavailable
from adadepth.report.difficulty import build_correlation_table
from adadepth.report.figure import (
    Axis,
    Curves,
    Dot,
    Figure,
    Heat,
    Lines,
    Panel,
    Points,
    Scatter,
    build_depth_axis,
    pad_range,
)
from adadepth.report.halting import curve
from adadepth.report.run_files import EXIT_RULES, EXITS, PARETO, RunFiles, write_json
from adadepth.report.section import Section, SectionEntry, explain_damage, fill
from adadepth.report.table import (
    Column,
    Table,
    Where,
    has_values,
    make_number_format,
    number,
    percent,
    plain,
    spread,
    text,
    to_csv,
    to_text,
)
from adadepth.runtime.files import write_atomic

NOT_MEASURED = "not measured"
_LARGEST_LOSS = 700.0  # the exponential of a larger one is no float


def list_exit_facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (name, text) of every value in the step summary that describes a whole evaluated set."""
    at_exit, halting, calibration = summary["exit"], summary["halting"], summary["calibration"]
    facts = [(f"{name} at exit", f"{value:.4f}") for name, value in at_exit.get("quality", {}).items()]
    if "loss" in at_exit:
        facts.append(("loss at exit", f"{at_exit['loss']:.4f}"))
    facts.append(("updates", f"{spread(at_exit)}, median {at_exit['median']:g} of at most {summary['max_steps']}"))
    if halting:
        facts.append((f"expected steps ({halting['truncation']})", spread(halting["expected_steps"])))
        facts.append(("entropy of the halting distribution", f"{spread(halting['entropy'])} nats"))
    if "kl" in halting:
        direction = "KL(posterior, prior)" if halting["kl_direction"] == "posterior_prior" else "KL(prior, posterior)"
        expected = f"the prior expects {halting['prior_expected_steps']:.2f} steps"
        facts.append((direction, f"{spread(halting['kl'])} nats; {expected}"))
    if confidence := calibration.get("confidence"):
        facts.append(("expected calibration error of the confidence at exit", f"{confidence['ece']:.3f}"))
    if halting_calibration := calibration.get("halting"):
        facts.append(
            (
                "halting distribution against first right step",
                f"{halting_calibration['total_variation']:.3f} (total variation)",
            )
        )
        facts.append(("never right at any step", percent(halting_calibration["never_correct"])))
    return facts


def _list_metrics(qualities: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the names of the metrics, without a score that equals another metric everywhere."""
    names = list(dict.fromkeys(name for quality in qualities for name in quality))
    metrics = [name for name in names if name != "score"]
    is_copy = any(all(quality.get(name) == quality.get("score") for quality in qualities) for name in metrics)
    return metrics if is_copy else names


def build_step_table(name: str, summary: Mapping[str, Any]) -> Table:
    """Build the table of exit share, halting distribution, quality and loss after every step of the network."""
    metrics = _list_metrics([row["quality"] for row in summary["steps"] if "quality" in row])
    columns = [
        Column("step", "step k"),
        Column("compute", "compute", percent),
        Column("n", "exit here"),
        Column("share", "share", percent),
        Column("posterior", "halting distribution", make_number_format(3)),
        Column("prior", "prior", make_number_format(3)),
        Column("halting_probability", "halting probability", make_number_format(3)),
        *(
            Column(metric, metric, make_number_format(4), where="everywhere" if metric in metrics else "file")
            for metric in summary["exit"].get("quality", {})
        ),
        Column("loss", "loss", make_number_format(4)),
    ]
    rows = [{**row.get("quality", {}), **row} for row in summary["steps"]]
    # Readers see no empty columns; the file has all of them.
    columns = [column if has_values(column, rows) else replace(column, where="file") for column in columns]
    return Table(f"steps_{name}", columns, rows)


def build_exit_quality_table(summary: Mapping[str, Any]) -> Table:
    """Build the table of compute and quality at every exit, for the console.

    It has no rows if the model does not predict after every step.
    """
    is_text, most = summary["problem"] == "language_model", summary["max_steps"]
    rows = [row for row in summary["steps"] if "loss" in row]
    metrics = _list_metrics([row["quality"] for row in rows if "quality" in row])
    has_compute = all("compute" in row for row in rows)  # runs of older versions have none
    columns = [
        Column("step", f"exit (of {most})"),
        Column("compute", "compute", percent) if has_compute else Column("updates", "updates", percent),
        Column("share", "exit here", percent),
        *(Column(metric, metric, make_number_format(3)) for metric in metrics),
        Column("loss", "loss", make_number_format(3)),
        *([Column("perplexity", "perplexity", make_number_format(2))] if is_text else []),
    ]
    return Table(
        "exit_quality",
        columns,
        [
            {
                **row.get("quality", {}),
                **row,
                "updates": row["step"] / most,
                "perplexity": math.exp(min(row["loss"], _LARGEST_LOSS)),
            }
            for row in rows
        ],
    )


def build_exit_class_table(set_name: str, summary: Mapping[str, Any]) -> Table:
    """Build the table of mean and standard deviation of the exit step for each class of sequences."""
    columns = [
        Column("class", "class", text, "text", remark="definition"),
        Column("n"),
        Column("mean", "exit step", make_number_format(2)),
        Column("std", "sd", make_number_format(2)),
        Column("expected_steps", "expected steps", make_number_format(2)),
    ]
    rows = [
        {"class": name, "definition": definition(name), **statistics} for name, statistics in summary["classes"].items()
    ]
    columns = [column if has_values(column, rows) else replace(column, where="file") for column in columns]
    return Table(f"exit_classes_{set_name}", columns, rows)


def format_exits(summary: Mapping[str, Any]) -> str:
    """Format a step summary as text: overall values, a line per step, and the reason for each absent value.

    Args:
        summary: Result of `summarise_steps`.
    """
    facts = [plain(f"{name}: {value}") for name, value in list_exit_facts(summary)]
    units = name_units(summary)
    lines = [f"exits: {summary['n']:,} {units}", *facts, "", to_text(build_step_table("", summary))]
    lines.append(f"quality and loss as if all {units} exited at that step")
    return "\n".join([*lines, *list_unavailable(summary)])


# ---- exit rules


def build_study_table(studies: Mapping[str, Mapping[str, Any]]) -> Table:
    """Build the table that compares exit rules: quality, and the shares of layers, compute and time."""
    rows = [(name, row) for name, study in studies.items() for row in study["rows"]]
    metrics = list(dict.fromkeys(metric for _, row in rows for metric in row["quality"]))
    timed = sorted({batch for study in studies.values() for batch in batches(study)}, key=int)
    online: Where = "everywhere" if any("online" in row for _, row in rows) else "file"
    graded: Where = "everywhere" if any("spearman" in row for _, row in rows) else "file"
    shows_score = len(metrics) > 2 or "loss" in metrics  # the mean of the others, or minus the loss
    columns = [
        Column("rule", "rule", format_rule, "text"),
        Column("set", where="file"),
        Column("kind", where="file"),
        Column("draws", where="file"),
        *(
            Column(
                metric,
                metric,
                make_number_format(4),
                where="file" if metric == "score" and not shows_score else "everywhere",
            )
            for metric in metrics
        ),
        Column("score_std", "sd over random draws", make_number_format(4)),
        Column("permuted_score", "permuted exits", make_number_format(4)),
        Column("permuted_std", where="file"),
        Column("mixture_score", "two fixed depths", make_number_format(4)),
        Column("mixture_std", where="file"),
        Column("oracle_updates", "updates from oracle", make_number_format(2)),
        Column("oracle_early", where="file"),
        Column("oracle_late", where="file"),
        Column("difficulty_correlation", "correlation with difficulty", make_number_format(2), where=graded),
        Column("online_score", "score when executed", make_number_format(4), where=online),
        Column("online_updates", "updates when executed", make_number_format(2), where=online),
        Column("mean_updates", "updates", make_number_format(2)),
        Column("layer_ratio", "full / mean updates", make_number_format(2)),
        Column("macs", where="file"),
        Column("macs_ratio", "compute ratio", make_number_format(2)),
        *_build_time_columns(timed),
        Column("pareto", "Pareto set", text, "text", where="view"),
        *(Column(f"pareto/{axis}", where="file") for axis in (*X_AXES, *(f"seconds/{batch}" for batch in timed))),
    ]
    return Table("exit_rules", columns, [_build_study_row(name, row, timed) for name, row in rows])


def _build_time_columns(timed: Sequence[str]) -> list[Column]:
    if not timed:
        return [Column("time_ratio", "time ratio", where="view", absent=NOT_MEASURED)]
    columns = []
    for batch in timed:
        columns.append(Column(f"seconds/{batch}", f"ms, batch {batch}", _format_milliseconds, absent=NOT_MEASURED))
        columns.append(Column(f"time_ratio/{batch}", "time ratio", make_number_format(2), absent=NOT_MEASURED))
        columns.append(Column(f"time_ratio_range/{batch}", "range", _format_range, "text", where="view"))
        columns += [Column(f"time_ratio_{end}/{batch}", where="file") for end in ("low", "high")]
    return columns


def _format_range(limits: Sequence[float]) -> str:
    return f"{limits[0]:.2f} to {limits[1]:.2f}{', no difference' if contains_one(limits) else ''}"


def _format_milliseconds(seconds: float) -> str:
    return number(1000 * seconds, 3)


def build_saved_table(name: str, study: Mapping[str, Any]) -> Table:
    """Build the table of quality at given shares of saved compute; it has no rows for runs of earlier versions.

    A rule without a value has no measured point on one side of every share, and is left out.
    """
    saved = study.get("saved_compute") or {"shares": [], "rows": []}
    write = make_number_format(3 if saved.get("measure") == "perplexity" else 4)
    columns = [
        Column("rule", "rule", text, "text"),
        Column("full", "full depth", write),
        *(Column(f"saved_{share:g}", f"{percent(share)} saved", write) for share in saved["shares"]),
        Column("points", "measured thresholds"),
    ]
    rows = [
        {"rule": row["rule"], "full": saved["full"], "points": row["points"]}
        | {f"saved_{share:g}": value for share, value in zip(saved["shares"], row["values"], strict=True)}
        for row in saved["rows"]
        if any(value is not None for value in row["values"])
    ]
    return Table(f"saved_compute_{name}", columns, rows)


_CONTROLS = ("permuted", "mixture")


def _build_study_row(name: str, row: Mapping[str, Any], timed: Sequence[str]) -> dict[str, Any]:
    axes = (*X_AXES, *(f"seconds/{batch}" for batch in timed))
    keys = ("seconds", "time_ratio", "time_ratio_range")
    times = {f"{key}/{batch}": row.get(key, {}).get(batch) for key in keys for batch in timed}
    for batch, (low, high) in row.get("time_ratio_range", {}).items():
        times |= {f"time_ratio_low/{batch}": low, f"time_ratio_high/{batch}": high}
    flat = {key: value for key, value in row.items() if key not in ("time_ratio", "time_ratio_range", "pareto")}
    flat |= {f"oracle_{key}": value for key, value in row.get("from_oracle", {}).items()}
    flat |= {f"{kind}_std": row.get(kind, {}).get("quality_std", {}).get("score") for kind in _CONTROLS}
    flat["difficulty_correlation"] = row.get("spearman", {}).get("value")
    scores = {f"{kind}_score": row.get(kind, {}).get("quality", {}).get("score") for kind in (*_CONTROLS, "online")}
    spread, updates = row.get("quality_std", {}).get("score"), row.get("online", {}).get("mean_updates")
    derived = {"set": name, "pareto": format_pareto_axes(row), "score_std": spread, "online_updates": updates, **scores}
    return {
        **row["quality"],
        **flat,
        **times,
        **derived,
        **{f"pareto/{axis}": int(axis in row["pareto"]) for axis in axes},
    }


def build_screen_table(study: Mapping[str, Any]) -> Table:
    """Build the table of exit rules for a screen of 80 columns; `build_study_table` has all columns, for the report.

    The quality is the only metric, the loss of a text, or else the score. A star marks the Pareto front of quality and
    compute. Fixed steps that were not listed are shown if they are on this front.
    """
    metrics = [metric for metric in study["rows"][0]["quality"] if metric != "score"]
    quality = "loss" if "loss" in metrics else metrics[0] if len(metrics) == 1 else "score"
    columns = [
        Column("rule", "rule", text, "text"),
        Column("quality", quality, make_number_format(4)),
        Column("permuted", "permuted exits", make_number_format(4)),
        Column("mean_updates", "updates", make_number_format(2)),
        Column("compute", "compute", percent),
    ]
    rows = [
        {
            "rule": f"{format_rule(row['rule'])}{' *' if 'macs' in row['pareto'] else ''}",
            "quality": row["quality"].get(quality),
            "permuted": row.get("permuted", {}).get("quality", {}).get(quality),
            "mean_updates": row["mean_updates"],
            "compute": 1 / row["macs_ratio"],
        }
        for row in study["rows"]
        if row["kind"] != CONTROL or "macs" in row["pareto"]
    ]
    return Table("exit_rules", columns, rows)


def format_exit_study(study: Mapping[str, Any]) -> str:
    """Format a comparison of exit rules on one data set as text.

    Args:
        study: Result of `study` or of `add_timings`.
    """
    lines = [
        f"{format_score_title(study)}; {count_units(study)}, {study['max_steps']} steps",
        "",
        to_text(build_screen_table(study)),
        "*: no other rule and no fixed exit is better with the same compute",
        f"permuted exits: the same exits shuffled over the {name_units(study)}",
        f"oracle: uses the labels; times, controls and more columns: the report, {EXIT_RULES} and {PARETO}",
    ]
    lines += [plain(describe_overthinking(study))] if describe_overthinking(study) else []
    if any("online" in row for row in study["rows"]):
        lines.append(
            "executed: the rules were also executed, so that exits change the context of other tokens; see the report"
        )
    timing = ", ".join(f"{key} {value}" for key, value in study.get("timing", {}).items())
    lines += [f"time: {timing or NOT_MEASURED}", *(f"warning: {line}" for line in warnings(study))]
    return "\n".join([*lines, *([plain(f"advice: {format_advice(study)}")] if format_advice(study) else [])])


def count_units(study: Mapping[str, Any]) -> str:
    """Format the number of tokens or sequences on which exit rules were compared."""
    fitted = f", and exit rules are fitted on {study['fitted_on']:,} others" if "fitted_on" in study else ""
    if "drawn_of" not in study:
        return f"{study['n']:,} {name_units(study)}{fitted}"
    return f"{study['n']:,} {name_units(study)}, a sample of {study['drawn_of']:,}{fitted}"


def build_difficulty_stop_table(name: str, study: Mapping[str, Any]) -> Table:
    """Build the table of the mean exit step of each exit rule by range of difficulty.

    It has no rows if difficulty is unknown.
    """
    groups = study.get("groups", {})
    columns = [
        Column("rule", "exit step, mean", format_rule, "text"),
        *(Column(group, group.removeprefix("difficulty "), make_number_format(2)) for group in groups),
        Column("difficulty_correlation", "rank correlation", make_number_format(2)),
    ]
    rows = [
        {"rule": row["rule"], **row["by_difficulty"], "difficulty_correlation": row.get("spearman", {}).get("value")}
        for row in study["rows"]
        if row.get("by_difficulty") and not row["rule"].startswith("fixed")
    ]
    return Table(f"exit_rules_difficulty_{name}".rstrip("_"), columns, rows)


def describe_overthinking(study: Mapping[str, Any]) -> str:
    """Describe the quality that updates after the best step lose; return an empty text if it is unknown."""
    overthinking = study.get("overthinking")
    if not overthinking:
        return ""
    lost = (
        f"; {percent(overthinking['lost'])} are right at an earlier step and wrong at the last one"
        if "lost" in overthinking
        else ""
    )
    return (
        f"best fixed step: {overthinking['step']} of {study['max_steps']}, score {overthinking['best']:.4f}, "
        f"{overthinking['gap']:.4f} above the last step's{lost}"
    )


def format_advice(study: Mapping[str, Any]) -> str:
    """Format the recommended exit rule and its savings; return an empty text if there is no recommendation."""
    advice = study.get("advice")
    if not advice:
        return ""
    rule, fixed = advice["rule"], advice["fixed"]
    is_full = rule["rule"] == f"fixed:{study['max_steps']}"
    setting = f"full depth for all {name_units(study)}" if is_full else _format_setting(rule["rule"], study)
    is_text = study.get("problem") == "language_model"
    quality_kept = f"{advice['keep']:.0%} of full depth's {'likelihood of a token' if is_text else 'score'}"
    sentences = [
        f"use {setting}, the cheapest rule that keeps {quality_kept} on {advice['chosen_on']:,} {name_units(study)}: "
        f"{_format_spending(rule, study)}",
        f"on {advice['told_on']:,} others, score {rule['score']:.4f}, at full depth {advice['full']:.4f}",
    ]
    if "difference" in advice:
        measured = "score" if is_text else "right"
        interval = f" ± {advice['interval']:.4f}" if "interval" in advice else ""
        sentences[-1] += f" ({measured}: {advice['difference']:+.4f}{interval})"
    if rule["rule"] != fixed["rule"]:
        sentences.append(
            f"the fixed depth {fixed['rule']} keeps it, too, with {_format_spending(fixed, study)}, score "
            f"{fixed['score']:.4f}"
        )
    replayed = ["all scores are replayed"] if any("online" in row for row in study["rows"]) else []
    return "; ".join([*sentences, *replayed])


def _format_setting(rule: str, study: Mapping[str, Any]) -> str:
    """Format an exit rule as a command-line setting.

    If the model has no setting for it, the result is the setting that evaluates the rule.
    """
    return f"model.exit_rule={rule}" if study.get("has_setting", True) else f"'exit_rules=[{rule}]'"


def _format_spending(advised: Mapping[str, Any], study: Mapping[str, Any]) -> str:
    spending = (
        f"{advised['mean_updates']:.2f} of {study['max_steps']} updates, {percent(advised['work'])} of the compute"
    )
    ratios = advised.get("time_ratio") or {}
    if not ratios:
        return spending
    ranges = advised.get("time_ratio_range", {})
    speeds = " and ".join(
        f"{format_speed(ratio, ranges.get(batch, ()))} at batch size {batch}" for batch, ratio in ratios.items()
    )
    return f"{spending}, against full depth {speeds}"


def write_exit_study(directory: Path, studies: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the comparison of exit rules to exit_rules.json and, as one table over all data sets, to pareto.csv."""
    write_json(directory / EXIT_RULES, {"sets": studies})
    write_atomic(directory / PARETO, to_csv(build_study_table(studies)))


_SHARE = "share or probability"


# ---- steps of an evaluation


def exits(files: RunFiles) -> Section | None:
    """Build the report section on quality and exits at every step of the evaluated sets."""
    title, sets = "Steps and exits", files.of(EXITS).get("sets", {})
    if not sets:
        return explain_damage(title, "exits", "Steps and exits are", files, EXITS)
    panels = {name: build_step_panels(summary, files.run.get("trained_steps")) for name, summary in sets.items()}
    tables = {name: _build_step_tables(name, summary) for name, summary in sets.items()}
    set_contents = [
        {**summary, "units": name_units(summary)}
        | {"name": name, "facts": list_exit_facts(summary), "panels": panels[name], "tables": tables[name]}
        for name, summary in sets.items()
    ]
    all_tables = [table for set_tables in tables.values() for table in set_tables.values()]
    html = fill("exits:exits", sets=set_contents)
    return Section(title, "exits", html, _build_figures("exits", panels), all_tables, of=format_set_sizes(sets))


def format_set_sizes(sets: Mapping[str, Mapping[str, Any]]) -> str:
    """Format the number of tokens or sequences of every evaluated set."""
    return "n = " + ", ".join(f"{summary['n']:,} {name_units(summary)} of {name}" for name, summary in sets.items())


def _build_figures(name: str, panels: Mapping[str, Sequence[Panel]]) -> list[Figure]:
    """Return a figure with the panels of all data sets, whose titles name the set if there are several."""
    titled_panels = [
        panel if len(panels) == 1 else replace(panel, title=f"{set_name}: {panel.title}")
        for set_name, set_panels in panels.items()
        for panel in set_panels
    ]
    return [Figure(name, titled_panels, columns=max(map(len, panels.values())))] if titled_panels else []


def _build_step_tables(name: str, summary: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        key: key.replace("updates_", "exit step, ").replace("expected_steps_", "expected steps, ")
        for key in summary["spearman"]
    }
    tables = {"steps": build_step_table(name, summary), "classes": build_exit_class_table(name, summary)}
    if names:
        correlations = {names[key]: value for key, value in summary["spearman"].items()}
        tables["spearman"] = build_correlation_table(
            f"exit_correlations_{name}", "rank correlation", "of", correlations
        )
    return tables


def build_step_panels(summary: Mapping[str, Any], trained: int | None = None) -> list[Panel]:
    """Build the panels of exit shares, score and loss by step, and of the reliability of confidence.

    The panel of exit shares includes the halting distribution.

    Args:
        summary: Result of `summarise_steps`.
        trained: Maximum number of steps in training, if the evaluation has a different one.
    """
    depth = summary["max_steps"]
    panels = []
    for title, unit, lines in _build_step_curves(summary, trained):
        values = [value for _, points in lines for _, value in points]
        span = (0.0, 1.05 * max(values) or 1.0) if unit == _SHARE else pad_range(values)
        axes = build_depth_axis("step k", depth), Axis(unit, span)
        panels.append(Panel(title, Lines(lines), *axes, f"{title}, steps 1 to {depth}"))
    if bins := summary["calibration"].get("confidence", {}).get("bins"):
        reliability: Curves = [
            ("accuracy at this confidence", [(row["confidence"], row["accuracy"]) for row in bins]),
            ("calibrated", [(0.0, 0.0), (1.0, 1.0)]),
        ]
        axes = Axis("confidence at exit", (0, 1)), Axis("share right", (0, 1.03))
        panels.append(Panel("Reliability at exit", Lines(reliability), *axes, "Share right by confidence at exit"))
    return panels


def _build_step_curves(summary: Mapping[str, Any], trained: int | None) -> list[tuple[str, str, Curves]]:
    """Return title and curves of every chart of a quantity over steps, if there are data for it."""
    steps, calibration, units = summary["steps"], summary["calibration"].get("halting"), name_units(summary)
    first = [] if calibration is None else list(enumerate(calibration["first_correct"], start=1))
    mass: Curves = [
        (f"{units} that exit at k", curve(steps, "step", "share")),
        ("mean halting distribution", curve(steps, "step", "posterior")),
        ("prior", curve(steps, "step", "prior")),
        (f"{units} first right at k", first),
    ]
    quality = [{"step": row["step"], **row.get("quality", {})} for row in steps]
    score = summary["exit"].get("quality", {}).get("score")
    scores = _split_at_trained_steps(f"all {units} exit at k", curve(quality, "step", "score"), trained)
    if score is not None and scores[0][1]:
        scores.append(("own exits", [(1, score), (summary["max_steps"], score)]))
    loss = "mean squared error" if summary["problem"] == "regression" else "mean loss (nats)"
    charts: list[tuple[str, str, Curves]] = [
        ("Exit steps and halting distribution", _SHARE, mass),
        ("Score of every step", "score", scores),
        ("Loss of every step", loss, _split_at_trained_steps("loss", curve(steps, "step", "loss"), trained)),
    ]
    return [(title, unit, lines) for title, unit, lines in charts if any(points for _, points in lines)]


def _split_at_trained_steps(name: str, points: Points, trained: int | None) -> list[tuple[str, Points]]:
    """Split a curve over steps into the steps used in training and a separate curve for later steps."""
    if trained is None or not any(step > trained for step, _ in points):
        return [(name, points)]
    inside = [point for point in points if point[0] <= trained]
    outside = [point for point in points if point[0] >= trained]
    return [(name, inside), (f"beyond the {trained} steps of training", outside)]


# ---- exit rules


def build_exit_rules_section(files: RunFiles) -> Section | None:
    """Build the report section on the quality of exit rules against their compute."""
    title, sets = "Exit rules", files.of(EXIT_RULES).get("sets", {})
    if not sets:
        return explain_damage(title, "exit-rules", "The study of exit rules is", files, EXIT_RULES)
    panels = {name: build_study_panels(study) for name, study in sets.items()}
    stops = {name: _build_stop_panels(study) for name, study in sets.items()}
    study_contents = [
        {
            **study,
            "name": name,
            "units": name_units(study),
            "counted": count_units(study),
            "ran": any("online" in row for row in study["rows"]),
            "is_timed": bool(batches(study)),
            "panels": panels[name][: None if not position else 1],
            "stops": stops[name] if not position else [],
            "warnings": warnings(study),
            "overthinking_text": describe_overthinking(study),
            "advice_text": format_advice(study),
            "difficulty": build_difficulty_stop_table(name, study),
            "saved": build_saved_table(name, study),
            "table": build_study_table({name: study}),
        }
        for position, (name, study) in enumerate(sets.items())
    ]
    figures = [*_build_figures("exit_rules", panels), *_build_figures("exit_steps", stops)]
    html = fill("exits:exit_rules", studies=study_contents)
    graded = [table for name, study in sets.items() if (table := build_difficulty_stop_table(name, study)).rows]
    saved = [table for name, study in sets.items() if (table := build_saved_table(name, study)).rows]
    tables = [build_study_table(sets), *saved, *graded]
    return Section(title, "exit-rules", html, figures, tables, of=format_set_sizes(sets))


def build_study_panels(study: Mapping[str, Any]) -> list[Panel]:
    """Build scatter panels of exit rules: score against updates and measured times.

    The panel against compute is in the first section of the page.
    """
    axes = ["mean_updates", *(f"seconds/{batch}" for batch in batches(study))]
    return [panel for axis in axes if (panel := build_study_panel(study, axis)) is not None]


def _build_stop_panels(study: Mapping[str, Any]) -> list[Panel]:
    """Build the panel of the share of tokens or sequences that exit at each step, for adaptive rules and oracles."""
    rows = [row for row in study["rows"] if "from_oracle" in row and not row["rule"].startswith("fixed")]
    if not rows:
        return []
    columns = [[row["shares"][step] for row in rows] for step in range(study["max_steps"])]
    names = Axis("", (len(rows) - 0.4, -0.6), range(len(rows)), [row["rule"] for row in rows])
    title, units = "Exit steps of each rule", name_units(study)
    tall, axis = max(1.0, 0.09 * len(rows)), build_depth_axis("exit step", study["max_steps"])
    return [Panel(title, Heat(columns, f"share of {units}", 1), axis, names, f"{title}: shares of {units}", tall)]


def build_study_panel(study: Mapping[str, Any], axis: str) -> Panel | None:
    """Build the scatter panel of exit rules: score against one cost, or None if the cost was not measured.

    Args:
        study: Comparison of exit rules on one data set.
        axis: Name of the cost; see `row_cost`.
    """
    groups = _group_dots(study, axis)
    if not groups:
        return None
    dots = [dot for group in groups.values() for dot in group]
    controls = _get_permuted_points(study, axis)
    x, y = (pad_range(values) for values in zip(*((dot.x, dot.y) for dot in dots), *controls, strict=True))
    front = sorted((dot.x, dot.y) for dot in dots if dot.marked)
    members = [row["rule"] for row in study["rows"] if axis in row["pareto"]]
    title = _get_axis_title(axis, name_units(study).removesuffix("s"))
    return Panel(
        f"Against {title}",
        Scatter(list(groups.items()), [front], controls),
        Axis(title, x),
        Axis(format_score_title(study), y),
        f"{format_score_title(study)} against {title} for every exit rule. Pareto set: {', '.join(members)}",
        1.24,
    )


def _get_axis_title(axis: str, unit: str) -> str:
    """Return the title of a cost axis, with its unit; times are those of whole sequences."""
    titles = {"mean_updates": f"executed updates per {unit} (mean)", "macs": f"compute per {unit} (MACs)"}
    return titles.get(axis) or f"milliseconds per sequence, batch {axis.partition('/')[2]}"


def _group_dots(study: Mapping[str, Any], axis: str) -> dict[str, list[Dot]]:
    """Group the points (cost, score) of exit rules by the rule's name without parameters. Times are in ms."""
    scale = 1000.0 if axis.startswith("seconds") else 1.0
    groups: dict[str, list[Dot]] = {}
    for row in study["rows"]:
        x, y = row_cost(row, axis), row["quality"].get("score")
        if x is not None and y is not None:
            dot = Dot(scale * x, y, f"{row['rule']}: {y:.3f}", marked=axis in row["pareto"])
            groups.setdefault(row["rule"].partition(":")[0], []).append(dot)
    return groups


def _get_permuted_points(study: Mapping[str, Any], axis: str) -> Sequence[tuple[float, float]]:
    """Return (cost, score) of the controls with permuted exits; none for time, which they do not measure."""
    if axis.startswith("seconds"):
        return []
    points = []
    for row in study["rows"]:
        control = row.get("permuted", {})
        x = control.get("macs") if axis == "macs" else row["mean_updates"]
        if (y := control.get("quality", {}).get("score")) is not None:
            points.append((float(x), float(y)))
    return points


SECTIONS = (SectionEntry(180, exits), SectionEntry(190, build_exit_rules_section))
