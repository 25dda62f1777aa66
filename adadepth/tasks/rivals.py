"""Trained matched baselines ("rivals"): networks of fixed depth, compared with an adaptive run of equal compute.

`rival_of=RUN` trains the network of an adaptive run, or of a summary over seeds, once for each whole depth next to its
compute. Every baseline is an ordinary run, and a part of a run that is resumed as a whole. The networks become rows of
rivals.json and of the report of the adaptive run.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from adadepth.config import BudgetConfig, ExperimentConfig
from adadepth.config.fingerprint import hash_result_settings
from adadepth.errors import CheckpointError, ConfigError
from adadepth.models.registry import family
from adadepth.report.matched_networks import average_compute
from adadepth.report.resources import EQUAL_COMPUTE
from adadepth.report.run_files import SEEDS, RunFiles, read_run, read_seed_runs, write_json
from adadepth.report.seeds import summarise_seeds
from adadepth.runs.commands import is_given
from adadepth.runs.directory import (
    CHECKPOINTS,
    FINISHED,
    MODEL,
    RIVAL_SUFFIX,
    find_owner,
    flat,
    get_plain_settings,
    has_parts,
    open_run,
    own_runs,
    read_settings,
    resolve_run,
    run_directory,
)
from adadepth.runtime.distributed import decide, is_main_process
from adadepth.tasks.multi_seed import Train, train_part
from adadepth.tasks.report import write_and_draw
from adadepth.tasks.rival_comparison import describe_network, record_networks, show_comparison
from adadepth.training.arguments import training_arguments


class AdaptiveRuns(NamedTuple):
    """Run with which matched baselines are compared, or the runs of a summary over seeds.

    Attributes:
        directory: Directory of the run, or of the summary.
        runs: Files of the run of each seed.
        networks: Row of rivals.json of each run.
    """

    directory: Path
    runs: Sequence[RunFiles]
    networks: Sequence[Mapping[str, Any]]

    @property
    def seeds(self) -> list[int]:
        """Seed of each run."""
        return [row["seed"] for row in self.networks]

    @property
    def compute(self) -> float:
        """Mean over seeds of the multiply-accumulates that the depths require."""
        compute = average_compute(self.networks)
        assert compute is not None, "checked"
        return compute


class TrainedRival(NamedTuple):
    """Matched baseline of one seed: its row of rivals.json, and its final metrics."""

    row: Mapping[str, Any]
    metrics: Mapping[str, float]


def train_rivals(config: ExperimentConfig, train: Train) -> dict[str, float]:
    """Train the matched baselines of an adaptive run, compare them with it, and return the metrics of one of them.

    They are means over seeds of the deepest baseline of at most the compute of the adaptive network or, without such a
    baseline, of the shallowest one.

    Raises:
        CheckpointError: If the adaptive run is not finished, has no measured compute, or was trained in another way.
        ConfigError: If the seeds are those of other runs.
    """
    if config.resume is not None and not has_parts(resolve_run(config.resume, config, needs=CHECKPOINTS)):
        return _resume_part(config, train)
    adaptive, args = find_adaptive_runs(config), training_arguments(config, "unused: each run creates its own")
    config = dataclasses.replace(
        config,
        name=_rename_as_adaptive(config).name + RIVAL_SUFFIX,  # a resumed run has the suffix
        rival_of=str(adaptive.directory),
        seed=adaptive.seeds[0],
        seeds=len(adaptive.seeds),
    )
    directory = decide(args, lambda: run_directory(config))

    def report() -> None:
        write_and_draw(directory)

    with open_run(config, directory, is_main_process(), report) as run, own_runs(directory):
        run.update(trains_baselines=True)
        rivals = _train_neighbours(config, train, adaptive, directory)
        matched = _select_matched(adaptive, rivals)
        summary = summarise_seeds([(rival.row["seed"], rival.metrics) for rival in matched])
        metrics = {name: scores["mean"] for name, scores in summary["metrics"].items() if scores["n"] == len(matched)}
        run.update(final_metrics=metrics)
        if is_main_process():
            folders = {str(rival.row["seed"]): os.path.relpath(rival.row["run"], directory) for rival in matched}
            write_json(directory / SEEDS, {**summary, "runs": folders})
            rows = [rival.row for depth in sorted(rivals) for rival in rivals[depth]]
            for folder in (directory, adaptive.directory):
                record_networks(folder, adaptive.networks, rows)
    if is_main_process():
        show_comparison(_rename_as_adaptive(config), adaptive.directory)
    return metrics


def _resume_part(config: ExperimentConfig, train: Train) -> dict[str, float]:
    """Resume a single matched baseline, and compare it with the adaptive run."""
    assert config.rival_of is not None
    metrics, folder = train(config)
    if is_main_process():
        adaptive, row = Path(config.rival_of), describe_network(read_run(folder), "fixed depth")
        record_networks(adaptive, [describe_network(read_run(adaptive), "adaptive")], [row])
        show_comparison(_rename_as_adaptive(config), adaptive)
    return metrics


def _rename_as_adaptive(config: ExperimentConfig) -> ExperimentConfig:
    """Return a configuration with the name of the adaptive run, in whose folder commands look for the latest run."""
    return dataclasses.replace(config, name=config.name.removesuffix(RIVAL_SUFFIX))


# ---- the adaptive run


def find_adaptive_runs(config: ExperimentConfig) -> AdaptiveRuns:
    """Find the run that `rival_of` names, or the runs of a summary over seeds, and check that it can be matched.

    Raises:
        CheckpointError: If it is not finished, has no measured compute, or was trained in another way.
        ConfigError: If the seeds are those of other runs.
    """
    source, directory = f"rival_of={config.rival_of}", _find_adaptive_directory(config)
    files = read_run(directory)
    runs = read_seed_runs(files) or [files]
    for run in (files, *runs):
        has_compute = "adaptive_macs" in (run.halting.get("cost") or {}) or (run is files and run not in runs)
        if run.run.get("status") != FINISHED or not has_compute:
            raise CheckpointError(f"{source}: {run.directory} is not a finished run with measured compute")
    for run in runs:
        if (problem := _find_difference(config, run)) is not None:
            raise CheckpointError(f"{source}: {problem}")
    adaptive = AdaptiveRuns(directory, runs, [describe_network(run, "adaptive") for run in runs])
    if config.seeds not in (1, len(runs)):
        raise ConfigError(f"seeds={config.seeds}: {source} has {len(runs)}; leave it out")
    if is_given("seed") and config.seed != adaptive.seeds[0]:
        raise ConfigError(f"seed={config.seed}: {source} has {adaptive.seeds[0]}; leave it out")
    return adaptive


def _find_adaptive_directory(config: ExperimentConfig) -> Path:
    """Return the directory of the run or summary that `rival_of` names; the summary if it has the latest run."""
    assert config.rival_of is not None
    if config.rival_of != "latest" and has_parts(Path(config.rival_of)):
        return Path(config.rival_of)
    directory = resolve_run(config.rival_of, config, needs=MODEL)  # an evaluation has no model
    summary = find_owner(directory) if config.rival_of == "latest" else None
    return summary if summary is not None and has_parts(summary) else directory


def _find_difference(config: ExperimentConfig, run: RunFiles) -> str | None:
    """Return why a run has no matched baseline with these settings, or None if it has."""
    stored = read_settings(run.directory)
    theirs, mine = stored.dataset.name, config.dataset.name
    if (stored.get("task"), theirs) != (config.task, mine):
        other = f"task={stored.get('task')} on dataset={theirs}"
        return f"that run has {other}; a compute-matched baseline must be trained like the run"
    if stored.get("rival_of") is not None:
        return f"{run.directory} is itself a matched baseline, of {stored.rival_of}"
    before, now = flat(dict(stored.model)), flat(get_plain_settings(config)["model"])
    changed = [key for key in now if before.get(key, now[key]) != now[key]]
    if changed:
        listed = ", ".join(f"model.{key} was {before[key]} and now is {now[key]}" for key in changed)
        return f"{listed}; a compute-matched baseline must be trained like the run"
    everyone = run.halting["classes"]["all"]
    if now.get("exit_rule", "") is None and everyone["std"] == 0 and everyone["mean"] == run.halting["max_depth"]:
        return f"that run has no model.exit_rule, so that every {run.halting['unit']} has full depth: nothing to match"
    return None


# ---- the matched baselines


def _train_neighbours(
    config: ExperimentConfig, train: Train, adaptive: AdaptiveRuns, directory: Path
) -> dict[int, list[TrainedRival]]:
    """Train networks of fixed depth for every seed, until their compute encloses that of the adaptive network.

    Args:
        config: Configuration of the run that trains them all.
        train: Function that trains a run.
        adaptive: Runs with which they are compared.
        directory: Directory of the run that trains them all.

    Returns:
        The baselines of every seed, by depth.
    """
    most, least = adaptive.networks[0]["max_depth"], _find_least_depth(config)
    depth: int | None = min(max(round(fmean(row["mean"] for row in adaptive.networks)), least), most)
    rivals: dict[int, list[TrainedRival]] = {}
    while depth is not None:
        rivals[depth] = [_train_rival(config, train, run, depth, directory) for run in adaptive.runs]
        compute = {depth: average_compute([rival.row for rival in trained]) for depth, trained in rivals.items()}
        depth = choose_next_depth(adaptive.compute, compute, least, most)
    return rivals


def choose_next_depth(adaptive: float, trained: Mapping[int, float | None], least: int, most: int) -> int | None:
    """Return the next fixed depth to train, or None if the trained ones enclose the compute of the adaptive network.

    Compute grows with depth, and values that differ by at most `EQUAL_COMPUTE` are equal.

    Args:
        adaptive: Multiply-accumulates of the adaptive network.
        trained: Measured multiply-accumulates by consecutive trained depths; None if they were not measured.
        least: Smallest fixed depth.
        most: Largest fixed depth.
    """
    compute = [macs for macs in trained.values() if macs is not None]
    if min(compute, default=0.0) > (1 + EQUAL_COMPUTE) * adaptive:
        return min(trained) - 1 if min(trained) > least else None
    if compute and max(compute) < (1 - EQUAL_COMPUTE) * adaptive:
        return max(trained) + 1 if max(trained) < most else None
    return None


def _find_least_depth(config: ExperimentConfig) -> int:
    """Return the smallest number of updates with which the family describes a network of fixed depth."""
    descriptor = family(config.model.name)
    assert callable(descriptor.fixed_depth), "validated"
    least = descriptor.budget.least
    try:
        descriptor.fixed_depth(config.model, least)
    except ConfigError:
        least += 1
    return least


def _train_rival(
    config: ExperimentConfig, train: Train, adaptive: RunFiles, depth: int, directory: Path
) -> TrainedRival:
    """Train the matched baseline of an adaptive run at one depth, with the seed of the run.

    If the run that trains all baselines is resumed, a finished one is kept.
    """
    rival = build_rival_config(config, adaptive, depth)
    args = training_arguments(rival, "unused: the run creates its own")
    metrics, folder = train_part(rival, train, directory, result_hash=hash_result_settings(rival))
    row = decide(args, lambda: describe_network(read_run(folder), "fixed depth"))
    return TrainedRival({**row, "depth": depth, "group": directory.name}, metrics)


def build_rival_config(config: ExperimentConfig, adaptive: RunFiles, depth: int) -> ExperimentConfig:
    """Return the configuration of the network of an adaptive run with one fixed depth for all units.

    Args:
        config: Configuration with the settings of the adaptive run.
        adaptive: Files of the adaptive run, which names the seed.
        depth: Depth in updates of the adaptive network.
    """
    descriptor = family(config.model.name)
    assert callable(descriptor.fixed_depth), "validated"
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, **descriptor.fixed_depth(config.model, depth)),
        budget=BudgetConfig(),
        matched_baseline=False,
        rival_of=str(adaptive.directory),
        seed=adaptive.run["seed"],
        seeds=1,
    )


def _select_matched(adaptive: AdaptiveRuns, rivals: Mapping[int, list[TrainedRival]]) -> list[TrainedRival]:
    """Return the deepest baselines of at most the compute of the adaptive network, or the shallowest ones."""
    affordable = [
        depth
        for depth, trained in rivals.items()
        if (average_compute([rival.row for rival in trained]) or 0.0) <= (1 + EQUAL_COMPUTE) * adaptive.compute
    ]
    return rivals[max(affordable) if affordable else min(rivals)]
