"""Hydra sweeper that runs a bench: methods on tasks over seeds, and a page with recommended methods."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.utils import JobStatus
from omegaconf import OmegaConf

from adadepth.config.declaration import setting
from adadepth.config.fingerprint import hash_result_settings
from adadepth.contrib.bench import runs as bench
from adadepth.errors import ConfigError
from adadepth.runtime.console import RESULT, say
from adadepth.runtime.distributed import is_main_process
from adadepth.runtime.failures import activity
from adadepth.tasks import grid_search
from hydra_plugins.adadepth_sweepers import GridSweeper, format_failure, wait_for_all_processes

log = logging.getLogger(__name__)


@dataclass
class BenchSettings:
    """Settings of a bench, under `hydra.sweeper`."""

    tasks: dict[str, Any] = setting(
        {}, "tasks by name: `about`, `overrides` of all runs, and `ways`, the overrides of each method"
    )
    seeds: list[int] = setting([0], "seeds of every method")
    folder: str = setting(
        "${output_dir}/${name}", "folder of the runs, the results and the page; another folder is another bench"
    )
    results: str | None = setting(None, "folder with results of runs that finished elsewhere and are not run again")


class BenchSweeper(GridSweeper):
    """Hydra sweeper that runs what is missing of a bench, and writes its results and page.

    All files are in one folder. If the command is repeated, only missing runs are executed. A failed run is skipped,
    and the page names it.

    Args:
        tasks: Settings by task: its description `about`, the `overrides` of all its runs, and `ways`, the overrides of
            each method.
        seeds: Seeds for every method.
        folder: Folder of the runs, the results and the page.
        results: Folder with results of runs that finished elsewhere and are not run again, or None without one.
    """

    settings = BenchSettings

    def __init__(self, tasks: Mapping[str, Any], seeds: Sequence[int], folder: str, results: str | None) -> None:
        super().__init__()
        self.tasks: Any = OmegaConf.to_container(OmegaConf.create(dict(tasks)))
        self.seeds, self.folder = list(seeds), Path(folder)
        self.results = None if results is None else Path(results)

    def sweep(self, arguments: list[str]) -> Any:
        """Train and evaluate the missing runs, write the page and return all results.

        Raises:
            ConfigError: If a setting of the bench or of a run is invalid, or no run has finished.
        """
        common_overrides, *rest = self.grid(arguments)[0]
        if rest:
            raise ConfigError(
                f"{' '.join(arguments)}: several values of a key can only be given in `ways`, the methods of a bench"
            )
        runs = bench.list_bench_runs(
            self.tasks, self.seeds, common_overrides, lambda overrides: self.grid(list(overrides))[0]
        )
        results = self._read_known_results(runs)
        missing_runs = bench.add_prerequisites([run for run in runs if run not in results], runs)
        self.check([self._build_training_overrides(run) for run in missing_runs if not run.prerequisites])
        trained = self._train(missing_runs)
        evaluations = self._evaluate(trained)
        for run, finished in trained.items():
            with activity(f"reading the results of {finished.folder}"):
                results[run] = bench.read_bench_result(run, finished.folder, evaluations.get(run))
        if not results:
            raise ConfigError(f"{self.folder}: no run of the bench has finished")
        ordered = [results[run] for run in runs if run in results]
        if is_main_process():
            self._write(ordered, [run.name for run in runs if run not in results])
        return ordered

    def _read_known_results(self, runs: Sequence[bench.BenchRun]) -> dict[bench.BenchRun, dict[str, Any]]:
        """Read the results of runs that finished elsewhere with the same settings."""
        from adadepth.contrib.bench.page import read_results

        if self.results is None:
            return {}
        if not self.results.is_dir():
            raise ConfigError(f"hydra.sweeper.results={self.results}: the folder does not exist")
        by_name = {result["name"]: result for result in read_results(self.results)}
        by_run = {run: by_name.get(run.name) for run in runs}
        return {run: result for run, result in by_run.items() if result and run.has_overrides(result["overrides"])}

    def _build_training_overrides(self, run: bench.BenchRun) -> list[str]:
        return [*run.training, f"output_dir={self.folder / grid_search.RUNS}"]

    def _train(self, bench_runs: Sequence[bench.BenchRun]) -> dict[bench.BenchRun, "_FinishedRun"]:
        """Train runs and return those that finished. Runs that start from another run's model wait for it."""
        trained: dict[bench.BenchRun, _FinishedRun] = {}
        failed: set[bench.BenchRun] = set()
        while pending := list(
            bench.find_ready_runs(bench_runs, {run: finished.folder for run, finished in trained.items()}, failed)
        ):
            jobs = [self._build_training_overrides(resolved) for _, resolved in pending]
            hashes = [hash_result_settings(config) for config in self.check(jobs)]
            stored = bench.select_readable_runs(grid_search.find_finished_runs(self.folder))
            self._launch_jobs(
                [job for job, settings_hash in zip(jobs, hashes, strict=True) if settings_hash not in stored]
            )
            stored = bench.select_readable_runs(grid_search.find_finished_runs(self.folder))
            for (run, resolved), settings_hash in zip(pending, hashes, strict=True):
                if settings_hash in stored:
                    trained[run] = _FinishedRun(resolved, stored[settings_hash])
                else:
                    failed.add(run)
        return {run: trained[run] for run in bench_runs if run in trained}

    def _evaluate(self, runs: Mapping[bench.BenchRun, "_FinishedRun"]) -> dict[bench.BenchRun, Path]:
        """Run the evaluation after each training run, and return their run directories."""
        jobs = {
            run: [
                *bench.build_evaluation_overrides(finished.run, finished.folder),
                f"output_dir={self.folder / grid_search.RUNS}",
            ]
            for run, finished in runs.items()
            if run.evaluation
        }
        configs = dict(zip(jobs, self.check(list(jobs.values())), strict=True))
        evaluations = {run: bench.find_finished_evaluation(runs[run].folder, config) for run, config in configs.items()}
        self._launch_jobs([job for run, job in jobs.items() if evaluations[run] is None])
        evaluations = {run: bench.find_finished_evaluation(runs[run].folder, config) for run, config in configs.items()}
        return {run: folder for run, folder in evaluations.items() if folder is not None}

    def _launch_jobs(self, jobs: list[list[str]]) -> None:
        """Launch jobs, and log those that fail."""
        returns = self.launcher.launch(jobs, initial_job_idx=0) if jobs else []
        wait_for_all_processes()
        for job, result in zip(jobs, returns, strict=True):
            if result.status is not JobStatus.COMPLETED:
                log.warning("%s failed: %s", " ".join(job), format_failure(result))

    def _write(self, results: list[dict[str, Any]], missing: list[str]) -> None:
        from adadepth.contrib.bench.page import format_bench, write_bench  # imports jinja, which `--help` does not need

        descriptions = {name: str(task.get("about") or "") for name, task in self.tasks.items()}
        with activity(f"writing the page of the bench in {self.folder}"):
            page = write_bench(self.folder, results, descriptions, missing)
        say(f"\n{format_bench(results, descriptions)}\n\nreport: {page}", RESULT)


class _FinishedRun(NamedTuple):
    """Finished run of a bench, and its run directory."""

    run: bench.BenchRun
    folder: Path
