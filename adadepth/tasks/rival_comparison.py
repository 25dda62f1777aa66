"""Comparison of an adaptive run with its trained matched baselines: rows of rivals.json, console output and report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from adadepth.config import ExperimentConfig
from adadepth.metrics.grid_examples import draw_example_text
from adadepth.metrics.metric_names import drop_losses_of_other_depths
from adadepth.report.baseline_comparison import to_json
from adadepth.report.compute_cost import describe_measured
from adadepth.report.difficulty import format_rival_difficulty, get_difficulty_sets
from adadepth.report.matched_networks import format_rivals
from adadepth.report.pages import draw_figures, write_report
from adadepth.report.quality_pairs import find_errors
from adadepth.report.resources import get_sizes
from adadepth.report.run_files import GRIDS, RIVALS, RunFiles, is_summary_of_seeds, read_run, write_json
from adadepth.runs.directory import RECORD, read_record, write_jsonable
from adadepth.runtime.console import RESULT, say
from adadepth.tasks.next_commands import list_next_commands
from adadepth.tasks.report import build_run_report, show_last_screen


def describe_network(files: RunFiles, kind: str) -> dict[str, Any]:
    """Return a network's row for rivals.json: type, depth, compute, parameters, cache, metrics, and errors of metrics.

    Losses that are not those of the decided depths are left out.
    """
    record, halting = files.run, files.halting
    updates, cost = halting["classes"]["all"], halting["cost"]
    final_metrics: Mapping[str, Any] = record.get("final_metrics") or {}
    metrics = {name: value for name, value in final_metrics.items() if name.startswith("eval")}
    metrics = drop_losses_of_other_depths(metrics, updates.get("loss"), "eval/")
    return {
        "kind": kind,
        "run": str(files.directory),
        "seed": record.get("seed"),
        "n": updates["n"],
        "mean": updates["mean"],
        "std": updates["std"],
        "max_depth": halting["max_depth"],
        **{name: cost[name] for name in ("executed_macs", "adaptive_macs") if name in cost},
        **get_sizes(files),
        "difficulty": {name: table["rows"] for name, table in get_difficulty_sets(halting).items()},
        "steps": (record.get("steps") or {}).get("done"),
        "seconds": record.get("wall_time_s"),
        "metrics": metrics,
        "errors": find_errors(halting, metrics),
    }


def record_networks(directory: Path, adaptive: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write an adaptive network and its matched baselines to rivals.json, beside those that it already has.

    Args:
        directory: Directory of the adaptive run or summary, or of the run that trains the baselines.
        adaptive: Row of the adaptive network of each seed.
        rows: Rows of the baselines.
    """
    names = {Path(row["run"]).name for row in rows}
    earlier = read_run(directory).of(RIVALS).get("rows", [])
    earlier_rows = [row for row in earlier if row["kind"] != "adaptive" and Path(row["run"]).name not in names]
    write_json(directory / RIVALS, {"rows": [*adaptive, *earlier_rows, *rows]})


def show_comparison(config: ExperimentConfig, directory: Path) -> None:
    """Write the report of an adaptive run or summary with its matched baselines, and print the comparison."""
    report = build_run_report(directory)
    write_jsonable(directory / RECORD, {**read_record(directory), "verdict": to_json(report.verdict)})
    draw_figures(report)
    for details in _format_details(report.files):
        say(f"\n{details}")
    say(f"\n{format_rivals(report.files.of(RIVALS))}", RESULT)
    show_last_screen(report, write_report(report), list_next_commands(config, report.files))


def _format_details(adaptive: RunFiles) -> Iterator[str]:
    """Yield lines on an adaptive run, such as its depth by difficulty, for the printed comparison."""
    if is_summary_of_seeds(adaptive):
        return
    for grids in [grids for grids in adaptive.of(GRIDS).get("sets", {}).values() if grids][:1]:
        yield draw_example_text(grids[0])
    if table := format_rival_difficulty(adaptive.of(RIVALS)):
        yield table
    if speeds := describe_measured(adaptive):
        yield speeds
