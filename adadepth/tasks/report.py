"""The report and figures of a run, with the sections that its family and its kind of data add."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from adadepth.errors import CheckpointError, ConfigError, nearest
from adadepth.families.registry import Family, families, load
from adadepth.measure.quality import UNDEFINED, metric_key
from adadepth.report import pages
from adadepth.report.comparison_tables import best_line
from adadepth.report.groups import Comparison, Search, compare, of_sweep, once, runs_in
from adadepth.report.guard import build_or_leave_out
from adadepth.report.last_screen import ReferenceDepth, format_screen
from adadepth.report.pages import COMPARISONS, draw_comparison, write_comparison
from adadepth.report.run_files import RunFiles, read_run
from adadepth.report.section import Placed, SectionOf
from adadepth.report.verdict import verdict
from adadepth.report.worth import Verdict
from adadepth.runs.directory import read_record, resolve_run
from adadepth.settings import ExperimentConfig
from adadepth.settings.kinds import kinds
from adadepth.system.console import say
from adadepth.system.files import refuse_links


def judge(directory: Path) -> Verdict:
    """What the files of a run say of its depth."""
    return build_or_leave_out(verdict, read_run(directory), {})


def show_last_screen(directory: Path, report: Path, commands: Sequence[Sequence[str]] = ()) -> None:
    """Print the verdict of a run in brief, its table, its report and what can be run next.

    Args:
        directory: Of the run.
        report: Path of its page.
        commands: What can be run next, as words.
    """
    files = read_run(directory)
    reference = _reference_depth(files)
    screen = format_screen(files, judge(directory), report=report, commands=commands, reference=reference)
    say(f"\n{screen}")


def _reference_depth(files: RunFiles) -> ReferenceDepth | None:
    """Return what a run's family knows of published depths of such a model."""
    about = _family_of(files)
    if about is None or about.reference_depth is None:
        return None
    find: Callable[[RunFiles], ReferenceDepth | None] = load(about.reference_depth)
    return build_or_leave_out(find, files, None)


def _family_of(files: RunFiles) -> Family | None:
    """Return the family of a run; None where it is not installed any more."""
    return families().get((files.config.get("model") or {}).get("name", ""))


def write_run_report(directory: Path) -> Path:
    """Write the report of a run; returns its path."""
    return pages.write_report(directory, family_sections(directory))


def draw_run_figures(directory: Path) -> list[Path]:
    """Draw the figures of a run; returns the files."""
    return pages.draw_figures(directory, family_sections(directory))


def family_sections(directory: Path) -> list[SectionOf | Placed]:
    """The sections that the family and the kind of data of a run add; none of what is not installed any more."""
    files = read_run(directory)
    found = (_family_of(files), kinds().get(str(files.run.get("dataset_schema"))))
    return [load(place) for about in found if about is not None for place in about.sections]


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
    told = Counter(next(iter(str(run.run.get("error") or "").splitlines()), "") for run in runs)
    for job, why in failures.items():
        error = next((error for error, count in told.items() if error and count and error in why), None)
        if error is not None:
            told[error] -= 1
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


def rewrite(config: ExperimentConfig) -> None:
    """`mode=report`: draw figures and report of an earlier run again, from its files, or compare several.

    Raises:
        CheckpointError: If there is no such run, its record is damaged, or a link in it leads elsewhere.
    """
    if config.runs:
        compare_runs(config)
        return
    assert config.run is not None, "validated"
    directory = resolve_run(config.run, config)
    read_record(directory)  # of a folder that holds something else a report would say nothing
    refuse_links(directory)
    say(f"report: {write_run_report(directory)}")
    draw_run_figures(directory)  # most of the time: whoever waits for the page has it


def optimised(config: ExperimentConfig, metrics: Mapping[str, float]) -> float:
    """The metric named by `optimise`.

    Raises:
        ConfigError: If the run has no such metric, naming those it has.
    """
    if config.optimise not in metrics:
        kind, _, metric = config.optimise.partition("/")
        if kind == "eval" and metric in map(metric_key, getattr(config.dataset, "metrics", ())):
            raise ConfigError(f"optimise={config.optimise}: undefined in this run: {UNDEFINED}")
        alike = [name for name in sorted(metrics) if name.startswith(kind)]
        hint = nearest(config.optimise, metrics)
        raise ConfigError(f"optimise={config.optimise}: not a metric of this run{hint}; it has {', '.join(alike)}")
    return float(metrics[config.optimise])
