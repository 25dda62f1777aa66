"""Report page of a bench: the recommended method of each task, with supporting tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from adadepth.contrib.bench.comparisons import (
    build_comparisons_table,
    format_outcome,
    has_fixed_depth,
)
from adadepth.contrib.bench.descriptions import COLUMNS
from adadepth.contrib.bench.file_types import BenchResultFields
from adadepth.contrib.bench.measures import (
    QUALITY_SHARES,
    RELEVANT_SHARE,
    HaltingMethod,
    OperatingPoints,
    collect_points,
    compute_threshold,
    find_requirements,
    select_equal_compute,
    select_equal_steps,
)
from adadepth.contrib.bench.recommendations import (
    ADVISED_SHARE,
    RECOMMENDATIONS,
    Results,
    TaskOutcome,
    build_recommendations_figure,
    build_recommendations_table,
    evaluate_all,
    evaluate_tasks,
    find_full_depth_compute,
    format_advice,
    format_estimate,
    format_omitted_budgets,
    format_recommendation,
    format_recommendations,
    format_seeds,
    format_setting,
    format_share_cells,
    format_uncounted_predictions,
    list_seeds,
    list_sets,
    list_tasks,
    make_error_columns,
    select_task,
)
from adadepth.contrib.bench.saved_compute import build_saved_table
from adadepth.errors import CheckpointError
from adadepth.metrics.exit_pareto import SETTLED
from adadepth.metrics.significance import average_over_seeds
from adadepth.report.figure import Axis, Figure, Lines, Panel, pad_range
from adadepth.report.page_writer import write_page
from adadepth.report.run_files import write_json
from adadepth.report.section import Section, fill
from adadepth.report.table import (
    ABSENT,
    Column,
    Table,
    format_duration,
    make_number_format,
    percent,
    plain,
    signed,
    text,
    to_text,
)
from adadepth.runtime.console import say
from adadepth.runtime.files import write_atomic
from adadepth.runtime.json_files import read_json

_PACKAGE = "adadepth.contrib.bench"

RESULTS = "results"


def write_bench(folder: Path, results: Results, descriptions: Mapping[str, str], missing: Sequence[str]) -> Path:
    """Write the results of a bench as JSON files, results.md and a page with figures; return the path of the page.

    Args:
        folder: Folder of the bench.
        results: Results from `adadepth.contrib.bench.runs.read_bench_result`.
        descriptions: Description of each task, by its name.
        missing: Names of the runs that failed.
    """
    for result in results:
        write_json(folder / RESULTS / f"{result['name']}.json", result)
    write_atomic(folder / "results.md", to_markdown(results, descriptions))
    sections = build_bench_sections(results, descriptions, missing)
    title, subtitle = "Benchmark of adaptive depth", "Recommended method for each task"
    return write_page(folder, sections, title=title, subtitle=subtitle, sources=[f"{RESULTS}/"], owner="this bench")


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Read all result files of a bench in a folder. A damaged file is skipped with a warning."""
    results = []
    for file in sorted(folder.glob("*.json")):
        try:
            results.append(read_result(file))
        except CheckpointError as error:
            say(f"warning: {error}; that run will be repeated")
    return results


def read_result(file: Path) -> dict[str, Any]:
    """Read the result file of one run of a bench.

    Raises:
        CheckpointError: If the file is damaged. The message names the file and the field.
    """
    result: dict[str, Any] = read_json(file, BenchResultFields)
    problem = None
    if result["name"] != file.stem:
        problem = f"name must be {file.stem!r}, not {result['name']!r}"
    elif not result["sets"]:
        problem = "sets must hold a set"
    elif not next(iter(result["sets"].values()))["readings"].get("run"):
        problem = f"sets.{next(iter(result['sets']))}.readings.run must hold a point"
    if problem is not None:
        raise CheckpointError(f"{file}: is damaged: {problem}")
    return result


def format_bench(results: Results, descriptions: Mapping[str, str]) -> str:
    """Format the recommended method of every task for the console."""
    lines = [to_text(build_recommendations_table(evaluate_tasks(results), descriptions)), ""]
    return plain("\n".join([*lines, *(f"{task}: {sentence}" for task, sentence in format_recommendations(results))]))


def build_bench_sections(results: Results, descriptions: Mapping[str, str], missing: Sequence[str]) -> list[Section]:
    """Build the sections of a bench's page.

    They are the recommendations, the comparisons, the meaning of the columns, each task with its figure and tables, and
    the runs.
    """
    outcomes = evaluate_tasks(results)
    recommendations, comparisons = build_recommendations_table(outcomes, descriptions), build_outcomes_table(results)
    figure = build_recommendations_figure(outcomes)
    first = fill(
        "bench:recommendations",
        _PACKAGE,
        figure=figure,
        table=recommendations,
        recommendations=format_recommendations(results),
        share=ADVISED_SHARE,
        missing=missing,
        summary=_format_summary(outcomes),
        seeds=format_seeds(results),
    )
    answers = format_comparisons(results)
    second = fill("bench:comparisons", _PACKAGE, answers=answers, table=comparisons, share=ADVISED_SHARE)
    sections = [
        Section("Recommended methods", RECOMMENDATIONS, first, [figure], [recommendations]),
        Section("Comparison of groups of methods", "comparisons", second, tables=[comparisons]),
        Section("Columns of the tables", "columns", fill("bench:columns", _PACKAGE, columns=COLUMNS), of=None),
    ]
    for task in list_tasks(results):
        runs = select_task(results, task)
        task_figure = build_task_figure(task, select_equal_steps(runs))
        titled = [pair for name in list_sets(runs) for pair in build_set_tables(task, name, runs)]
        html = fill(
            "bench:task",
            _PACKAGE,
            about=descriptions.get(task, ""),
            omitted=_format_task_omissions(runs),
            figure=task_figure,
            tables=titled,
        )
        sample = f"n = {len(runs)} runs, seeds {', '.join(map(str, list_seeds(runs)))}"
        tables = [table for _, table in titled]
        sections.append(Section(task, format_anchor(task), html, [task_figure], tables, of=sample))
    table = build_conditions_table(results)
    return [
        *sections,
        Section("Runs and machines", "conditions", fill("bench:conditions", _PACKAGE, table=table), tables=[table]),
    ]


def build_set_tables(task: str, set_name: str, runs: Results) -> list[tuple[str, Table]]:
    """Build the tables of one evaluation set: equal steps, equal compute, saved compute, exit rules, overthinking."""
    name, title = f"{task}_{set_name}", f"{task}, set {set_name}"
    equal_steps, equal_compute = select_equal_steps(runs), select_equal_compute(runs)
    tables = [(f"{title}: methods after equal steps", build_task_table(name, set_name, equal_steps))]
    if equal_compute:
        table = build_task_table(f"{name}_equal_compute", set_name, equal_compute)
        tables.append((f"{title}: methods after equal training compute", table))
    tables += [(f"{title}: saved compute", table) for table in build_saved_table(task, set_name, equal_steps)]
    tables += [(f"{title}: exit rules", table) for table in build_rules_table(task, set_name, equal_steps)]
    overthinking = build_overthinking_table(task, set_name, equal_steps)
    return tables + [(f"{title}: overthinking", table) for table in overthinking]


def _format_task_omissions(runs: Results) -> list[str]:
    """Format which methods or counts are left out on each evaluation set of a task, and why."""
    equal_steps = select_equal_steps(runs)
    formats = (format_omitted_budgets, format_uncounted_predictions)
    sentences = [(name, format_set(equal_steps, name)) for name in list_sets(runs) for format_set in formats]
    return [f"Set {name}. {sentence}" for name, sentence in sentences if sentence is not None]


def format_anchor(task: str) -> str:
    """Return the HTML anchor of a task's section on the page."""
    return f"task-{task.replace('_', '-')}"


# ---- comparisons


def format_comparisons(results: Results) -> list[tuple[str, str, str]]:
    """Format each research question with the answer of papers and the answer of the tasks."""
    return [
        (outcome.comparison.question, outcome.comparison.literature, format_outcome(outcome))
        for outcome in evaluate_all(evaluate_tasks(results))
    ]


def build_outcomes_table(results: Results) -> Table:
    """Build the table of comparisons between groups of methods, at the recommended threshold."""
    outcomes = evaluate_tasks(results)
    comparisons = evaluate_all(outcomes)
    full_depth = {outcome.task: outcome.full_depth for outcome in outcomes}
    return build_comparisons_table(
        comparisons, full_depth, {outcome.task: outcome.requirements for outcome in outcomes}
    )


# ---- a task


def build_task_table(title: str, set_name: str, runs: Results) -> Table:
    """Build the table of one evaluation set: best score of each method, and its compute at several thresholds."""
    points = collect_points(runs, set_name)
    by_share = (
        {share: find_requirements(points, compute_threshold(points, share)) for share in QUALITY_SHARES}
        if points
        else {}
    )
    columns = [
        Column("method", "method", text, "text"),
        Column("exit_rule", "exit rule", text, "text"),
        *make_error_columns("score", "best score"),
        *(
            column
            for share in QUALITY_SHARES
            for column in make_error_columns(f"compute_{share:g}", f"compute for {share:.0%}")
        ),
        Column("updates", f"updates for {ADVISED_SHARE:.0%}", make_number_format(2)),
        Column("spearman", "correlation with difficulty", signed),
        Column("setting", "selected setting", text, "text"),
        Column("seeds"),
    ]
    full_depth = find_full_depth_compute(points) if points else 1.0
    rows = []
    for method, by_seed in points.items():
        best_points = [max(seed_points, key=lambda point: float(point["score"])) for seed_points in by_seed.values()]
        score = average_over_seeds(
            [point["score"] for point in best_points], [point["score_error"] for point in best_points]
        )
        row: dict[str, Any] = {"method": method.name, "exit_rule": method.rule, "seeds": len(by_seed)}
        row |= {"score": score.mean, "score_error": score.error, "score_text": format_estimate(score, 4)}
        for share, requirements in by_share.items():
            if (requirement := requirements[method]) is not None:
                row |= format_share_cells(f"compute_{share:g}", requirement, full_depth)
        if (requirement := by_share[ADVISED_SHARE][method]) is not None:
            row |= {
                "updates": requirement["updates"].mean,
                "spearman": requirement["spearman"],
                "setting": format_setting(requirement),
            }
        rows.append(row)
    rows.sort(key=lambda row: (row.get(f"compute_{ADVISED_SHARE:g}", 9.0), -row["score"]))
    return Table(title, columns, rows)


def build_rules_table(task: str, set_name: str, runs: Results) -> list[Table]:
    """Build the table of exit rules on one evaluation set: score, controls, calibration error and time.

    The list is empty if no rule was evaluated on this set.
    """
    rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for run in runs:
        for row in run["sets"].get(set_name, {}).get("rules", ()):
            rows.setdefault((run["way"], row["rule"]), []).append(row)
    batches = sorted({batch for rule_rows in rows.values() for row in rule_rows for batch in row["time"]}, key=int)
    batch_sizes = dict.fromkeys([*batches[:1], *batches[-1:]])
    columns = [
        Column("method", "method", text, "text"),
        Column("exit_rule", "exit rule", text, "text"),
        Column("updates", "updates", make_number_format(2)),
        Column("above", "updates above the oracle", "{:+.2f}".format),
        Column("score", "score", make_number_format(4)),
        Column("online", "score online", make_number_format(4)),
        Column("permuted", "score, permuted exits", make_number_format(4)),
        Column("mixture", "score, two fixed depths", make_number_format(4)),
        Column("spearman", "correlation with difficulty", signed),
        Column("calibration", "calibration error", make_number_format(3)),
        *(Column(f"time_{batch}", f"time, batch {batch}", percent) for batch in batch_sizes),
        Column("seeds"),
    ]
    table_rows: list[dict[str, Any]] = [
        {"method": method, "exit_rule": rule, "seeds": len(rule_rows)}
        | {key: _average_measured([row.get(key) for row in rule_rows]) for key in _RULE_VALUES}
        | {f"time_{batch}": _average_measured([row["time"].get(batch) for row in rule_rows]) for batch in batch_sizes}
        for (method, rule), rule_rows in rows.items()
    ]
    oracle = {row["method"]: row["updates"] for row in table_rows if row["exit_rule"] == SETTLED}
    for row in table_rows:
        row["above"] = row["updates"] - oracle[row["method"]] if row["method"] in oracle else None
    return [Table(f"{task}_{set_name}_exit_rules", columns, table_rows)] if table_rows else []


_RULE_VALUES = ("updates", "score", "online", "permuted", "mixture", "spearman", "calibration")


def build_overthinking_table(task: str, set_name: str, runs: Results) -> list[Table]:
    """Build the table of overthinking: each method's best fixed exit step, and the score lost by later ones.

    The list is empty if no method of this set predicts after every update.
    """
    by_method: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        if overthinking := run["sets"].get(set_name, {}).get("overthinking"):
            by_method.setdefault(run["way"], []).append(overthinking)
    columns = [
        Column("method", "method", text, "text"),
        Column("step", "best fixed number of updates", make_number_format(1)),
        Column("best", "score at the best fixed number", make_number_format(4)),
        Column("last", "score at the last update", make_number_format(4)),
        Column("lost", "correct earlier, wrong at the last update", percent),
        Column("seeds"),
    ]
    rows = [
        {"method": method, "seeds": len(method_rows)}
        | {key: _average_measured([row.get(key) for row in method_rows]) for key in ("step", "best", "last", "lost")}
        for method, method_rows in by_method.items()
    ]
    return [Table(f"{task}_{set_name}_overthinking", columns, rows)] if rows else []


def _average_measured(values: Iterable[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return fmean(measured) if measured else None


_MAX_CURVES = 8


def build_task_figure(task: str, runs: Results) -> Figure:
    """Plot score against compute for fixed depths and the cheapest halting methods, with one panel for each set."""
    panels = [_build_panel(set_name, collect_points(runs, set_name)) for set_name in list_sets(runs)]
    return Figure(task, [panel for panel in panels if panel is not None])


def _build_panel(set_name: str, points: OperatingPoints) -> Panel | None:
    if not points:
        return None
    curves = {method: _build_curve(by_seed) for method, by_seed in points.items()}
    requirements = find_requirements(points, compute_threshold(points, ADVISED_SHARE))

    def rank(method: HaltingMethod) -> tuple[bool, float]:
        requirement = requirements[method]
        return not has_fixed_depth(method), 1e30 if requirement is None else requirement["compute"].mean

    shown_methods = sorted(curves, key=rank)[:_MAX_CURVES]
    labelled_curves = [(method.label, curves[method]) for method in shown_methods]
    curve_points = [point for _, curve in labelled_curves for point in curve]
    x, y = (pad_range([point[axis] for point in curve_points]) for axis in (0, 1))
    first = next(point for by_seed in points.values() for seed_points in by_seed.values() for point in seed_points)
    has_macs = first["compute"] == first.get("macs")
    title = "multiply-accumulates of a unit" if has_macs else "updates of a unit (mean)"
    description = f"{set_name}: score against {title} for {'; '.join(label for label, _ in labelled_curves)}"
    return Panel(set_name, Lines(labelled_curves), Axis(title, x), Axis("score", y), description, 1.3)


def _build_curve(by_seed: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[tuple[float, float]]:
    """Return (compute, score) of each setting of a method, averaged over seeds."""
    by_setting: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for seed_points in by_seed.values():
        for point in seed_points:
            by_setting.setdefault((point["rule"], *point["setting"]), []).append(point)
    complete = [points for points in by_setting.values() if len(points) == len(by_seed)]
    return sorted(
        (fmean(point["compute"] for point in points), fmean(point["score"] for point in points)) for points in complete
    )


# ---- conditions and Markdown


def build_conditions_table(results: Results) -> Table:
    """Build the table of a bench's runs: seed, training time, settings, commit and machine."""
    columns = [
        Column("run", "run", text, "text"),
        Column("seed"),
        Column("time", "training", format_duration),
        Column("overrides", "settings", text, "text"),
        Column("commit", "commit", text, "text"),
        Column("machine", "machine", text, "text"),
    ]
    rows = [
        {
            "run": result["name"],
            "seed": result["seed"],
            "time": result["seconds"],
            "overrides": " ".join(result["overrides"]),
            "commit": (result["commit"] or "")[:8],
            "machine": _format_machine(result["hardware"] or {}),
        }
        for result in results
    ]
    return Table("conditions", columns, rows)


def _format_machine(hardware: Mapping[str, Any]) -> str:
    gpus = ", ".join(map(str, hardware.get("gpus") or ()))
    size = f"{hardware.get('cpus')} CPUs, {hardware.get('threads')} threads"
    return gpus or ", ".join(filter(None, (hardware.get("processor"), size)))


def to_markdown(
    results: Results, descriptions: Mapping[str, str], locate_figure: Callable[[str], str] = "figures/{}.svg".format
) -> str:
    """Format the page of a bench as Markdown.

    Args:
        results: Results from `adadepth.contrib.bench.runs.read_bench_result`.
        descriptions: Description of each task, by its name.
        locate_figure: Function from the name of a figure to its file, relative to the page.
    """
    outcomes = evaluate_tasks(results)
    share = percent(ADVISED_SHARE)
    comparisons = format_comparisons(results)
    lines = [
        "# Benchmark of adaptive depth: which method to use",
        "",
        "This benchmark measures how much compute methods of adaptive depth and networks of fixed depth need for equal "
        f"quality. For each task, the first table recommends the cheapest method that reaches {share} of the task's "
        f"best score ({format_seeds(results)}). {_format_summary(outcomes)}",
        "",
        "| kind of task | recommended method | reason |",
        "| --- | --- | --- |",
        *(_format_advice_row(outcome, descriptions.get(outcome.task, "")) for outcome in outcomes),
        "",
        *_format_figure(build_recommendations_figure(outcomes), locate_figure),
        "",
        "The thresholds of exit rules are selected on one half of the examples, and compute and score are measured "
        "on the other half. The measured score of a method may therefore be below the required score, which `†` marks. "
        "Mean depths that are set after training are compared only with methods that have a score on this other half. "
        "An error (±) is one standard error over seeds and examples. Compute is interpolated between the cheapest "
        "setting that reaches the required score and the next cheaper one. The mark `≈` stands for compute between two "
        "separately trained networks, which no network has. The compute of full depth is the compute of the most "
        "expensive method of the task.",
        "",
        "The command `python adadepth/run.py --config-name depth_bench` runs the benchmark. The module "
        "`adadepth/contrib/bench/measures.py` defines how a method is recommended and how significance is tested.",
        "",
        "## Recommended methods",
        "",
        *_format_table(build_recommendations_table(outcomes, descriptions)),
        "",
        "## Comparison of groups of methods",
        "",
        "Each comparison is between two groups of methods, and each group is represented by its cheapest method "
        f"that reaches {share} of the best score of the task. Differences over seeds are tested by Welch's t. The "
        "p-value is corrected for the selection of the cheapest method from a larger group, and for the number of "
        "tasks (Holm). A group in which no method reaches this score is tested on its best score. A difference below "
        f"{percent(RELEVANT_SHARE)} of the compute of full depth is not relevant. The table of recommended methods is "
        "corrected for all pairs of methods, so a method in its list of differences that are not significant may still "
        "differ in the comparison of groups.",
        "",
        *(f"- **{question}** {literature} **Result**: {answer}" for question, literature, answer in comparisons),
        "",
        *_format_table(build_outcomes_table(results)),
        "",
        "## Columns of the tables",
        "",
        *(f"- **{name}**: {meaning}" for name, meaning in COLUMNS),
    ]
    for task in list_tasks(results):
        runs = select_task(results, task)
        figure = build_task_figure(task, select_equal_steps(runs))
        lines += ["", f"## {task}", "", descriptions.get(task, ""), "", *_format_figure(figure, locate_figure), ""]
        lines += [line for sentence in _format_task_omissions(runs) for line in (sentence, "")]
        for set_name in list_sets(runs):
            for title, table in build_set_tables(task, set_name, runs):
                lines += [f"### {title}", "", *_format_table(table), ""]
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _format_summary(outcomes: Sequence[TaskOutcome]) -> str:
    """Format on which tasks adaptive depth needs less compute than fixed depth."""
    first, *_ = evaluate_all(outcomes)
    return format_outcome(first)


def _format_advice_row(outcome: TaskOutcome, description: str) -> str:
    """Format the table row with the recommended method of a task."""
    advice = format_advice(outcome, quote="`")
    method, reason = (ABSENT, format_recommendation(outcome)) if advice is None else advice
    kind = description.partition(". ")[0].rstrip(".")
    task = f"{kind} (`{outcome.task}`)" if kind else f"`{outcome.task}`"
    return f"| {task} | {method} | {reason} |"


def _format_figure(figure: Figure, locate_figure: Callable[[str], str]) -> list[str]:
    if not figure.panels:
        return []
    description = "; ".join(panel.description for panel in figure.panels)
    return [f"![{description}]({locate_figure(figure.name)})"]


def _format_table(table: Table) -> list[str]:
    columns = table.of("view", "page")
    cells = [[_format_cell(column, row) for column in columns] for row in table.rows]
    alignments = ["---" if column.kind != "number" else "--:" for column in columns]
    return [f"| {' | '.join(line)} |" for line in ([column.heading for column in columns], alignments, *cells)]


def _format_cell(column: Column, row: Mapping[str, Any]) -> str:
    value = row.get(column.key)
    return column.absent if value is None else column.write(value).replace("|", "\\|")
