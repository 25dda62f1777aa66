"""Reports and figures of runs, the console summary at a run's end, and comparisons of several runs."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from adadepth.config import ExperimentConfig
from adadepth.config.kinds import kinds
from adadepth.config.modes import modes
from adadepth.errors import CheckpointError, ConfigError, nearest
from adadepth.metrics.task_metrics import UNDEFINED, get_metric_key
from adadepth.models.registry import Family, families
from adadepth.report.baseline_comparison import to_json
from adadepth.report.comparison_tables import format_best_line
from adadepth.report.console_summary import ReferenceDepth, format_result, format_screen
from adadepth.report.file_types import REPORTING
from adadepth.report.guard import build_or_leave_out
from adadepth.report.pages import (
    COMPARISONS,
    RunReport,
    build_report,
    draw_comparison,
    draw_figures,
    write_comparison,
    write_report,
)
from adadepth.report.paper import PAPER, write_paper
from adadepth.report.run_files import RunFiles, read_run
from adadepth.report.run_groups import Comparison, Search, compare, deduplicate_runs, find_runs, find_sweep_runs
from adadepth.runs.directory import FINISHED, RECORD, read_record, resolve_run, write_jsonable
from adadepth.runs.lock import lock_directory
from adadepth.runtime.console import RESULT, is_quiet, say
from adadepth.runtime.files import convert_full_disk_errors, refuse_links


def build_run_report(directory: Path) -> RunReport:
    """Build the report of a run, with the sections of its model family, dataset type and mode, if these exist here."""
    files = read_run(directory)
    owners = (
        _find_family(files),
        kinds().get(str(files.run.get("dataset_schema"))),
        modes().get(str(files.run.get("mode"))),
    )
    return build_report(files, [importer() for owner in owners if owner is not None for importer in owner.sections])


def show_last_screen(report: RunReport, page: Path, commands: Sequence[Sequence[str]] = ()) -> None:
    """Print the summary at the end of a run: verdict, table, path of the page and next commands.

    A quiet run prints its result in two lines instead.

    Args:
        report: Report of the run.
        page: Path of the report page.
        commands: Commands to run next, as lists of words.
    """
    if is_quiet():
        say(format_result(report.files, page), RESULT)
        return
    reference = _find_reference_depth(report.files)
    screen = format_screen(report.files, report.verdict, report=page, commands=commands, reference=reference)
    say(f"\n{screen}")


def _find_reference_depth(files: RunFiles) -> ReferenceDepth | None:
    """Return the depths that a paper reports for the run's model, or None if its family has none."""
    family = _find_family(files)
    if family is None or family.reference_depth is None:
        return None
    return build_or_leave_out(family.reference_depth(), files, None)


def _find_family(files: RunFiles) -> Family | None:
    """Return the model family of a run, or None if it is not installed here."""
    return families().get((files.config.get("model") or {}).get("name", ""))


def compare_runs(config: ExperimentConfig) -> None:
    """Compare runs for `mode=report runs=[...]`, whose entries are runs or folders of runs.

    The page of the comparison has a folder beside it with the table, the figure and the commands for a paper.

    Raises:
        CheckpointError: If a folder is missing or holds no run, or no run can be read.
    """
    comparison = compare(deduplicate_runs(run for value in config.runs for run in _resolve_runs(value, config)))
    if not comparison.runs:
        raise CheckpointError(f"runs={config.runs}: no runs to compare: {' '.join(comparison.left_out)}")
    folder = _write_comparison(comparison, Path(config.output_dir))
    titles = {name: family.title or name for name, family in families().items()}
    if paths := write_paper(folder / PAPER, comparison, titles):
        say(f"paper: {folder / PAPER} ({', '.join(path.name for path in paths)})", RESULT)
    else:
        say("paper: no table, because no runs on the same data have a quality metric in common", RESULT)


def _resolve_runs(value: str, config: ExperimentConfig) -> list[RunFiles]:
    """Return the run directories for one entry of the setting `runs`."""
    folder = resolve_run(value, config) if value == "latest" else Path(value)
    if not os.path.isdir(folder):
        siblings = map(str, folder.parent.iterdir()) if os.path.isdir(folder.parent) else ()
        raise CheckpointError(f"runs: folder not found: {value}{nearest(value, siblings)}")
    runs = find_runs(folder)
    if not runs:
        raise CheckpointError(f"runs: no run found in {value}")
    return runs


def compare_sweep(
    sweep: str, folders: Iterable[str], failures: Mapping[str, str], search: Search | None = None
) -> None:
    """Compare those runs of a sweep that this machine can read; do nothing if there are none.

    Args:
        sweep: Name of the sweep, as in run.json.
        folders: `output_dir` of every job.
        failures: Reason of every failed job.
        search: Hyperparameter search, if the runs are its trials.
    """
    outputs = [Path(folder) for folder in dict.fromkeys(folders)]
    runs = find_sweep_runs(outputs, sweep)
    comparison = replace(compare(runs, list(_report_failures(failures, runs))), search=search)
    if comparison.runs:
        _write_comparison(comparison, outputs[0])


def _report_failures(failures: Mapping[str, str], runs: Iterable[RunFiles]) -> Iterator[str]:
    """Yield a sentence for every job that failed before it created a run directory."""
    errors = Counter(next(iter(str(run.run.get("error") or "").splitlines()), "") for run in runs)
    for job, why in failures.items():
        error = next((error for error, count in errors.items() if error and count and error in why), None)
        if error is not None:
            errors[error] -= 1
        else:
            yield f"{job}: failed; {why}."


def _write_comparison(comparison: Comparison, output: Path) -> Path:
    """Write the page of a comparison with its figures into a new folder, and return the folder."""
    directories = "\n".join(sorted(str(run.directory.resolve()) for run in comparison.runs))
    digest = hashlib.sha256(directories.encode()).hexdigest()[:8]
    folder = output / COMPARISONS / f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{digest}"
    if (line := format_best_line(comparison)) is not None:
        say(line, RESULT)
    say(f"comparison: {write_comparison(folder, comparison)}", RESULT)
    draw_comparison(folder, comparison)  # takes longest, so the page comes first
    return folder


def finish_report(directory: Path) -> None:
    """Write the report and the figures of a run that ended while it wrote them, and record the run as finished.

    Other runs are left as they are.

    Raises:
        CheckpointError: If the run is still writing its report, or its directory contains a link.
    """
    if read_record(directory).get("status") != REPORTING:
        return
    refuse_links(directory)
    with convert_full_disk_errors(directory), lock_directory(directory):
        write_jsonable(directory / RECORD, read_record(directory) | {"error": None})  # from the first report
        report = write_and_draw(directory)
        verdict = {"verdict": to_json(report.verdict)} if report.verdict else {}
        write_jsonable(directory / RECORD, read_record(directory) | verdict | {"status": FINISHED})


def write_and_draw(directory: Path) -> RunReport:
    """Write the report page of a run, print its path, draw the figures, and return the report."""
    report = build_run_report(directory)
    say(f"report: {write_report(report)}", RESULT)
    draw_figures(report)  # takes longest, so the page comes first
    return report


def rewrite(config: ExperimentConfig) -> None:
    """Write the report of an earlier run once more, or compare several runs, for `mode=report`.

    Raises:
        CheckpointError: If there is no such run, its record is damaged, or its directory contains a link.
    """
    if config.runs:
        compare_runs(config)
        return
    assert config.run is not None, "validated"
    directory = resolve_run(config.run, config)
    if read_record(directory).get("status") == REPORTING:
        finish_report(directory)
        return
    refuse_links(directory)
    write_and_draw(directory)


def select_objective(config: ExperimentConfig, metrics: Mapping[str, float]) -> float:
    """Return the value of the metric that `optimise` names.

    Raises:
        ConfigError: If the run lacks this metric; the message names the metrics that it has.
    """
    if config.optimise not in metrics:
        kind, _, metric = config.optimise.partition("/")
        if kind == "eval" and metric in map(get_metric_key, getattr(config.dataset, "metrics", ())):
            raise ConfigError(f"optimise={config.optimise}: undefined in this run: {UNDEFINED}")
        similar = [name for name in sorted(metrics) if name.startswith(kind)]
        hint = nearest(config.optimise, metrics)
        raise ConfigError(f"optimise={config.optimise}: not a metric of this run{hint}; it has {', '.join(similar)}")
    return float(metrics[config.optimise])
