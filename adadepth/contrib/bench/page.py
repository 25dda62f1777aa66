"""The page of a bench: which method of allocating depth to take for which task, with its tables and figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from adadepth.contrib.bench.contests import COMPARISONS, build_comparisons_table, format_share, has_uniform_depth
from adadepth.contrib.bench.file_types import BenchResultFields
from adadepth.contrib.bench.measures import (
    QUALITY_SHARES,
    Estimate,
    HaltingMethod,
    OperatingPoints,
    average_over_seeds,
    collect_points,
    compute_best_score,
    compute_threshold,
    find_requirements,
    recommend_method,
    select_equal_compute,
    select_equal_steps,
)
from adadepth.errors import CheckpointError
from adadepth.metrics.exit_pareto import SETTLED
from adadepth.report.figure import Axis, Figure, Lines, Panel, pad_range
from adadepth.report.page_writer import write_page
from adadepth.report.run_files import write_json
from adadepth.report.section import Section, fill
from adadepth.report.table import (
    Column,
    Table,
    format_duration,
    make_number_format,
    number,
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
ADVISED_SHARE = 0.98  # share of the best score at which a method is recommended

Results = Sequence[Mapping[str, Any]]


def write_bench(folder: Path, results: Results, about: Mapping[str, str], missing: Sequence[str]) -> Path:
    """Write a JSON file per run into `results/`, results.md and the page with its figures; return the path of the page.

    Args:
        folder: Folder of the bench.
        results: Results from `adadepth.contrib.bench.runs.read_bench_result`.
        about: Description of each task, by its name.
        missing: Names of the runs that failed.
    """
    for result in results:
        write_json(folder / RESULTS / f"{result['name']}.json", result)
    write_atomic(folder / "results.md", to_markdown(results, about))
    sections = build_bench_sections(results, about, missing)
    subtitle = "Ways of allocating depth, side by side"
    return write_page(
        folder, sections, title="Which way?", subtitle=subtitle, sources=[f"{RESULTS}/"], whose="this bench"
    )


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Read the results in a folder, by name; a damaged file is named in a warning and left out."""
    results = []
    for file in sorted(folder.glob("*.json")):
        try:
            results.append(read_result(file))
        except CheckpointError as error:
            say(f"warning: {error}; that run is made anew")
    return results


def read_result(file: Path) -> dict[str, Any]:
    """Read a result of a bench.

    Raises:
        CheckpointError: Naming the file and the field that is damaged.
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


def format_bench(results: Results, about: Mapping[str, str]) -> str:
    """Format the recommended method of every task as text for the console."""
    lines = [to_text(build_advice_table(results, about)), ""]
    return plain("\n".join([*lines, *(f"{task}: {sentence}" for task, sentence in format_recommendations(results))]))


def build_bench_sections(results: Results, about: Mapping[str, str], missing: Sequence[str]) -> list[Section]:
    """Build the sections of the page: advice, comparisons, each task with its figure and tables, and conditions."""
    advice, comparisons = build_advice_table(results, about), build_outcomes_table(results)
    first = fill(
        "bench:advice",
        _PACKAGE,
        table=advice,
        recommendations=format_recommendations(results),
        keep=ADVISED_SHARE,
        missing=missing,
    )
    second = fill("bench:comparisons", _PACKAGE, comparisons=COMPARISONS, table=comparisons)
    sections = [
        Section("If your task is like this, use that", "advice", first, tables=[advice]),
        Section("What is said, and what came out", "contests", second, tables=[comparisons]),
    ]
    for task in list_tasks(results):
        runs = _select_task(results, task)
        figure = build_task_figure(task, select_equal_steps(runs))
        tables = [table for name in list_sets(runs) for table in build_set_tables(task, name, runs)]
        html = fill("bench:task", _PACKAGE, about=about.get(task, ""), figure=figure, tables=tables)
        sample = f"n = {len(runs)} runs, seeds {', '.join(map(str, list_seeds(runs)))}"
        sections.append(Section(task, format_anchor(task), html, [figure], tables, of=sample))
    table = build_conditions_table(results)
    return [
        *sections,
        Section("How it was measured", "conditions", fill("bench:conditions", _PACKAGE, table=table), tables=[table]),
    ]


def build_set_tables(task: str, set_name: str, runs: Results) -> list[Table]:
    """Build the tables of one set of a task: equal steps, equal training compute, exit rules and overthinking."""
    equal_compute = select_equal_compute(runs)
    compute_tables = (
        [build_task_table(f"{task}_{set_name}_equal_work", set_name, equal_compute)] if equal_compute else []
    )
    equal_steps = select_equal_steps(runs)
    return [
        build_task_table(f"{task}_{set_name}", set_name, equal_steps),
        *compute_tables,
        *build_rules_table(task, set_name, equal_steps),
        *build_overthinking_table(task, set_name, equal_steps),
    ]


def format_anchor(task: str) -> str:
    """Return the anchor of a task's section on the page."""
    return f"task-{task.replace('_', '-')}"


def list_tasks(results: Results) -> list[str]:
    """Return the names of the tasks in the order of the results."""
    return list(dict.fromkeys(result["task"] for result in results))


def list_sets(runs: Results) -> list[str]:
    """Return the names of the evaluated sets; thresholds are selected on the first."""
    return list(dict.fromkeys(name for run in runs for name in run["sets"]))


def list_seeds(runs: Results) -> list[int]:
    """Return the seeds of the runs in ascending order."""
    return sorted({run["seed"] for run in runs})


def _select_task(results: Results, task: str) -> list[Mapping[str, Any]]:
    return [result for result in results if result["task"] == task]


# ---- recommendations


def format_recommendations(results: Results) -> list[tuple[str, str]]:
    """Format for each task the recommended method and those not significantly different from it; see `measures`."""
    return [(task, _format_recommendation(_select_task(results, task))) for task in list_tasks(results)]


def _format_recommendation(runs: Results) -> str:
    points = _collect_first_set(runs)
    if not points:
        return "nothing has a score."
    threshold = compute_threshold(points, ADVISED_SHARE)
    requirements = find_requirements(points, threshold)
    recommendation = recommend_method(requirements)
    if recommendation is None:
        return f"no way reaches {threshold:.4f}, {percent(ADVISED_SHARE)} of the best score, with every seed."
    requirement = requirements[recommendation.method]
    assert requirement is not None
    choice = f"{recommendation.method.label} ({_format_settings(requirement)})"
    share = f"{format_share(requirement['compute'], find_full_depth_compute(points))} of the work of full depth"
    spending = f"{share}, {_format_estimate(requirement['updates'], 2)} updates"
    ties = [method.label for method in recommendation.ties]
    comparison = (
        f" Not told apart from it by work: {'; '.join(ties)}." if ties else " It is told apart from all others."
    )
    score = _format_estimate(requirement["score"], 4)
    return f"{choice}: {spending}, score {score} where {threshold:.4f} was asked for.{comparison}"


def _format_settings(requirement: Mapping[str, Any]) -> str:
    """Format the distinct settings that the seeds selected."""
    return ", ".join(sorted(set(requirement["settings"].values())))


def _format_estimate(value: Estimate, digits: int) -> str:
    return number(value.mean, digits) + ("" if value.error is None else f" ± {number(value.error, digits)}")


def build_advice_table(results: Results, about: Mapping[str, str]) -> Table:
    """Build the table of recommended methods, a row for each task with its description and compute."""
    columns = [
        Column("task", "task", text, "text", remark="about"),
        Column("take", "take", text, "text"),
        Column("setting", "stop by", text, "text"),
        Column("work", "work, share of full depth", percent),
        Column("updates", "updates", make_number_format(2)),
        Column("score", "score", make_number_format(4)),
        Column("best", "best score", make_number_format(4)),
        Column("fixed", "work, one depth for all", percent),
        Column("set", "set with", text, "text"),
    ]
    return Table(
        "advice",
        columns,
        [row for task in list_tasks(results) for row in _build_advice_row(_select_task(results, task), about)],
    )


def _build_advice_row(runs: Results, about: Mapping[str, str]) -> Iterable[dict[str, Any]]:
    points = _collect_first_set(runs)
    if not points:
        return
    task, best = runs[0]["task"], compute_best_score(points)
    requirements = find_requirements(points, compute_threshold(points, ADVISED_SHARE))
    row: dict[str, Any] = {"task": task, "about": about.get(task, ""), "best": best}
    if (recommendation := recommend_method(requirements)) is not None:
        requirement = requirements[recommendation.method]
        assert requirement is not None
        row |= {
            "take": recommendation.method.label,
            "set": _format_overrides(runs, recommendation.method),
            "setting": _format_settings(requirement),
        }
        row |= {"work": requirement["compute"].mean / find_full_depth_compute(points)}
        row |= {"updates": requirement["updates"].mean, "score": requirement["score"].mean}
    fixed = [
        requirement["compute"].mean
        for method, requirement in requirements.items()
        if requirement is not None and has_uniform_depth(method)
    ]
    yield row | ({"fixed": min(fixed) / find_full_depth_compute(points)} if fixed else {})


def _format_overrides(runs: Results, method: HaltingMethod) -> str:
    """Format the overrides that only this method of the task was trained with, without the settings compared."""
    override_sets = [set(run["overrides"]) for run in select_equal_steps(runs)]
    method_overrides = [run["overrides"] for run in runs if run["way"] == method.name]
    shared = set.intersection(*map(set, method_overrides)) - set.intersection(*override_sets)
    distinct = [
        override
        for override in method_overrides[0]
        if override in shared and override.partition("=")[0] not in _COMPARED_KEYS
    ]
    return " ".join(distinct) or "the task's own settings"


_COMPARED_KEYS = {
    "exit_rules", "budget.targets", "seed", "trainer.max_steps", "trainer.eval_steps", "dataset.train_examples",
}  # fmt: skip


def find_full_depth_compute(points: OperatingPoints) -> float:
    """Return the compute of full depth: the largest mean over seeds of a halting method's most costly point."""
    largest = [
        fmean(max(point["compute"] for point in seed_points) for seed_points in by_seed.values())
        for by_seed in points.values()
    ]
    return max(largest)


def _collect_first_set(runs: Results) -> OperatingPoints:
    """Return the operating points on the first set of runs trained for equal steps."""
    return collect_points(select_equal_steps(runs), list_sets(runs)[0]) if runs else {}


# ---- comparisons


def build_outcomes_table(results: Results) -> Table:
    """Build the table of comparisons at the advised share of the best score."""
    points = {
        task: task_points
        for task in list_tasks(results)
        if (task_points := _collect_first_set(_select_task(results, task)))
    }
    requirements = {
        task: find_requirements(task_points, compute_threshold(task_points, ADVISED_SHARE))
        for task, task_points in points.items()
    }
    return build_comparisons_table(
        requirements, {task: find_full_depth_compute(task_points) for task, task_points in points.items()}
    )


# ---- a task


def build_task_table(title: str, set_name: str, runs: Results) -> Table:
    """Build the table of one set: each halting method's best score and its compute for shares of the task's best."""
    points = collect_points(runs, set_name)
    by_share = (
        {share: find_requirements(points, compute_threshold(points, share)) for share in QUALITY_SHARES}
        if points
        else {}
    )
    columns = [
        Column("way", "way", text, "text"),
        Column("read", "read by", text, "text"),
        *_make_error_columns("score", "best score"),
        *(
            column
            for share in QUALITY_SHARES
            for column in _make_error_columns(f"work_{share:g}", f"work for {share:.0%}")
        ),
        Column("updates", f"updates for {ADVISED_SHARE:.0%}", make_number_format(2)),
        Column("spearman", "with difficulty", signed),
        Column("setting", "setting", text, "text"),
        Column("seeds"),
    ]
    full_depth = find_full_depth_compute(points) if points else 1.0
    rows = []
    for method, by_seed in points.items():
        best_points = [max(seed_points, key=lambda point: float(point["score"])) for seed_points in by_seed.values()]
        score = average_over_seeds(
            [point["score"] for point in best_points], [point["score_error"] for point in best_points]
        )
        row: dict[str, Any] = {"way": method.name, "read": method.rule, "seeds": len(by_seed)}
        row |= {"score": score.mean, "score_error": score.error, "score_told": _format_estimate(score, 4)}
        for share, requirements in by_share.items():
            if (requirement := requirements[method]) is not None:
                compute, key = requirement["compute"], f"work_{share:g}"
                row |= {key: compute.mean / full_depth, f"{key}_told": format_share(compute, full_depth)}
                row[f"{key}_error"] = None if compute.error is None else compute.error / full_depth
        if (requirement := by_share[ADVISED_SHARE][method]) is not None:
            row |= {
                "updates": requirement["updates"].mean,
                "spearman": requirement["spearman"],
                "setting": _format_settings(requirement),
            }
        rows.append(row)
    rows.sort(key=lambda row: (row.get(f"work_{ADVISED_SHARE:g}", 9.0), -row["score"]))
    return Table(title, columns, rows)


def _make_error_columns(key: str, title: str) -> list[Column]:
    """Return the columns of a figure with its standard error: two numbers in files, one text on pages."""
    return [
        Column(key, where="file"),
        Column(f"{key}_error", where="file"),
        Column(f"{key}_told", title, text, where="view"),
    ]


def _format_difference(updates: float) -> str:
    """Format a difference of updates with its sign."""
    return f"{updates:+.2f}"


def build_rules_table(task: str, set_name: str, runs: Results) -> list[Table]:
    """Build the table of exit rules on one set: score, controls, calibration error and time.

    Empty where no rule was evaluated on this set.
    """
    rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for run in runs:
        for row in run["sets"].get(set_name, {}).get("rules", ()):
            rows.setdefault((run["way"], row["rule"]), []).append(row)
    batches = sorted({batch for rule_rows in rows.values() for row in rule_rows for batch in row["time"]}, key=int)
    batch_sizes = dict.fromkeys([*batches[:1], *batches[-1:]])
    columns = [
        Column("way", "way", text, "text"),
        Column("rule", "rule", text, "text"),
        Column("updates", "updates", make_number_format(2)),
        Column("above", "above the oracle", _format_difference),
        Column("score", "score", make_number_format(4)),
        Column("online", "run for real", make_number_format(4)),
        Column("permuted", "permuted exits", make_number_format(4)),
        Column("mixture", "two fixed depths", make_number_format(4)),
        Column("spearman", "with difficulty", signed),
        Column("calibration", "calibration error", make_number_format(3)),
        *(Column(f"time_{batch}", f"time, batch {batch}", percent) for batch in batch_sizes),
        Column("seeds"),
    ]
    table_rows: list[dict[str, Any]] = [
        {"way": way, "rule": rule, "seeds": len(rule_rows)}
        | {key: _average_measured([row.get(key) for row in rule_rows]) for key in _RULE_FIGURES}
        | {f"time_{batch}": _average_measured([row["time"].get(batch) for row in rule_rows]) for batch in batch_sizes}
        for (way, rule), rule_rows in rows.items()
    ]
    oracle = {row["way"]: row["updates"] for row in table_rows if row["rule"] == SETTLED}
    for row in table_rows:
        row["above"] = row["updates"] - oracle[row["way"]] if row["way"] in oracle else None
    return [Table(f"{task}_{set_name}_rules", columns, table_rows)] if table_rows else []


_RULE_FIGURES = ("updates", "score", "online", "permuted", "mixture", "spearman", "calibration")


def build_overthinking_table(task: str, set_name: str, runs: Results) -> list[Table]:
    """Build the table of overthinking: the best fixed update of each method, and the score lost after it.

    Empty where no method of this set predicts after every update.
    """
    by_method: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        if overthinking := run["sets"].get(set_name, {}).get("overthinking"):
            by_method.setdefault(run["way"], []).append(overthinking)
    columns = [
        Column("way", "way", text, "text"),
        Column("step", "best update for all", make_number_format(1)),
        Column("best", "score there", make_number_format(4)),
        Column("last", "score after the last", make_number_format(4)),
        Column("lost", "right on the way, wrong at the end", percent),
        Column("seeds"),
    ]
    rows = [
        {"way": way, "seeds": len(method_rows)}
        | {key: _average_measured([row.get(key) for row in method_rows]) for key in ("step", "best", "last", "lost")}
        for way, method_rows in by_method.items()
    ]
    return [Table(f"{task}_{set_name}_overthinking", columns, rows)] if rows else []


def _average_measured(values: Iterable[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return fmean(measured) if measured else None


_MAX_CURVES = 8


def build_task_figure(task: str, runs: Results) -> Figure:
    """Plot score against compute: uniform depths and the halting methods that need least, a panel for each set."""
    panels = [_build_panel(set_name, collect_points(runs, set_name)) for set_name in list_sets(runs)]
    return Figure(task, [panel for panel in panels if panel is not None])


def _build_panel(set_name: str, points: OperatingPoints) -> Panel | None:
    if not points:
        return None
    curves = {method: _build_curve(by_seed) for method, by_seed in points.items()}
    requirements = find_requirements(points, compute_threshold(points, ADVISED_SHARE))

    def rank(method: HaltingMethod) -> tuple[bool, float]:
        requirement = requirements[method]
        return not has_uniform_depth(method), 1e30 if requirement is None else requirement["compute"].mean

    shown_methods = sorted(curves, key=rank)[:_MAX_CURVES]
    labelled_curves = [(method.label, curves[method]) for method in shown_methods]
    curve_points = [point for _, curve in labelled_curves for point in curve]
    x, y = (pad_range([point[axis] for point in curve_points]) for axis in (0, 1))
    title = "multiply-accumulates of a unit" if _has_macs(points) else "updates of a unit (mean)"
    description = f"{set_name}: score against {title} for {', '.join(label for label, _ in labelled_curves)}"
    return Panel(set_name, Lines(labelled_curves), Axis(title, x), Axis("score", y), description, 1.3)


def _has_macs(points: OperatingPoints) -> bool:
    first = next(point for by_seed in points.values() for seed_points in by_seed.values() for point in seed_points)
    return bool(first["compute"] == first.get("macs"))


def _build_curve(by_seed: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[tuple[float, float]]:
    """Return (compute, score) of each setting, averaged over seeds; settings that some seed lacks are left out."""
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
    """Build the table of runs: seed, training time, settings, commit and machine."""
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


def to_markdown(results: Results, about: Mapping[str, str]) -> str:
    """Format the page as Markdown."""
    lines = [
        "# Which way of allocating depth should I use?",
        "",
        "Made from the results of `python adadepth/run.py --config-name depth_bench`. Work and "
        "score are of examples that no threshold was chosen on. To be taken is the reading of least work that keeps "
        f"{percent(ADVISED_SHARE)} of the best score of the task; the rule stands in "
        "`adadepth/contrib/bench/measures.py`.",
        "",
        *_format_table(build_advice_table(results, about)),
        "",
        *(f"- **{task}**: {sentence}" for task, sentence in format_recommendations(results)),
        "",
        "## What is said, and what came out",
        "",
        f"Each contest compares the work of two groups of ways at {percent(ADVISED_SHARE)} of the task's best score, "
        "by the cheapest of each.",
        "",
        *(f"- {comparison.question} {comparison.literature}" for comparison in COMPARISONS),
        "",
        *_format_table(build_outcomes_table(results)),
    ]
    for task in list_tasks(results):
        runs = _select_task(results, task)
        lines += ["", f"## {task}", "", about.get(task, ""), ""]
        for set_name in list_sets(runs):
            for table in build_set_tables(task, set_name, runs):
                lines += [f"### {table.name.replace('_', ' ')}", "", *_format_table(table), ""]
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _format_table(table: Table) -> list[str]:
    columns = table.of("view")
    cells = [[_format_cell(column, row) for column in columns] for row in table.rows]
    alignments = ["---" if column.kind != "number" else "--:" for column in columns]
    return [f"| {' | '.join(line)} |" for line in ([column.heading for column in columns], alignments, *cells)]


def _format_cell(column: Column, row: Mapping[str, Any]) -> str:
    value = row.get(column.key)
    return column.absent if value is None else column.write(value).replace("|", "\\|")
