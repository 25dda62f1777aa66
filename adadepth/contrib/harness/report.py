"""Scores of the harness by task and exit rule: table, text, files, figure and report section."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adadepth.report.figure import Axis, Figure, Lines, Panel, Points, pad_range
from adadepth.report.run_files import RunFiles, write_json
from adadepth.report.section import Section, SectionEntry, fill
from adadepth.report.table import Column, Table, make_number_format, percent, text, to_csv, to_text
from adadepth.runtime.files import write_atomic

HARNESS, HARNESS_TABLE = "harness.json", "harness.csv"
_TYPES = {
    "max_updates": int,
    "max_length": int,
    "batch_size": int,
    "limit": int | None,
    "num_fewshot": int | None,
    "lm_eval": str,
    "rows": list[dict[str, Any]],
    "cut": dict[str, dict[str, int]],
}


def list_metrics(results: Mapping[str, Any]) -> list[str]:
    """Return the names of the metrics of all tasks, in the order of the harness."""
    return list(dict.fromkeys(metric for row in results["rows"] for metric in row["scores"]))


def build_score_table(results: Mapping[str, Any]) -> Table:
    """Build the table of scores, depth, compute and seconds, with one row for each task and exit rule.

    Args:
        results: Content of harness.json.
    """
    metrics = list_metrics(results)
    columns = [
        Column("task", write=text, kind="text"),
        Column("rule", "exit rule", text, "text"),
        Column("mean_updates", f"updates of {results['max_updates']}", make_number_format(2)),
        Column("compute", "compute", percent),
        Column("seconds", write=make_number_format(1)),
        *(Column(f"{metric}_shown", metric, text, "text", where="view") for metric in metrics),
        *(Column(name, where="file") for metric in metrics for name in (metric, f"{metric}_stderr")),
        *(Column(name, where="file") for name in ("n", "tokens")),
        Column("version", write=text, where="file"),
    ]
    return Table("harness", columns, [{**row, **_spread_scores(row["scores"])} for row in results["rows"]])


def _spread_scores(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value, the standard error and the display text of every metric as values of a table row."""
    values: dict[str, Any] = {}
    for metric, score in scores.items():
        values[metric], values[f"{metric}_stderr"] = score["value"], score["stderr"]
        if score["value"] is not None:
            error = "" if score["stderr"] is None else f" ± {score['stderr']:.4f}"
            values[f"{metric}_shown"] = f"{score['value']:,.4f}{error}"
    return values


def format_scores(results: Mapping[str, Any]) -> str:
    """Format the scores as text: a table, and the conditions under which they hold.

    Args:
        results: Content of harness.json.
    """
    lines = [f"lm-evaluation-harness {results['lm_eval']}: {_describe_conditions(results)}"]
    lines += [
        f"warning: {name}: {counts['cut']:,} of {counts['requests']:,} texts are longer than the maximum length; the "
        "harness dropped their first tokens"
        for name, counts in results["cut"].items()
    ]
    return "\n\n".join(["\n".join(lines), to_text(build_score_table(results))])


def _describe_conditions(results: Mapping[str, Any]) -> str:
    """Return the conditions of an evaluation in one line."""
    documents = "all documents" if results["limit"] is None else f"the first {results['limit']:,} documents"
    shots = "" if results["num_fewshot"] is None else f", {results['num_fewshot']} solved examples"
    sizes = f"at most {results['max_length']:,} tokens, batches of {results['batch_size']}"
    return f"{documents} of every task{shots}, {sizes}"


def flatten_scores(results: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores, depth and compute under the names `harness/TASK/RULE/METRIC`, for run.json and trackers."""
    metrics: dict[str, float] = {}
    for row in results["rows"]:
        prefix = f"harness/{row['task']}/{row['rule']}"
        values = {metric: score["value"] for metric, score in row["scores"].items()}
        values |= {name: row[name] for name in ("mean_updates", "compute", "seconds")}
        metrics |= {f"{prefix}/{name}": value for name, value in values.items() if value is not None}
    return metrics


def write_scores(directory: Path, results: Mapping[str, Any]) -> None:
    """Write harness.json and harness.csv."""
    write_json(directory / HARNESS, results)
    write_atomic(directory / HARNESS_TABLE, to_csv(build_score_table(results)))


def build_score_figure(results: Mapping[str, Any]) -> Figure:
    """Build the figure of score over compute, with a panel per metric and a line per task.

    The metric of a task is its first one.
    """
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {}
    greater: dict[str, bool | None] = {}
    for row in results["rows"]:
        metric, score = next(iter(row["scores"].items()))
        if score["value"] is not None and row["compute"] is not None:
            curves.setdefault(metric, {}).setdefault(row["task"], []).append((row["compute"], score["value"]))
            greater[metric] = score["greater"]
    computes = [x for tasks in curves.values() for points in tasks.values() for x, _ in points]
    panels = [
        _build_panel(metric, greater[metric], {task: sorted(points) for task, points in tasks.items()}, max(computes))
        for metric, tasks in curves.items()
    ]
    return Figure("harness", panels)


def _build_panel(metric: str, greater: bool | None, curves: Mapping[str, Points], most: float) -> Panel:
    """Build the panel of one metric, whose axis of compute reaches to the largest compute of all panels."""
    title = metric if len(curves) > 1 else f"{next(iter(curves))}: {metric}"
    better = {True: ", higher is better", False: ", lower is better", None: ""}[greater]
    x = Axis("compute, share of full depth", (0.0, 1.04 * max(most, 1.0)), percent=True)
    y = Axis(metric, pad_range([value for points in curves.values() for _, value in points]))
    return Panel(f"{title}{better}", Lines(list(curves.items())), x, y, f"{title} over compute{better}")


def build_harness_section(files: RunFiles) -> Section | None:
    """Build the report section with the scores of every task under every exit rule."""
    results = files.of(HARNESS, _TYPES)
    if not results or not results["rows"]:
        return None
    table, figure = build_score_table(results), build_score_figure(results)
    html = fill(
        "harness",
        "adadepth.contrib.harness",
        harness=results,
        conditions=_describe_conditions(results),
        table=table,
        figure=figure,
    )
    counts = {row["task"]: row["n"] for row in results["rows"] if row["n"] is not None}
    sample = "n = " + ", ".join(f"{count:,} documents of {task}" for task, count in counts.items())
    return Section("Scores of lm-evaluation-harness", "harness", html, [figure], [table], of=sample)


SECTION = SectionEntry(10, build_harness_section, alone=HARNESS, subtitle="lm-evaluation-harness")
