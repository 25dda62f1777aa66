"""Several runs on one page: those that `runs=` names, and those of a sweep."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from adadepth.analysis.comparisons.best import best_line
from adadepth.analysis.comparisons.folders import of_sweep, once, runs_in
from adadepth.analysis.comparisons.groups import Comparison, compare
from adadepth.analysis.comparisons.page import COMPARISONS, draw_comparison, write_comparison
from adadepth.analysis.comparisons.trials import Search
from adadepth.analysis.files import RunFiles
from adadepth.config import ExperimentConfig
from adadepth.console import say
from adadepth.errors import CheckpointError, nearest
from adadepth.training.run_directory import resolve_run


def compare_runs(config: ExperimentConfig) -> None:
    """`mode=report runs=[...]`: put runs, and those in folders, side by side.

    Raises:
        CheckpointError: If a folder is not there or holds no run, or no run can be read.
    """
    comparison = compare(once(run for value in config.runs for run in _named(value, config)))
    if not comparison.runs:
        raise CheckpointError(f"runs={config.runs}: nothing to compare: {' '.join(comparison.left_out)}")
    _write(comparison, Path(config.output_dir))


def _named(value: str, config: ExperimentConfig) -> list[RunFiles]:
    """The runs that an entry of `runs` stands for."""
    folder = resolve_run(value, config) if value == "latest" else Path(value)
    if not os.path.isdir(folder):
        known = map(str, folder.parent.iterdir()) if os.path.isdir(folder.parent) else ()
        raise CheckpointError(f"runs: there is no folder {value}{nearest(value, known)}")
    found = runs_in(folder)
    if not found:
        raise CheckpointError(f"runs: there is no run in {value}")
    return found


def compare_sweep(
    sweep: str, folders: Iterable[str], failures: Mapping[str, str], search: Search | None = None
) -> None:
    """Put the runs of a sweep side by side, as far as they lie where this process sees them; without any, do nothing.

    Args:
        sweep: What run.json names in `sweep`.
        folders: The `output_dir` of its jobs.
        failures: By job why it failed.
        search: That the runs are the trials of.
    """
    places = [Path(folder) for folder in dict.fromkeys(folders)]
    runs = of_sweep(places, sweep)
    comparison = replace(compare(runs, list(_untold(failures, runs))), search=search)
    if comparison.runs:
        _write(comparison, places[0])


def _untold(failures: Mapping[str, str], runs: Iterable[RunFiles]) -> Iterator[str]:
    """Sentences about the jobs that failed before they had a run, which would say it itself."""
    told = Counter(run.run.get("error") for run in runs)
    for job, why in failures.items():
        if told[why]:
            told[why] -= 1
        else:
            yield f"{job}: failed; {why}."


def _write(comparison: Comparison, output: Path) -> None:
    folder = output / COMPARISONS / f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{_hash(comparison.runs)}"
    if (line := best_line(comparison)) is not None:
        say(line)
    say(f"comparison: {write_comparison(folder, comparison)}")
    draw_comparison(folder, comparison)  # most of the time: whoever waits for the page has it


def _hash(runs: Sequence[RunFiles]) -> str:
    """Eight hexadecimal digits that stand for the folders of some runs."""
    names = "\n".join(sorted(str(run.directory.resolve()) for run in runs))
    return hashlib.sha256(names.encode()).hexdigest()[:8]
