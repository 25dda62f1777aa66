"""Several runs of one experiment that differ in their seed only, summarised as mean and deviation."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from adadepth.report.run_files import SEEDS, write_json
from adadepth.report.seeds import seeds_text, summarise_seeds
from adadepth.runs.directory import open_run, run_directory
from adadepth.settings import ExperimentConfig
from adadepth.system.console import say
from adadepth.system.processes import decide
from adadepth.tasks.report import draw_run_figures, write_run_report
from adadepth.training.arguments import training_arguments

Train = Callable[[ExperimentConfig], tuple[dict[str, float], Path]]  # to the final metrics and the run


def train_with_seeds(config: ExperimentConfig, train: Train) -> dict[str, float]:
    """Run `train` with the seeds `seed`, `seed + 1`, ...; every run has its own folder, and their summary one more.

    Returns:
        The means of the final metrics that all runs have.
    """
    args = training_arguments(config, "unused: each run makes its own")
    directory = decide(args, lambda: run_directory(config))
    is_main = args.process_index == 0
    runs: list[tuple[int, dict[str, float]]] = []
    places: dict[str, str] = {}
    with open_run(config, directory, is_main) as run:
        for seed in range(config.seed, config.seed + config.seeds):
            trained, folder = train(dataclasses.replace(config, seed=seed, seeds=1))
            runs.append((seed, dict(trained)))
            places[str(seed)] = os.path.relpath(folder, directory)
            summary = {**summarise_seeds(runs), "runs": places}
            if is_main:
                write_json(directory / SEEDS, summary)
        metrics = {name: found["mean"] for name, found in summary["metrics"].items() if found["n"] == len(runs)}
        run.update(final_metrics=metrics)
    if is_main:
        say(f"{seeds_text(summary)}\nreport: {write_run_report(directory)}")
        draw_run_figures(directory)
    return metrics
