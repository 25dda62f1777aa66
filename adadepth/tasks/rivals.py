"""Equal-compute baselines of fixed depth ("rivals"): training, and comparison with the adaptive run.

`rival_of=<run>` starts an ordinary run, which can be resumed, reported and swept. Its depth follows from the compute of
the adaptive run. It adds a row to rivals.json and to the report of the adaptive run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from adadepth.config import BudgetConfig, ExperimentConfig
from adadepth.errors import CheckpointError
from adadepth.metrics.grid_examples import draw_grid_text
from adadepth.metrics.metric_names import WORK
from adadepth.models.registry import family
from adadepth.report.baseline_comparison import to_json
from adadepth.report.budgets import format_rivals
from adadepth.report.compute_cost import describe_measured
from adadepth.report.difficulty import format_rival_difficulty, get_difficulty_sets
from adadepth.report.pages import RunReport, draw_figures, write_report
from adadepth.report.quality_pairs import find_errors
from adadepth.report.run_files import GRIDS, RIVALS, RunFiles, read_run, write_json
from adadepth.runs.directory import MODEL, RECORD, read_record, read_settings, resolve_run, write_jsonable
from adadepth.runtime.console import RESULT, say
from adadepth.runtime.distributed import is_main_process
from adadepth.tasks.next_commands import list_next_commands
from adadepth.tasks.report import build_run_report, show_last_screen

SUFFIX = "_rival"


def train_rival(
    config: ExperimentConfig, train: Callable[[ExperimentConfig], tuple[dict[str, float], Path]]
) -> dict[str, float]:
    """Train an equal-compute baseline of fixed depth, compare it with the run, and return its metrics."""
    rival, directory = build_rival_config(config)
    metrics, run = train(rival)
    if is_main_process():
        report = compare_rival(directory, run)
        show_last_screen(report, write_report(report), list_next_commands(config, report.files))
    return metrics


def build_rival_config(config: ExperimentConfig) -> tuple[ExperimentConfig, Path]:
    """Return the configuration of an equal-compute baseline of fixed depth, and the adaptive run's directory.

    The rival has the smallest depth whose compute is at least that of the adaptive run.

    Raises:
        CheckpointError: If the adaptive run is not finished, has no measured compute, or was trained on other data.
    """
    assert config.rival_of is not None
    descriptor = family(config.model.name)
    assert descriptor.fixed_depth is not None, "validated"
    assert descriptor.depth is not None
    directory = resolve_run(config.rival_of, config, needs=MODEL)  # an evaluation has no model
    files = read_run(directory)
    share = (files.halting.get("cost") or {}).get(WORK.removeprefix("cost/"))
    if files.run.get("status") != "finished" or share is None:
        raise CheckpointError(f"rival_of={config.rival_of}: {directory} is not a finished run with measured compute")
    theirs, data = read_settings(directory), config.dataset.name
    if (theirs.get("task"), theirs.dataset.name) != (config.task, data):
        other = f"task={theirs.get('task')} on dataset={theirs.dataset.name}"
        raise CheckpointError(
            f"rival_of={config.rival_of}: that run has {other}; a compute-matched baseline must be trained like the run"
        )
    depth = max(1, math.ceil(share * files.halting["max_depth"] - 1e-6))
    rival = dataclasses.replace(
        config,
        name=config.name.removesuffix(SUFFIX) + SUFFIX,  # a resumed rival has the suffix
        model=dataclasses.replace(config.model, **{descriptor.fixed_depth: depth, descriptor.depth: depth}),
        budget=BudgetConfig(),
        rival_of=str(directory),
    )
    return rival, directory


def compare_rival(directory: Path, rival: Path) -> RunReport:
    """Compare a finished baseline with the adaptive run in `directory`; record and print the comparison.

    Returns:
        The new report of the adaptive run. Its figures are drawn; its page is not written yet.
    """
    adaptive, fixed = read_run(directory), read_run(rival)
    earlier = adaptive.of(RIVALS).get("rows", [])
    other_rows = [row for row in earlier if row["kind"] != "adaptive" and Path(row["run"]).name != rival.name]
    rows = [describe_network(adaptive, "adaptive"), *other_rows, describe_network(fixed, "fixed depth")]
    comparison = {"rows": rows}
    write_json(directory / RIVALS, comparison)
    report = build_run_report(directory)
    write_jsonable(directory / RECORD, {**read_record(directory), "verdict": to_json(report.verdict)})
    draw_figures(report)
    for text in _format_details(adaptive, fixed):
        say(f"\n{text}")
    say(f"\n{format_rivals(comparison)}", RESULT)
    return report


def _format_details(adaptive: RunFiles, rival: RunFiles) -> Iterator[str]:
    """Yield lines on the adaptive run, such as its depth by difficulty, for the printed comparison."""
    for grids in [grids for grids in adaptive.of(GRIDS).get("sets", {}).values() if grids][:1]:
        yield draw_grid_text(grids[0])
    if table := format_rival_difficulty(adaptive.halting, rival.halting):
        yield table
    if speeds := describe_measured(adaptive):
        yield speeds


def describe_network(files: RunFiles, kind: str) -> dict[str, Any]:
    """Return a network's row for rivals.json: type, depth, compute, metrics, and errors of metrics."""
    record, halting = files.run, files.halting
    updates, cost = halting["classes"]["all"], halting["cost"]
    final_metrics: Mapping[str, Any] = record.get("final_metrics") or {}
    metrics = {name: value for name, value in final_metrics.items() if name.startswith("eval")}
    return {
        "kind": kind,
        "run": str(files.directory),
        "seed": record.get("seed"),
        "mean": updates["mean"],
        "std": updates["std"],
        "max_depth": halting["max_depth"],
        **{name: cost[name] for name in ("executed_macs", "adaptive_macs") if name in cost},
        "difficulty": {name: table["rows"] for name, table in get_difficulty_sets(halting).items()},
        "seconds": record.get("wall_time_s"),
        "metrics": metrics,
        "errors": find_errors(halting, metrics),
    }
