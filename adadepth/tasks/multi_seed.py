"""Training of one experiment with several seeds, and the summary of their metrics."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from adadepth.config import ExperimentConfig
from adadepth.report.pages import draw_figures, write_report
from adadepth.report.run_files import SEEDS, read_run, write_json
from adadepth.report.seeds import format_seeds, summarise_seeds
from adadepth.runs.checkpoints import list_complete_checkpoints
from adadepth.runs.directory import CHECKPOINTS, RECORD, open_run, own_runs, read_record, run_directory
from adadepth.runtime.console import RESULT, say
from adadepth.runtime.distributed import decide, is_main_process
from adadepth.tasks.grid_search import read_sound_record
from adadepth.tasks.next_commands import list_next_commands
from adadepth.tasks.report import build_run_report, finish_report, show_last_screen
from adadepth.tasks.stored_models import is_finished, record_abandoned_run
from adadepth.training.arguments import training_arguments

Train = Callable[[ExperimentConfig], tuple[dict[str, float], Path]]  # returns final metrics and run directory


def train_with_seeds(config: ExperimentConfig, train: Train) -> dict[str, float]:
    """Train with the seeds `seed`, `seed + 1`, ..., and summarise the runs.

    Each run has its own run directory; the summary is written to another one. A resumed summary keeps its finished
    runs, and resumes the interrupted one.

    Returns:
        Means of the final metrics that are present in all runs.
    """
    args = training_arguments(config, "unused: each run creates its own")
    directory = decide(args, lambda: run_directory(config))
    is_main = is_main_process()
    runs: list[tuple[int, dict[str, float]]] = []
    directories: dict[int, Path] = {}

    def report() -> None:
        say(format_seeds(summary), RESULT)
        report = build_run_report(directory)
        commands = list_next_commands(config, read_run(directories[config.seed]), summary=directory)
        show_last_screen(report, write_report(report), commands)
        draw_figures(report)  # takes longest, so the page comes first

    with open_run(config, directory, is_main, report) as run, own_runs(directory):
        for seed in range(config.seed, config.seed + config.seeds):
            part = dataclasses.replace(config, seed=seed, seeds=1)
            final_metrics, folder = train_part(part, train, directory, seed=seed)
            runs.append((seed, dict(final_metrics)))
            directories[seed] = folder
            folders = {str(number): os.path.relpath(path, directory) for number, path in directories.items()}
            summary = {**summarise_seeds(runs), "runs": folders}
            if is_main:
                write_json(directory / SEEDS, summary)
        metrics = {name: scores["mean"] for name, scores in summary["metrics"].items() if scores["n"] == len(runs)}
        run.update(final_metrics=metrics)
    return metrics


def train_part(config: ExperimentConfig, train: Train, owner: Path, **fields: Any) -> tuple[dict[str, float], Path]:
    """Train a run that is a part of another run. If the other run is resumed, keep or resume this part.

    Args:
        config: Configuration of the part. If it has `resume`, the other run is resumed.
        train: Function that trains a run.
        owner: Directory of the other run.
        fields: Fields of its record, which no other part has.

    Returns:
        Final metrics and run directory.
    """
    args = training_arguments(config, "unused: each run creates its own")
    part = None if config.resume is None else decide(args, partial(_find_part, owner, fields))
    if part is None or not is_finished(part):
        return train(dataclasses.replace(config, resume=None if part is None else str(part)))
    if is_main_process():
        say(f"seed {config.seed}: already finished in {part}")
    return read_record(part)["final_metrics"], part


def _find_part(owner: Path, fields: Mapping[str, Any]) -> Path | None:
    """Return the finished part of a run with these fields, else its newest part with a complete checkpoint, or None.

    A part without its report gets it. Killed parts without a checkpoint are recorded as interrupted.
    """
    expected = {"owner": owner.name, **fields}

    def is_part(record: Mapping[str, Any]) -> bool:
        return all(record.get(name) == value for name, value in expected.items())

    runs = [path.parent for path in sorted(owner.parent.glob(f"*/{RECORD}"))]
    parts = [run for run in runs if is_part(read_sound_record(run))]
    for run in parts:
        finish_report(run)
    finished = [run for run in parts if is_finished(run)]
    resumable = [run for run in parts if list_complete_checkpoints(run / CHECKPOINTS)]
    for run in set(parts).difference(finished, resumable):
        record_abandoned_run(run)
    return next(reversed(finished or resumable), None)
