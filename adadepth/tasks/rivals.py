"""The rival of equal work: the same network with one depth for everybody, trained the same way, beside an adaptive run.

`rival_of=<run>` is an ordinary run of its own (it resumes, reports and sweeps like one); what it adds is the depth,
read off the run it is compared with, and at its end a row in that run's rivals.json and report.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from adadepth.errors import CheckpointError
from adadepth.families.registry import family
from adadepth.measure.names import WORK
from adadepth.measure.pictures import grid_picture
from adadepth.report.budgets import rivals_text
from adadepth.report.difficulty import difficulty_sets, rival_difficulty_text
from adadepth.report.run_files import GRIDS, RIVALS, RunFiles, read_run, write_json
from adadepth.report.work import describe_measured
from adadepth.report.worth import as_json
from adadepth.runs.directory import MODEL, RECORD, read_record, read_settings, resolve_run, write_jsonable
from adadepth.settings import BudgetConfig, ExperimentConfig
from adadepth.system.console import say
from adadepth.system.processes import is_first_process
from adadepth.tasks.next_commands import commands_after
from adadepth.tasks.report import draw_run_figures, judge, show_last_screen, write_run_report

SUFFIX = "_rival"


def train_rival(
    config: ExperimentConfig, train: Callable[[ExperimentConfig], tuple[dict[str, float], Path]]
) -> dict[str, float]:
    """Train the rival of a run, and put the two side by side; returns the rival's metrics."""
    rival, directory = as_rival(config)
    metrics, run = train(rival)
    if is_first_process():
        compare_rival(directory, run)
        show_last_screen(directory, write_run_report(directory), commands_after(config, directory))
    return metrics


def as_rival(config: ExperimentConfig) -> tuple[ExperimentConfig, Path]:
    """The settings of the rival, and the folder of the run that it is compared with.

    Its depth is the smallest whose work is at least what the run's depths need, so the rival never has less.

    Raises:
        CheckpointError: If that run is not finished, has no measured work, or was trained on something else.
    """
    assert config.rival_of is not None
    about = family(config.model.name)
    assert about.fixed_depth is not None, "validated"
    assert about.depth is not None
    directory = resolve_run(config.rival_of, config, needs=MODEL)  # an evaluation has none
    files = read_run(directory)
    share = (files.halting.get("cost") or {}).get(WORK.removeprefix("cost/"))
    if files.run.get("status") != "finished" or share is None:
        raise CheckpointError(f"rival_of={config.rival_of}: {directory} is no finished run with measured work")
    theirs, data = read_settings(directory), config.dataset.name
    if (theirs.get("task"), theirs.dataset.name) != (config.task, data):
        other = f"task={theirs.get('task')} on dataset={theirs.dataset.name}"
        raise CheckpointError(f"rival_of={config.rival_of}: it was {other}; a rival is trained as it was")
    depth = max(1, math.ceil(share * files.halting["max_depth"] - 1e-6))
    rival = dataclasses.replace(
        config,
        name=config.name.removesuffix(SUFFIX) + SUFFIX,  # a rival that goes on has it
        model=dataclasses.replace(config.model, **{about.fixed_depth: depth, about.depth: depth}),
        budget=BudgetConfig(),
        rival_of=str(directory),
    )
    return rival, directory


def compare_rival(directory: Path, rival: Path) -> None:
    """Put the figures of a finished rival beside those of the run in `directory`, and print them."""
    own, other = read_run(directory), read_run(rival)
    earlier = own.of(RIVALS).get("rows", [])
    kept = [row for row in earlier if row["kind"] != "adaptive" and Path(row["run"]).name != rival.name]
    rows = [describe_network(own, "adaptive"), *kept, describe_network(other, "fixed depth")]
    found = {"rows": rows}
    write_json(directory / RIVALS, found)
    write_jsonable(directory / RECORD, {**read_record(directory), "verdict": as_json(judge(directory))})
    draw_run_figures(directory)
    for text in _shown(own, other):
        say(f"\n{text}")
    say(f"\n{rivals_text(found)}")


def _shown(own: RunFiles, rival: RunFiles) -> Iterator[str]:
    """What is worth seeing of the adaptive run: an example, depth by difficulty, the time that it saves."""
    for grids in [grids for grids in own.of(GRIDS).get("sets", {}).values() if grids][:1]:
        yield grid_picture(grids[0])
    if table := rival_difficulty_text(own.halting, rival.halting):
        yield table
    if speeds := describe_measured(own):
        yield speeds


def describe_network(files: RunFiles, kind: str) -> dict[str, Any]:
    """A row: what the network is, its depth and work, and how good it is on every evaluated set."""
    record, found = files.run, files.halting
    everyone, cost = found["classes"]["all"], found["cost"]
    metrics: Mapping[str, Any] = record.get("final_metrics") or {}
    return {
        "kind": kind,
        "run": str(files.directory),
        "seed": record.get("seed"),
        "mean": everyone["mean"],
        "std": everyone["std"],
        "max_depth": found["max_depth"],
        **{name: cost[name] for name in ("executed_macs", "adaptive_macs") if name in cost},
        "difficulty": {name: told["rows"] for name, told in difficulty_sets(found).items()},
        "seconds": record.get("wall_time_s"),
        "metrics": {name: value for name, value in metrics.items() if name.startswith("eval")},
    }
