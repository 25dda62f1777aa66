"""A grid of settings by seeds: which of its runs there are, what they reached, and what was chosen.

A run belongs to a cell and a seed if the hash of its settings is that of the cell with this seed. So repeating a
command finds what is done, and runs with other settings in the same folder do not mix with them.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from adadepth.errors import CheckpointError, ConfigError
from adadepth.report.sweep import CellScores, summarise_grid
from adadepth.report.table import is_number
from adadepth.runs.directory import RECORD, read_record
from adadepth.settings import ExperimentConfig, Mode
from adadepth.settings.experiment import EvalStrategy, SaveStrategy
from adadepth.settings.fingerprint import result_hash
from adadepth.system.console import say

RUNS, SUBMISSION = "runs", "submission"
_EPOCH = "train/epoch"


class Job(NamedTuple):
    """A job of the grid, and the seeds of its runs."""

    overrides: list[str]
    seeds: range

    def only(self, seed: int) -> list[str]:
        """The overrides of one of its runs."""
        return [*self.overrides, f"seed={seed}", "seeds=1"]


@dataclass(frozen=True)
class Combination:
    """One combination of the swept values.

    Attributes:
        settings: The swept keys, and its values of them; seeds are no cells of their own.
        jobs: Those that train it.
        hashes: The hash of the run with each seed.
    """

    settings: Mapping[str, str]
    jobs: list[Job] = field(default_factory=list)
    hashes: dict[int, str] = field(default_factory=dict)

    def of_seed(self, seed: int) -> list[str]:
        """The overrides of one of its runs."""
        return next(job for job in self.jobs if seed in job.seeds).only(seed)


def cells_of(jobs: Iterable[tuple[list[str], ExperimentConfig]], swept: Iterable[str]) -> list[Combination]:
    """The cells of a grid.

    Args:
        jobs: The overrides and the configuration of every job.
        swept: Keys with several values.
    """
    keys, cells = [key for key in swept if key != "seed"], dict[tuple[str, ...], Combination]()
    for overrides, config in jobs:
        given = dict(override.split("=", 1) for override in overrides)
        settings = {key: given[key] for key in keys}
        cell = cells.setdefault(tuple(settings.values()), Combination(settings))
        cell.jobs.append(Job(overrides, range(config.seed, config.seed + config.seeds)))
        for seed in cell.jobs[-1].seeds:
            cell.hashes[seed] = result_hash(dataclasses.replace(config, seed=seed, seeds=1))
    return list(cells.values())


def check_epochs(config: ExperimentConfig, from_epoch: int) -> None:
    """Whether a run evaluates and keeps every epoch, some of which compete.

    Raises:
        ConfigError: If not, in one line.
    """
    trainer = config.trainer
    if config.mode is not Mode.train:
        raise ConfigError(f"mode={config.mode}: a grid is trained, mode=train")
    if trainer.eval_strategy is not EvalStrategy.epoch or trainer.save_strategy is not SaveStrategy.epoch:
        raise ConfigError("trainer.eval_strategy, trainer.save_strategy: must be epoch to choose an epoch")
    if trainer.save_total_limit is not None:
        raise ConfigError(f"trainer.save_total_limit={trainer.save_total_limit}: must be null to choose an epoch")
    if trainer.max_steps == -1 and trainer.num_train_epochs < from_epoch:
        raise ConfigError(
            f"hydra.sweeper.from_epoch={from_epoch}: must be at most "
            f"trainer.num_train_epochs={trainer.num_train_epochs:g}"
        )


def missing_jobs(cells: Sequence[Combination], runs: Mapping[str, Path]) -> list[tuple[int, list[str]]]:
    """The number of the cell and the overrides of every job that is still to be done.

    A job of which there is nothing is done as it is; of a begun one every missing seed is a job.
    """
    found = []
    for number, cell in enumerate(cells):
        for job in cell.jobs:
            missing = [seed for seed in job.seeds if cell.hashes[seed] not in runs]
            is_untouched = len(missing) == len(job.seeds)
            found += [(number, each) for each in ([job.overrides] if is_untouched else map(job.only, missing))]
    return found


def finished_runs(folder: Path) -> dict[str, Path]:
    """The finished runs in the folder of a sweep by their hash; of several the newest.

    A damaged run is named in a warning and counts as missing.
    """
    found = {}
    for path in sorted(folder.glob(f"{RUNS}/*/*/{RECORD}")):
        if (record := sound_record(path.parent)).get("status") == "finished" and "result_hash" in record:
            found[record["result_hash"]] = path.parent
    return found


def sound_record(run: Path) -> dict[str, Any]:
    """Read the record of a run; empty where it is damaged, which a warning says once."""
    try:
        return read_record(run)
    except CheckpointError as error:
        say_warning_once(f"{error}; that run is made anew")
        return {}


@cache
def say_warning_once(text: str) -> None:
    """Say a warning the first time."""
    say(f"warning: {text}")


def epochs_of(run: Path, metric: str) -> dict[int, tuple[float, Path]]:
    """The score of every whole epoch of a run, and its checkpoint, whether or not that is still there."""
    from adadepth.report.run_files import read_run  # torch, which `--help` has no use for

    lines = [line for line in read_run(run).metrics if is_number(line.get(_EPOCH)) and is_number(line.get(metric))]
    return {
        int(line[_EPOCH]): (float(line[metric]), run / "checkpoints" / f"checkpoint-{line['step']}")
        for line in lines
        if line[_EPOCH] > 0 and float(line[_EPOCH]).is_integer()
    }


def choose(
    cells: Sequence[Combination], runs: Mapping[str, Path], failures: Mapping[int, str], metric: str, **options: Any
) -> dict[str, Any]:
    """The summary of a grid; see `summarise_grid`, which gets the `options`.

    Of what was chosen there are `run` and `checkpoint` as well.
    """
    reached = [
        {seed: epochs_of(runs[name], metric) for seed, name in cell.hashes.items() if name in runs} for cell in cells
    ]
    scores = [
        {seed: {epoch: score for epoch, (score, _) in epochs.items()} for seed, epochs in seeds.items()}
        for seeds in reached
    ]
    found = summarise_grid(
        [
            CellScores(cell.settings, sorted(cell.hashes), scores[number], failures.get(number))
            for number, cell in enumerate(cells)
        ],
        **options,
    )
    if chosen := found["chosen"]:
        checkpoint = reached[chosen["cell"]][chosen["seed"]][chosen["epoch"]][1]
        chosen |= {"run": checkpoint.parents[1], "checkpoint": checkpoint}
    return found


def newest_evaluation(folder: Path, checkpoint: Path) -> Path | None:
    """The newest finished evaluation of a checkpoint below a folder."""
    records = {path.parent: sound_record(path.parent) for path in sorted(folder.glob(f"*/*/{RECORD}"))}
    done = [
        run
        for run, record in records.items()
        if (record.get("status"), record.get("evaluated")) == ("finished", str(checkpoint))
    ]
    return done[-1] if done else None


def write_grid_report(folder: Path, found: Mapping[str, Any], runs: Iterable[Path]) -> Path:
    """Write the page of a grid: what was found in it, and its runs side by side; returns its path."""
    from adadepth.report.comparison import comparison_sections
    from adadepth.report.groups import compare  # as above
    from adadepth.report.pages import draw
    from adadepth.report.run_files import read_run
    from adadepth.report.sweep import write_grid

    beside = comparison_sections(compare(map(read_run, runs)), folder)
    page = write_grid(folder, found, beside)
    draw(beside, folder)
    return page


def take_submissions(evaluation: Path, folder: Path) -> list[str]:
    """Copy the predictions of test sets from an evaluation to the folder of the sweep; returns the files' names."""
    shutil.rmtree(folder / SUBMISSION, ignore_errors=True)
    files = sorted((evaluation / SUBMISSION).glob("*.tsv"))
    if files:
        shutil.copytree(evaluation / SUBMISSION, folder / SUBMISSION)
    return [file.name for file in files]


def delete_checkpoints(runs: Iterable[Path], kept: Path) -> None:
    """Delete the checkpoints of finished runs, but for the one that was chosen."""
    for run in runs:
        for checkpoint in (run / "checkpoints").glob("checkpoint-*"):
            if checkpoint != kept:
                shutil.rmtree(checkpoint)
