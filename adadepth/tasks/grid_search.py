"""Grid search over settings and seeds: missing and finished runs, their scores, and the best combination.

A run belongs to a cell and a seed if the hash of its settings is the same. A repeated command therefore finds its
finished runs, and ignores runs with other settings in the same folder.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from adadepth.config import ExperimentConfig, Mode
from adadepth.config.env_redaction import redact_record
from adadepth.config.experiment import EvalStrategy, SaveStrategy
from adadepth.config.fingerprint import hash_result_settings
from adadepth.errors import CheckpointError, ConfigError
from adadepth.report.sweep import CellScores, summarise_grid
from adadepth.report.table import is_number
from adadepth.runs.directory import RECORD, read_record
from adadepth.runtime.console import say

RUNS, SUBMISSION = "runs", "submission"
_EPOCH = "train/epoch"


class Job(NamedTuple):
    """Job of a sweep: its overrides, and the seeds of its runs."""

    overrides: list[str]
    seeds: range

    def only(self, seed: int) -> list[str]:
        """Return the command-line overrides that run this job with one seed."""
        return [*self.overrides, f"seed={seed}", "seeds=1"]


@dataclass(frozen=True)
class GridCell:
    """Cell of a grid search: one combination of the swept values.

    Attributes:
        settings: Values of the swept keys, without the seed.
        jobs: Jobs that train the runs of the cell.
        hashes: Hash of the settings of the run with each seed.
    """

    settings: Mapping[str, str]
    jobs: list[Job] = field(default_factory=list)
    hashes: dict[int, str] = field(default_factory=dict)

    def of_seed(self, seed: int) -> list[str]:
        """Return the command-line overrides that run this grid cell with one seed."""
        return next(job for job in self.jobs if seed in job.seeds).only(seed)


def group_into_cells(jobs: Iterable[tuple[list[str], ExperimentConfig]], swept: Iterable[str]) -> list[GridCell]:
    """Group the jobs of a sweep into grid cells, which differ in more than the seed.

    Args:
        jobs: Overrides and configuration of every job.
        swept: Keys that have several values.
    """
    keys, cells = [key for key in swept if key != "seed"], dict[tuple[str, ...], GridCell]()
    for overrides, config in jobs:
        values = dict(override.split("=", 1) for override in overrides)
        settings = {key: values[key] for key in keys}
        cell = cells.setdefault(tuple(settings.values()), GridCell(settings))
        cell.jobs.append(Job(overrides, range(config.seed, config.seed + config.seeds)))
        for seed in cell.jobs[-1].seeds:
            cell.hashes[seed] = hash_result_settings(dataclasses.replace(config, seed=seed, seeds=1))
    return list(cells.values())


def check_epochs(config: ExperimentConfig, from_epoch: int) -> None:
    """Raise an error unless the configuration evaluates and saves a checkpoint after every epoch.

    Raises:
        ConfigError: If it does not; the message names the setting.
    """
    trainer = config.trainer
    if config.mode is not Mode.train:
        raise ConfigError(f"mode={config.mode}: a grid search needs mode=train")
    if trainer.eval_strategy is not EvalStrategy.epoch or trainer.save_strategy is not SaveStrategy.epoch:
        raise ConfigError("trainer.eval_strategy, trainer.save_strategy: must be epoch to choose an epoch")
    if trainer.save_total_limit is not None:
        raise ConfigError(f"trainer.save_total_limit={trainer.save_total_limit}: must be null to choose an epoch")
    if trainer.max_steps == -1 and trainer.num_train_epochs < from_epoch:
        raise ConfigError(
            f"hydra.sweeper.from_epoch={from_epoch}: must be at most "
            f"trainer.num_train_epochs={trainer.num_train_epochs:g}"
        )


def list_missing_jobs(cells: Sequence[GridCell], runs: Mapping[str, Path]) -> list[tuple[int, list[str]]]:
    """Return the cell number and the overrides of every run that is not finished yet.

    A job without any finished run is returned unchanged. Otherwise every missing seed is returned as a separate job.
    """
    todo = []
    for number, cell in enumerate(cells):
        for job in cell.jobs:
            missing = [seed for seed in job.seeds if cell.hashes[seed] not in runs]
            is_untouched = len(missing) == len(job.seeds)
            todo += [(number, run) for run in ([job.overrides] if is_untouched else map(job.only, missing))]
    return todo


def find_finished_runs(folder: Path) -> dict[str, Path]:
    """Return the newest finished run in the folder of a sweep, by settings hash.

    A damaged run counts as missing, with a warning.
    """
    runs = {}
    for path in sorted(folder.glob(f"{RUNS}/*/*/{RECORD}")):
        if (record := read_sound_record(path.parent)).get("status") == "finished" and "result_hash" in record:
            runs[record["result_hash"]] = path.parent
    return runs


def read_sound_record(run: Path) -> dict[str, Any]:
    """Read the record of a run; if it is damaged, warn once and return an empty record."""
    try:
        return read_record(run)
    except CheckpointError as error:
        log_warning_once(f"{error}; this run is repeated")
        return {}


@cache
def log_warning_once(text: str) -> None:
    """Log a warning, but only the first time it occurs."""
    say(f"warning: {text}")


def read_epochs(run: Path, metric: str) -> dict[int, tuple[float, Path]]:
    """Return score and checkpoint path of every epoch of a run that was completed.

    The checkpoint may have been deleted.
    """
    from adadepth.report.run_files import read_run  # imports torch, which `--help` does not need

    lines = [line for line in read_run(run).metrics if is_number(line.get(_EPOCH)) and is_number(line.get(metric))]
    return {
        int(line[_EPOCH]): (float(line[metric]), run / "checkpoints" / f"checkpoint-{line['step']}")
        for line in lines
        if line[_EPOCH] > 0 and float(line[_EPOCH]).is_integer()
    }


def choose(
    cells: Sequence[GridCell], runs: Mapping[str, Path], failures: Mapping[int, str], metric: str, **options: Any
) -> dict[str, Any]:
    """Select the best cell and epoch of a grid by mean score over seeds; `options` go to `summarise_grid`.

    In the summary, the field `chosen` also has `run` and `checkpoint`.
    """
    reached = [
        {seed: read_epochs(runs[name], metric) for seed, name in cell.hashes.items() if name in runs} for cell in cells
    ]
    scores = [
        {seed: {epoch: score for epoch, (score, _) in epochs.items()} for seed, epochs in seeds.items()}
        for seeds in reached
    ]
    summary = summarise_grid(
        [
            CellScores(cell.settings, sorted(cell.hashes), scores[number], failures.get(number))
            for number, cell in enumerate(cells)
        ],
        **options,
    )
    if best := summary["chosen"]:
        checkpoint = reached[best["cell"]][best["seed"]][best["epoch"]][1]
        best |= {"run": checkpoint.parents[1], "checkpoint": checkpoint}
    return summary


def find_newest_evaluation(folder: Path, checkpoint: Path) -> Path | None:
    """Return the newest finished evaluation of a checkpoint in a folder or its subfolders."""
    records = {path.parent: read_sound_record(path.parent) for path in sorted(folder.glob(f"*/*/{RECORD}"))}
    done = [
        run
        for run, record in records.items()
        if (record.get("status"), record.get("evaluated")) == ("finished", redact_record(str(checkpoint)))
    ]
    return done[-1] if done else None


def write_grid_report(folder: Path, summary: Mapping[str, Any], runs: Iterable[Path]) -> Path:
    """Write the report page of a grid search with the comparison of its runs, and return its path."""
    from adadepth.report.comparison import build_comparison_sections
    from adadepth.report.pages import draw
    from adadepth.report.run_files import read_run
    from adadepth.report.run_groups import compare  # imports torch
    from adadepth.report.sweep import write_grid

    sections = build_comparison_sections(compare(map(read_run, runs)), folder)
    page = write_grid(folder, summary, sections)
    draw(sections, folder)
    return page


def take_submissions(evaluation: Path, folder: Path) -> list[str]:
    """Copy the submission files of the selected evaluation to the folder of the sweep; return their names."""
    shutil.rmtree(folder / SUBMISSION, ignore_errors=True)
    files = sorted((evaluation / SUBMISSION).glob("*.tsv"))
    if files:
        shutil.copytree(evaluation / SUBMISSION, folder / SUBMISSION)
    return [file.name for file in files]


def delete_checkpoints(runs: Iterable[Path], excluded: Path) -> None:
    """Delete the checkpoints of finished runs, except for `excluded`, which is still needed."""
    for run in runs:
        for checkpoint in (run / "checkpoints").glob("checkpoint-*"):
            if checkpoint != excluded:
                shutil.rmtree(checkpoint)
