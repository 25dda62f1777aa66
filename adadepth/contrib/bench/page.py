"""The page of a bench: which way of allocating depth to take for which task, and the figures that say so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from adadepth.contrib.bench.contests import CONTESTS, contests_table, is_same_for_all, share_of
from adadepth.contrib.bench.file_types import BenchResultFields
from adadepth.contrib.bench.measures import (
    KEEPS,
    Told,
    Way,
    WayPoints,
    bar_of,
    best_score,
    mean_of_seeds,
    needed,
    of_equal_steps,
    of_equal_work,
    points_of,
    recommendation,
)
from adadepth.errors import CheckpointError
from adadepth.measure.exit_pareto import SETTLED
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
from adadepth.system.console import say
from adadepth.system.files import write_atomic
from adadepth.system.json_files import read_json

_PACKAGE = "adadepth.contrib.bench"

RESULTS = "results"
ADVISED = 0.98  # the share of the best score at which a way is recommended

Results = Sequence[Mapping[str, Any]]


def write_bench(folder: Path, results: Results, about: Mapping[str, str], missing: Sequence[str]) -> Path:
    """Write a JSON file a run into `results/`, the page with its tables and figures, and results.md; returns the page.

    Args:
        folder: Of the bench.
        results: From `adadepth.contrib.bench.runs.result_of`.
        about: By task, what it is like.
        missing: Names of the runs that did not end well.
    """
    for result in results:
        write_json(folder / RESULTS / f"{result['name']}.json", result)
    write_atomic(folder / "results.md", as_markdown(results, about))
    sections = bench_sections(results, about, missing)
    subtitle = "Ways of allocating depth, side by side"
    return write_page(
        folder, sections, title="Which way?", subtitle=subtitle, sources=[f"{RESULTS}/"], whose="this bench"
    )


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Read the results in a folder, by name; a damaged file is named in a warning and left out."""
    found = []
    for file in sorted(folder.glob("*.json")):
        try:
            found.append(read_result(file))
        except CheckpointError as error:
            say(f"warning: {error}; that run is made anew")
    return found


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


def bench_text(results: Results, about: Mapping[str, str]) -> str:
    """What to take for which task, as text."""
    lines = [to_text(advice_table(results, about)), ""]
    return plain("\n".join([*lines, *(f"{task}: {sentence}" for task, sentence in recommendations(results))]))


def bench_sections(results: Results, about: Mapping[str, str], missing: Sequence[str]) -> list[Section]:
    """What to take, what papers say and what came out, each task with its figure and tables, how it was measured."""
    advice, contests = advice_table(results, about), outcomes_table(results)
    first = fill(
        "bench:advice", _PACKAGE, table=advice, recommendations=recommendations(results), keep=ADVISED, missing=missing
    )
    second = fill("bench:contests", _PACKAGE, contests=CONTESTS, table=contests)
    found = [
        Section("If your task is like this, use that", "advice", first, tables=[advice]),
        Section("What is said, and what came out", "contests", second, tables=[contests]),
    ]
    for task in tasks_of(results):
        runs = _of_task(results, task)
        figure = task_figure(task, of_equal_steps(runs))
        tables = [table for name in sets_of(runs) for table in tables_of(task, name, runs)]
        html = fill("bench:task", _PACKAGE, about=about.get(task, ""), figure=figure, tables=tables)
        of = f"n = {len(runs)} runs, seeds {', '.join(map(str, seeds_run(runs)))}"
        found.append(Section(task, file_anchor(task), html, [figure], tables, of=of))
    table = conditions_table(results)
    return [
        *found,
        Section("How it was measured", "conditions", fill("bench:conditions", _PACKAGE, table=table), tables=[table]),
    ]


def tables_of(task: str, name: str, runs: Results) -> list[Table]:
    """Those of one of a task's sets: after equal steps and after equal training work, rules, and the steps for all."""
    longer = of_equal_work(runs)
    equal = [task_table(f"{task}_{name}_equal_work", name, longer)] if longer else []
    alike = of_equal_steps(runs)
    return [
        task_table(f"{task}_{name}", name, alike),
        *equal,
        *rules_table(task, name, alike),
        *overthinking_table(task, name, alike),
    ]


def file_anchor(task: str) -> str:
    """The place of a task on the page."""
    return f"task-{task.replace('_', '-')}"


def tasks_of(results: Results) -> list[str]:
    """Their names, in order."""
    return list(dict.fromkeys(result["task"] for result in results))


def sets_of(runs: Results) -> list[str]:
    """The evaluated sets, the first of which a threshold is chosen on."""
    return list(dict.fromkeys(name for run in runs for name in run["sets"]))


def seeds_run(runs: Results) -> list[int]:
    """In order."""
    return sorted({run["seed"] for run in runs})


def _of_task(results: Results, task: str) -> list[Mapping[str, Any]]:
    return [result for result in results if result["task"] == task]


# ---- what to take


def recommendations(results: Results) -> list[tuple[str, str]]:
    """By task what to take and what is not told apart from it, in words, by the rule of `measures`."""
    return [(task, _sentence(_of_task(results, task))) for task in tasks_of(results)]


def _sentence(runs: Results) -> str:
    points = _inside(runs)
    if not points:
        return "nothing has a score."
    bar = bar_of(points, ADVISED)
    needs = needed(points, bar)
    found = recommendation(needs)
    if found is None:
        return f"no way reaches {bar:.4f}, {percent(ADVISED)} of the best score, with every seed."
    taken = needs[found["take"]]
    assert taken is not None
    told = f"{found['take'].label} ({_settings(taken)})"
    share = f"{share_of(taken['work'], full_work(points))} of the work of full depth"
    spent = f"{share}, {_plus(taken['updates'], 2)} updates"
    alike = [reading.label for reading in found["not_told_apart"]]
    others = f" Not told apart from it by work: {'; '.join(alike)}." if alike else " It is told apart from all others."
    return f"{told}: {spent}, score {_plus(taken['score'], 4)} where {bar:.4f} was asked for.{others}"


def _settings(told: Mapping[str, Any]) -> str:
    """What the seeds chose, each once."""
    return ", ".join(sorted(set(told["settings"].values())))


def _plus(value: Told, digits: int) -> str:
    return number(value.mean, digits) + ("" if value.error is None else f" ± {number(value.error, digits)}")


def advice_table(results: Results, about: Mapping[str, str]) -> Table:
    """A row a task: what it is like, what to take, and what that spends."""
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
        "advice", columns, [row for task in tasks_of(results) for row in _advice(_of_task(results, task), about)]
    )


def _advice(runs: Results, about: Mapping[str, str]) -> Iterable[dict[str, Any]]:
    points = _inside(runs)
    if not points:
        return
    task, best = runs[0]["task"], best_score(points)
    needs = needed(points, bar_of(points, ADVISED))
    row: dict[str, Any] = {"task": task, "about": about.get(task, ""), "best": best}
    if (found := recommendation(needs)) is not None:
        told = needs[found["take"]]
        assert told is not None
        row |= {"take": found["take"].label, "set": _own_overrides(runs, found["take"]), "setting": _settings(told)}
        row |= {"work": told["work"].mean / full_work(points)}
        row |= {"updates": told["updates"].mean, "score": told["score"].mean}
    fixed = [told["work"].mean for reading, told in needs.items() if told is not None and is_same_for_all(reading)]
    yield row | ({"fixed": min(fixed) / full_work(points)} if fixed else {})


def _own_overrides(runs: Results, reading: Way) -> str:
    """What tells the training of a way from that of the task's other ways; settings that are compared are left out."""
    every = [set(run["overrides"]) for run in of_equal_steps(runs)]
    of_way = [run["overrides"] for run in runs if run["way"] == reading.way]
    shared = set.intersection(*map(set, of_way)) - set.intersection(*every)
    own = [each for each in of_way[0] if each in shared and each.partition("=")[0] not in _NOT_OF_WAYS]
    return " ".join(own) or "the task's own settings"


_NOT_OF_WAYS = {
    "exit_rules", "budget.targets", "seed", "trainer.max_steps", "trainer.eval_steps", "dataset.train_examples",
}  # fmt: skip


def full_work(points: WayPoints) -> float:
    """The work of full depth: the largest mean over seeds of a reading's most costly point."""
    most = [fmean(max(each["work"] for each in every) for every in seeds.values()) for seeds in points.values()]
    return max(most)


def _inside(runs: Results) -> WayPoints:
    """The points of the first set, of what was trained for as many steps."""
    return points_of(of_equal_steps(runs), sets_of(runs)[0]) if runs else {}


# ---- what papers say


def outcomes_table(results: Results) -> Table:
    """A row a contest and task: which of two groups of ways needs less for the advised share of the best score."""
    points = {task: found for task in tasks_of(results) if (found := _inside(_of_task(results, task)))}
    needs = {task: needed(found, bar_of(found, ADVISED)) for task, found in points.items()}
    return contests_table(needs, {task: full_work(found) for task, found in points.items()})


# ---- a task


def task_table(title: str, name: str, runs: Results) -> Table:
    """A row a reading: its best score, and what it needs for shares of the task's best, in one of its sets."""
    points = points_of(runs, name)
    bars = {keep: needed(points, bar_of(points, keep)) for keep in KEEPS} if points else {}
    columns = [
        Column("way", "way", text, "text"),
        Column("read", "read by", text, "text"),
        *_with_error("score", "best score"),
        *(column for keep in KEEPS for column in _with_error(f"work_{keep:g}", f"work for {keep:.0%}")),
        Column("updates", f"updates for {ADVISED:.0%}", make_number_format(2)),
        Column("spearman", "with difficulty", signed),
        Column("setting", "setting", text, "text"),
        Column("seeds"),
    ]
    full = full_work(points) if points else 1.0
    rows = []
    for reading, seeds in points.items():
        best = [max(every, key=lambda each: float(each["score"])) for every in seeds.values()]
        score = mean_of_seeds([each["score"] for each in best], [each["score_error"] for each in best])
        row: dict[str, Any] = {"way": reading.way, "read": reading.read, "seeds": len(seeds)}
        row |= {"score": score.mean, "score_error": score.error, "score_told": _plus(score, 4)}
        for keep, needs in bars.items():
            if (told := needs[reading]) is not None:
                work, key = told["work"], f"work_{keep:g}"
                row |= {key: work.mean / full, f"{key}_told": share_of(work, full)}
                row[f"{key}_error"] = None if work.error is None else work.error / full
        if (told := bars[ADVISED][reading]) is not None:
            row |= {"updates": told["updates"].mean, "spearman": told["spearman"], "setting": _settings(told)}
        rows.append(row)
    rows.sort(key=lambda row: (row.get(f"work_{ADVISED:g}", 9.0), -row["score"]))
    return Table(title, columns, rows)


def _with_error(key: str, title: str) -> list[Column]:
    """A figure with its standard error: two numbers in files, one text for people."""
    return [
        Column(key, where="file"),
        Column(f"{key}_error", where="file"),
        Column(f"{key}_told", title, text, where="view"),
    ]


def _more(updates: float) -> str:
    """A difference of updates, with its sign."""
    return f"{updates:+.2f}"


def rules_table(task: str, name: str, runs: Results) -> list[Table]:
    """A row a rule as it was studied: its controls, its time, and how far its probabilities are from the truth.

    Empty where no rule was studied on this set.
    """
    rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for run in runs:
        for row in run["sets"].get(name, {}).get("rules", ()):
            rows.setdefault((run["way"], row["rule"]), []).append(row)
    batches = sorted({batch for every in rows.values() for row in every for batch in row["time"]}, key=int)
    shown = dict.fromkeys([*batches[:1], *batches[-1:]])
    columns = [
        Column("way", "way", text, "text"),
        Column("rule", "rule", text, "text"),
        Column("updates", "updates", make_number_format(2)),
        Column("above", "above the oracle", _more),
        Column("score", "score", make_number_format(4)),
        Column("online", "run for real", make_number_format(4)),
        Column("permuted", "permuted exits", make_number_format(4)),
        Column("mixture", "two fixed depths", make_number_format(4)),
        Column("spearman", "with difficulty", signed),
        Column("calibration", "calibration error", make_number_format(3)),
        *(Column(f"time_{batch}", f"time, batch {batch}", percent) for batch in shown),
        Column("seeds"),
    ]
    told: list[dict[str, Any]] = [
        {"way": way, "rule": rule, "seeds": len(every)}
        | {key: _mean([row.get(key) for row in every]) for key in _OF_RULES}
        | {f"time_{batch}": _mean([row["time"].get(batch) for row in every]) for batch in shown}
        for (way, rule), every in rows.items()
    ]
    oracle = {row["way"]: row["updates"] for row in told if row["rule"] == SETTLED}
    for row in told:
        row["above"] = row["updates"] - oracle[row["way"]] if row["way"] in oracle else None
    return [Table(f"{task}_{name}_rules", columns, told)] if told else []


_OF_RULES = ("updates", "score", "online", "permuted", "mixture", "spearman", "calibration")


def overthinking_table(task: str, name: str, runs: Results) -> list[Table]:
    """A row a way that can be read after every update: the best update for everybody, and what those after it cost.

    Empty where none can on this set.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        if told := run["sets"].get(name, {}).get("overthinking"):
            found.setdefault(run["way"], []).append(told)
    columns = [
        Column("way", "way", text, "text"),
        Column("step", "best update for all", make_number_format(1)),
        Column("best", "score there", make_number_format(4)),
        Column("last", "score after the last", make_number_format(4)),
        Column("lost", "right on the way, wrong at the end", percent),
        Column("seeds"),
    ]
    rows = [
        {"way": way, "seeds": len(every)}
        | {key: _mean([each.get(key) for each in every]) for key in ("step", "best", "last", "lost")}
        for way, every in found.items()
    ]
    return [Table(f"{task}_{name}_overthinking", columns, rows)] if rows else []


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


_MOST_CURVES = 8


def task_figure(task: str, runs: Results) -> Figure:
    """Score against work for the readings that need least, and everybody's fixed depths; beyond training by updates."""
    panels = [_panel(name, points_of(runs, name)) for name in sets_of(runs)]
    return Figure(task, [panel for panel in panels if panel is not None])


def _panel(name: str, points: WayPoints) -> Panel | None:
    if not points:
        return None
    curves = {reading: _curve(seeds) for reading, seeds in points.items()}
    needs = needed(points, bar_of(points, ADVISED))

    def order(reading: Way) -> tuple[bool, float]:
        told = needs[reading]
        return not is_same_for_all(reading), 1e30 if told is None else told["work"].mean

    chosen = sorted(curves, key=order)[:_MOST_CURVES]
    drawn = [(reading.label, curves[reading]) for reading in chosen]
    flat = [point for _, curve in drawn for point in curve]
    x, y = (pad_range([point[place] for point in flat]) for place in (0, 1))
    title = "multiply-accumulates of a unit" if _is_counted(points) else "updates of a unit (mean)"
    description = f"{name}: score against {title} for {', '.join(label for label, _ in drawn)}"
    return Panel(name, Lines(drawn), Axis(title, x), Axis("score", y), description, 1.3)


def _is_counted(points: WayPoints) -> bool:
    first = next(point for seeds in points.values() for every in seeds.values() for point in every)
    return bool(first["work"] == first.get("macs"))


def _curve(seeds: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[tuple[float, float]]:
    """The points of one seed, and of several the means of those with the same setting."""
    by_setting: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for every in seeds.values():
        for point in every:
            by_setting.setdefault((point["rule"], *point["setting"]), []).append(point)
    known = [each for each in by_setting.values() if len(each) == len(seeds)]
    return sorted((fmean(point["work"] for point in each), fmean(point["score"] for point in each)) for each in known)


# ---- conditions, and the page as Markdown


def conditions_table(results: Results) -> Table:
    """A row a run: its seed, time, settings, commit and machine."""
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
            "machine": _machine(result["hardware"] or {}),
        }
        for result in results
    ]
    return Table("conditions", columns, rows)


def _machine(hardware: Mapping[str, Any]) -> str:
    gpus = ", ".join(map(str, hardware.get("gpus") or ()))
    size = f"{hardware.get('cpus')} CPUs, {hardware.get('threads')} threads"
    return gpus or ", ".join(filter(None, (hardware.get("processor"), size)))


def as_markdown(results: Results, about: Mapping[str, str]) -> str:
    """What the page says, as a document: every number of it follows from the results."""
    lines = [
        "# Which way of allocating depth should I use?",
        "",
        "Made from the results of `python adadepth/run.py --config-name depth_bench`. Work and "
        "score are of examples that no threshold was chosen on. To be taken is the reading of least work that keeps "
        f"{percent(ADVISED)} of the best score of the task; the rule stands in `adadepth/contrib/bench/measures.py`.",
        "",
        *_markdown(advice_table(results, about)),
        "",
        *(f"- **{task}**: {sentence}" for task, sentence in recommendations(results)),
        "",
        "## What is said, and what came out",
        "",
        f"Each contest compares the work of two groups of ways at {percent(ADVISED)} of the task's best score, by the "
        "cheapest of each.",
        "",
        *(f"- {contest.asked} {contest.said}" for contest in CONTESTS),
        "",
        *_markdown(outcomes_table(results)),
    ]
    for task in tasks_of(results):
        runs = _of_task(results, task)
        lines += ["", f"## {task}", "", about.get(task, ""), ""]
        for name in sets_of(runs):
            for table in tables_of(task, name, runs):
                lines += [f"### {table.name.replace('_', ' ')}", "", *_markdown(table), ""]
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _markdown(table: Table) -> list[str]:
    columns = table.of("view")
    cells = [[_cell(column, row) for column in columns] for row in table.rows]
    rule = ["---" if column.kind != "number" else "--:" for column in columns]
    return [f"| {' | '.join(line)} |" for line in ([column.heading for column in columns], rule, *cells)]


def _cell(column: Column, row: Mapping[str, Any]) -> str:
    value = row.get(column.key)
    return column.absent if value is None else column.write(value).replace("|", "\\|")
