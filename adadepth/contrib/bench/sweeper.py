"""The sweeper that runs a bench: methods on tasks with seeds, and the page that says which method to take."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.utils import JobStatus
from omegaconf import OmegaConf

from adadepth.contrib.bench import runs as bench
from adadepth.errors import ConfigError
from adadepth.settings.declaration import setting
from adadepth.settings.fingerprint import hash_result_settings
from adadepth.system.console import say
from adadepth.system.distributed import is_main_process
from adadepth.system.failures import activity
from adadepth.tasks import grid_search
from hydra_plugins.adadepth_sweepers import GridSweeper, failure_of, meet

log = logging.getLogger(__name__)


@dataclass
class BenchSettings:
    """What a YAML file and the command line can say below `hydra.sweeper`."""

    tasks: dict[str, Any] = setting({}, "by name what each is about, overrides of its runs, and ways with theirs")
    seeds: list[int] = setting([0], "of every run")
    folder: str = setting(
        "${output_dir}/${name}", "of the runs, the results and the page; another folder is another bench"
    )
    results: str | None = setting(
        None, "folder with results of runs that were finished elsewhere and are not run again"
    )


class BenchSweeper(GridSweeper):
    """Run what is missing of a bench, and write its results and its page.

    Everything is in one folder; repeating the command runs what is missing. A run that fails is named and left out.

    Args:
        tasks: By name what it is `about`, the `overrides` of all its runs, and its `ways`, overrides by name.
        seeds: Every run is run with each.
        folder: Of the runs, the results and the page.
        results: Of files of runs that were finished elsewhere, which are not run again.
    """

    settings = BenchSettings

    def __init__(self, tasks: Mapping[str, Any], seeds: Sequence[int], folder: str, results: str | None) -> None:
        super().__init__()
        self.tasks: Any = OmegaConf.to_container(OmegaConf.create(dict(tasks)))
        self.seeds, self.folder = list(seeds), Path(folder)
        self.results = None if results is None else Path(results)

    def sweep(self, arguments: list[str]) -> Any:
        """Train and evaluate what is missing, then say what all of it shows; returns the results.

        Raises:
            ConfigError: If the bench or a run of it is set wrongly, or none has ended well.
        """
        further, *others = self.grid(arguments)[0]
        if others:
            raise ConfigError(f"{' '.join(arguments)}: a bench has several values in its ways only")
        cells = bench.runs_of(self.tasks, self.seeds, further, lambda overrides: self.grid(list(overrides))[0])
        known = self._known(cells)
        missing = bench.with_needed([cell for cell in cells if cell not in known], cells)
        self.check([self._training(cell) for cell in missing if not cell.needs])
        runs = self._train(missing)
        evaluations = self._evaluate(runs)
        for cell, run in runs.items():
            with activity(f"reading what {run.folder} says for the bench"):
                known[cell] = bench.result_of(cell, run.folder, evaluations.get(cell))
        if not known:
            raise ConfigError(f"{self.folder}: no run of the bench has ended well")
        found = [known[cell] for cell in cells if cell in known]
        if is_main_process():
            self._write(found, [cell.name for cell in cells if cell not in known])
        return found

    def _known(self, cells: Sequence[bench.BenchRun]) -> dict[bench.BenchRun, dict[str, Any]]:
        """The results of runs that were finished elsewhere with the same settings."""
        from adadepth.contrib.bench.page import read_results

        if self.results is None:
            return {}
        if not self.results.is_dir():
            raise ConfigError(f"hydra.sweeper.results={self.results}: there is no such folder")
        by_name = {result["name"]: result for result in read_results(self.results)}
        every = {cell: by_name.get(cell.name) for cell in cells}
        return {cell: found for cell, found in every.items() if found and found["overrides"] == cell.overrides}

    def _training(self, cell: bench.BenchRun) -> list[str]:
        return [*cell.training, f"output_dir={self.folder / grid_search.RUNS}"]

    def _train(self, cells: Sequence[bench.BenchRun]) -> dict[bench.BenchRun, "_Run"]:
        """The runs of all cells that ended well; those that start from others follow in a round of their own."""
        done: dict[bench.BenchRun, _Run] = {}
        failed: set[bench.BenchRun] = set()
        while todo := list(bench.ready(cells, {cell: run.folder for cell, run in done.items()}, failed)):
            jobs = [self._training(named) for _, named in todo]
            hashes = [hash_result_settings(config) for config in self.check(jobs)]
            before = bench.readable_runs(grid_search.find_finished_runs(self.folder))
            self._launched([job for job, each in zip(jobs, hashes, strict=True) if each not in before])
            runs = bench.readable_runs(grid_search.find_finished_runs(self.folder))
            for (cell, named), each in zip(todo, hashes, strict=True):
                if each in runs:
                    done[cell] = _Run(named, runs[each])
                else:
                    failed.add(cell)
        return {cell: done[cell] for cell in cells if cell in done}

    def _evaluate(self, runs: Mapping[bench.BenchRun, "_Run"]) -> dict[bench.BenchRun, Path]:
        """The evaluations that follow runs."""
        jobs = {
            cell: [*bench.evaluation_of(run.cell, run.folder), f"output_dir={self.folder / grid_search.RUNS}"]
            for cell, run in runs.items()
            if cell.evaluation
        }
        asked = dict(zip(jobs, self.check(list(jobs.values())), strict=True))
        done = {cell: bench.finished_evaluation(runs[cell].folder, config) for cell, config in asked.items()}
        self._launched([job for cell, job in jobs.items() if done[cell] is None])
        done = {cell: bench.finished_evaluation(runs[cell].folder, config) for cell, config in asked.items()}
        return {cell: folder for cell, folder in done.items() if folder is not None}

    def _launched(self, jobs: list[list[str]]) -> None:
        """Run jobs, and name those that fail."""
        returns = self.launcher.launch(jobs, initial_job_idx=0) if jobs else []
        meet()
        for job, result in zip(jobs, returns, strict=True):
            if result.status is not JobStatus.COMPLETED:
                log.warning("%s failed: %s", " ".join(job), failure_of(result))

    def _write(self, found: list[dict[str, Any]], missing: list[str]) -> None:
        from adadepth.contrib.bench.page import bench_text, write_bench  # jinja, which `--help` has no use for

        about = {name: str(task.get("about") or "") for name, task in self.tasks.items()}
        with activity(f"writing the page of the bench in {self.folder}"):
            page = write_bench(self.folder, found, about, missing)
        say(f"\n{bench_text(found, about)}\n\nreport: {page}")


class _Run(NamedTuple):
    """A cell with the folders of the runs that it names, and the folder of its own."""

    cell: bench.BenchRun
    folder: Path
