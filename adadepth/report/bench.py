"""The page of a bench: which way of allocating depth to take for which task, and the figures that say so."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from adadepth.measure.bench import (
    KEEPS,
    Told,
    Way,
    WayPoints,
    bar_of,
    best_score,
    needed,
    points_of,
    recommendation,
)
from adadepth.report.figure import Axis, Figure, Lines, Panel, with_air
from adadepth.report.run_files import write_json
from adadepth.report.section import Section, fill
from adadepth.report.table import Column, Table, as_text, clock, number, percent, plain, rounded, signed, text
from adadepth.report.writing import write_page
from adadepth.system.files import write_atomic

RESULTS = "results"
ADVISED = 0.98  # the share of the best score at which a way is recommended

Results = Sequence[Mapping[str, Any]]


def write_bench(folder: Path, results: Results, about: Mapping[str, str], missing: Sequence[str]) -> Path:
    """Write a JSON file a run into `results/`, the page with its tables and figures, and results.md; returns the page.

    Args:
        folder: Of the bench.
        results: From `adadepth.tasks.bench.result_of`.
        about: By task, what it is like.
        missing: Names of the runs that did not end well.
    """
    for result in results:
        write_json(folder / RESULTS / f"{result['name']}.json", result)
    write_atomic(folder / "results.md", as_markdown(results, about))
    sources = [f"{RESULTS}/{result['name']}.json" for result in results]
    sections = bench_sections(results, about, missing)
    subtitle = "Ways of allocating depth, side by side"
    return write_page(folder, sections, title="Which way?", subtitle=subtitle, sources=sources, whose="this bench")


def read_results(folder: Path) -> list[dict[str, Any]]:
    """The results in a folder, by name."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]


def bench_text(results: Results, about: Mapping[str, str]) -> str:
    """What to take for which task, as text."""
    lines = [as_text(advice_table(results, about)), ""]
    return plain("\n".join([*lines, *(f"{task}: {sentence}" for task, sentence in recommendations(results))]))


def bench_sections(results: Results, about: Mapping[str, str], missing: Sequence[str]) -> list[Section]:
    """First what to take, then each task with its figure and table, then how it was measured."""
    advice = advice_table(results, about)
    first = fill("bench:advice", table=advice, recommendations=recommendations(results), keep=ADVISED, missing=missing)
    found = [Section("If your task is like this, use that", "advice", first, tables=[advice])]
    for task in tasks_of(results):
        runs = _of_task(results, task)
        figure = task_figure(task, runs)
        tables = [
            table for name in sets_of(runs) for table in (task_table(task, name, runs), *rules_table(task, name, runs))
        ]
        html = fill("bench:task", about=about.get(task, ""), figure=figure, tables=tables)
        of = f"n = {len(runs)} runs, seeds {', '.join(map(str, seeds_run(runs)))}"
        found.append(Section(task, file_anchor(task), html, [figure], tables, of=of))
    table = conditions_table(results)
    return [*found, Section("How it was measured", "conditions", fill("bench:conditions", table=table), tables=[table])]


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
    """By task what to take and what is not told apart from it, in words, by the rule of `adadepth.measure.bench`."""
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
    told = f"{found['take'].label} ({', '.join(sorted(set(taken['settings'].values())))})"
    share = f"{percent(taken['work'].mean / full_work(points))} of the work of full depth"
    spent = f"{share}, {_plus(taken['updates'], 2)} updates"
    alike = [reading.label for reading in found["not_told_apart"]]
    others = f" Not told apart from it by work: {', '.join(alike)}." if alike else " It is told apart from all others."
    return f"{told}: {spent}, score {_plus(taken['score'], 4)} where {bar:.4f} was asked for.{others}"


def _plus(value: Told, digits: int) -> str:
    return number(value.mean, digits) + ("" if value.error is None else f" ± {number(value.error, digits)}")


def advice_table(results: Results, about: Mapping[str, str]) -> Table:
    """A row a task: what it is like, what to take, and what that spends."""
    columns = [
        Column("task", "task", text, "text", remark="about"),
        Column("take", "take", text, "text"),
        Column("setting", "setting", text, "text"),
        Column("work", "work, share of full depth", percent),
        Column("updates", "updates", rounded(2)),
        Column("score", "score", rounded(4)),
        Column("best", "best score", rounded(4)),
        Column("fixed", "work of the cheapest fixed depth", percent),
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
        settings = ", ".join(sorted(set(told["settings"].values())))
        row |= {"take": found["take"].label, "setting": settings, "work": told["work"].mean / full_work(points)}
        row |= {"updates": told["updates"].mean, "score": told["score"].mean}
    fixed = [told["work"].mean for reading, told in needs.items() if told is not None and is_same_for_all(reading)]
    yield row | ({"fixed": min(fixed) / full_work(points)} if fixed else {})


def is_same_for_all(reading: Way) -> bool:
    """Whether everybody gets the same depth: networks of one depth, or one network read at one."""
    return reading.read == "fixed" or (reading.way.startswith("fixed") and reading.read == "run")


def full_work(points: WayPoints) -> float:
    """The work of full depth: the largest mean over seeds of a reading's most costly point."""
    most = [fmean(max(each["work"] for each in every) for every in seeds.values()) for seeds in points.values()]
    return max(most)


def _inside(runs: Results) -> WayPoints:
    """The points of the first set."""
    return points_of(runs, sets_of(runs)[0]) if runs else {}


# ---- a task


def task_table(task: str, name: str, runs: Results) -> Table:
    """A row a reading: its best score, and what it needs for shares of the task's best, in one of its sets."""
    points = points_of(runs, name)
    bars = {keep: needed(points, bar_of(points, keep)) for keep in KEEPS} if points else {}
    columns = [
        Column("way", "way", text, "text"),
        Column("read", "read by", text, "text"),
        Column("score", "best score", rounded(4)),
        *(Column(f"work_{keep:g}", f"work for {keep:.0%}", percent) for keep in KEEPS),
        *(Column(f"error_{keep:g}", where="file") for keep in KEEPS),
        Column("updates", f"updates for {ADVISED:.0%}", rounded(2)),
        Column("spearman", "with difficulty", signed),
        Column("setting", "setting", text, "text"),
        Column("seeds"),
    ]
    full = full_work(points) if points else 1.0
    rows = []
    for reading, seeds in points.items():
        best = fmean(max(float(each["score"]) for each in every) for every in seeds.values())
        row: dict[str, Any] = {"way": reading.way, "read": reading.read, "score": best, "seeds": len(seeds)}
        for keep, needs in bars.items():
            if (told := needs[reading]) is not None:
                row[f"work_{keep:g}"] = told["work"].mean / full
                row[f"error_{keep:g}"] = None if told["work"].error is None else told["work"].error / full
        if (told := bars[ADVISED][reading]) is not None:
            settings = ", ".join(sorted(set(told["settings"].values())))
            row |= {"updates": told["updates"].mean, "spearman": told["spearman"], "setting": settings}
        rows.append(row)
    rows.sort(key=lambda row: (row.get(f"work_{ADVISED:g}", 9.0), -row["score"]))
    return Table(f"{task}_{name}", columns, rows)


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
        Column("updates", "updates", rounded(2)),
        Column("score", "score", rounded(4)),
        Column("online", "run for real", rounded(4)),
        Column("permuted", "permuted exits", rounded(4)),
        Column("mixture", "two fixed depths", rounded(4)),
        Column("spearman", "with difficulty", signed),
        Column("calibration", "calibration error", rounded(3)),
        *(Column(f"time_{batch}", f"time, batch {batch}", percent) for batch in shown),
        Column("seeds"),
    ]
    told = [
        {"way": way, "rule": rule, "seeds": len(every)}
        | {column.key: _mean([row.get(column.key) for row in every]) for column in columns[2:9]}
        | {f"time_{batch}": _mean([row["time"].get(batch) for row in every]) for batch in shown}
        for (way, rule), every in rows.items()
    ]
    return [Table(f"{task}_{name}_rules", columns, told)] if told else []


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
    x, y = (with_air([point[place] for point in flat]) for place in (0, 1))
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
        Column("time", "training", clock),
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
    return gpus or f"{hardware.get('cpus')} CPUs, {hardware.get('threads')} threads"


def as_markdown(results: Results, about: Mapping[str, str]) -> str:
    """What the page says, as a document: every number of it follows from the results."""
    lines = [
        "# Which way of allocating depth should I use?",
        "",
        "Made from the files in `results/`, which `python adadepth/run.py --config-name depth_bench` writes. Work and "
        "score are of examples that no threshold was chosen on. To be taken is the reading of least work that keeps "
        f"{percent(ADVISED)} of the best score of the task; the rule stands in `adadepth/measure/bench.py`.",
        "",
        *_markdown(advice_table(results, about)),
        "",
        *(f"- **{task}**: {sentence}" for task, sentence in recommendations(results)),
    ]
    for task in tasks_of(results):
        runs = _of_task(results, task)
        lines += ["", f"## {task}", "", about.get(task, ""), ""]
        for name in sets_of(runs):
            lines += [f"### {name}", "", *_markdown(task_table(task, name, runs)), ""]
            for table in rules_table(task, name, runs):
                lines += [*_markdown(table), ""]
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _markdown(table: Table) -> list[str]:
    columns = table.of("view")
    cells = [[_cell(column, row) for column in columns] for row in table.rows]
    rule = ["---" if column.kind != "number" else "--:" for column in columns]
    return [f"| {' | '.join(line)} |" for line in ([column.heading for column in columns], rule, *cells)]


def _cell(column: Column, row: Mapping[str, Any]) -> str:
    value = row.get(column.key)
    return column.absent if value is None else column.write(value).replace("|", "\\|")
