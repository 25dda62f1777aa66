"""Where the runs of a comparison lie: folders of runs, and folders that hold some."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from adadepth.analysis.files import CONFIG, METRICS, RUN, RunFiles, is_summary_of_seeds, read_run

_MARKS = frozenset({RUN, CONFIG, METRICS})


def runs_in(folder: Path) -> list[RunFiles]:
    """The runs in a folder, or the folder itself if it is a run.

    What lies in a run, such as its evaluations, is not looked for. A summary of seeds stands for its runs. Where there
    are trainings, evaluations beside them are left out.
    """
    found = [run for path in _folders(folder) for run in _whole(read_run(path))]
    trainings = [run for run in found if run.run.get("mode", "train") == "train"]
    return once(trainings or found)


def of_sweep(folders: Iterable[Path], sweep: str) -> list[RunFiles]:
    """The runs below some folders that jobs of one sweep made, evaluations of runs among them; summaries of seeds not.

    Args:
        folders: Where to look.
        sweep: What run.json names in `sweep`.
    """
    records = (path for folder in folders for path in sorted(folder.rglob(RUN)) if sweep in path.read_text("utf-8"))
    runs = (read_run(path.parent) for path in records)
    return once(run for run in runs if run.run.get("sweep") == sweep and not is_summary_of_seeds(run))


def once(runs: Iterable[RunFiles]) -> list[RunFiles]:
    """Every run once, in the order in which they are named."""
    return list({run.directory.resolve(): run for run in runs}.values())


def _folders(folder: Path) -> Iterator[Path]:
    """Folders of runs from the oldest on, as their names begin with the time."""
    for path, below, files in os.walk(folder):
        below.sort()
        if _MARKS.intersection(files):
            below.clear()
            yield Path(path)


def _whole(run: RunFiles) -> list[RunFiles]:
    """A run, or those that a summary of seeds is of; one of an older version does not say them, and is none."""
    return seeds_of(run) if is_summary_of_seeds(run) else [run]


def seeds_of(summary: RunFiles) -> list[RunFiles]:
    """The runs that a summary of seeds is of, as far as it says where they are."""
    return [read_run(summary.directory / place) for place in (summary.seeds.get("runs") or {}).values()]
