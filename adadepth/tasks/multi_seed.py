"""Training of one experiment with several seeds, and the summary of their metrics."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from adadepth.config import ExperimentConfig
from adadepth.report.run_files import SEEDS, write_json
from adadepth.report.seeds import format_seeds, summarise_seeds
from adadepth.runs.directory import open_run, run_directory
from adadepth.runtime.console import say
from adadepth.runtime.distributed import decide, is_main_process
from adadepth.tasks.report import draw_run_figures, write_run_report
from adadepth.training.arguments import training_arguments

Train = Callable[[ExperimentConfig], tuple[dict[str, float], Path]]  # returns final metrics and run directory


def train_with_seeds(config: ExperimentConfig, train: Train) -> dict[str, float]:
    """Train with the seeds `seed`, `seed + 1`, ..., and summarise the runs.

    Each run has its own run directory; the summary is written to another one.

    Returns:
        Means of the final metrics that are present in all runs.
    """
    args = training_arguments(config, "unused: each run creates its own")
    directory = decide(args, lambda: run_directory(config))
    is_main = is_main_process()
    runs: list[tuple[int, dict[str, float]]] = []
    directories: dict[str, str] = {}
    with open_run(config, directory, is_main) as run:
        for seed in range(config.seed, config.seed + config.seeds):
            final_metrics, folder = train(dataclasses.replace(config, seed=seed, seeds=1))
            runs.append((seed, dict(final_metrics)))
            directories[str(seed)] = os.path.relpath(folder, directory)
            summary = {**summarise_seeds(runs), "runs": directories}
            if is_main:
                write_json(directory / SEEDS, summary)
        metrics = {name: scores["mean"] for name, scores in summary["metrics"].items() if scores["n"] == len(runs)}
        run.update(final_metrics=metrics)
    if is_main:
        say(f"{format_seeds(summary)}\nreport: {write_run_report(directory)}")
        draw_run_figures(directory)
    return metrics
