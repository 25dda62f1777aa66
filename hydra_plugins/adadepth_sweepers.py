"""Sweepers for Hydra's multirun: a grid, a grid that selects its best cell over seeds, and a search with Optuna.

All sweepers parse Hydra's own syntax (``key=a,b``, ``choice``, ``range``, ``interval``, ``tag(log, ...)``) from
``hydra.sweeper.params`` and the command line. They check every value before the first job runs. Optuna is an optional
extra that only its sweeper imports. Hydra instantiates only sweepers of the namespace ``hydra_plugins``, so this module
is outside of the package ``adadepth``.
"""

import itertools
import logging
import math
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus, env_override
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from adadepth.cli.failures import format_job_failure
from adadepth.cli.validation import build_config
from adadepth.config import ExperimentConfig
from adadepth.config.declaration import Allowed, at_least, between, find_range_errors, setting
from adadepth.errors import ConfigError, missing_package
from adadepth.metrics.directions import Direction, find_unknown_direction, is_contradicted, resolve_direction
from adadepth.report.sweep import format_cell_settings
from adadepth.runs.directory import SWEEP
from adadepth.runtime.console import say
from adadepth.runtime.distributed import is_distributed, is_main_process
from adadepth.tasks import grid_search

if TYPE_CHECKING:
    import optuna

    from adadepth.report.run_groups import Search

log = logging.getLogger(__name__)
_MAX_JOBS = 10_000  # in a grid; composing and checking so many takes an hour


class GridSweeper(Sweeper):
    """Sweeper that runs every combination of the values of a grid.

    All jobs run in one process, unless the launcher starts others. At the end the sweeper writes a page that compares
    the runs.
    """

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        self.params = dict(params or {})
        self.name = f"sweep-{secrets.token_hex(6)}"  # stored by every run of this sweep
        self.failures: dict[str, str] = {}  # by job

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Store the configuration and instantiate the launcher.

        Raises:
            ConfigError: If a setting of the sweeper is out of its range.
        """
        if problems := list(find_range_errors(OmegaConf.to_object(config.hydra.sweeper), "hydra.sweeper.")):
            raise ConfigError("\n".join(problems))
        self.base, self.context = config, hydra_context
        self.launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def parse(self, arguments: list[str]) -> list[Override]:
        """Parse the parameters from YAML and from the command line. The last override of a key takes precedence."""
        parser = OverridesParser.create(config_loader=self.context.config_loader)
        overrides = parser.parse_overrides([f"{key}={value}" for key, value in self.params.items()] + arguments)
        return list({override.get_key_element(): override for override in overrides}.values())

    def check(self, jobs: Sequence[Sequence[str]]) -> list[ExperimentConfig]:
        """Compose and validate the configuration of every job.

        Raises:
            ConfigError: If a configuration is invalid. No job has run by then.
        """
        return [build_config(self.context.config_loader.load_sweep_config(self.base, list(job))) for job in jobs]

    def launch(self, jobs: Sequence[list[str]], first: int) -> Sequence[JobReturn]:
        """Run jobs, and record why any of them failed.

        An environment variable passes the name of the sweep to the runs, both in this process and in those of the
        launcher.

        Args:
            jobs: Overrides of each job.
            first: Number of the first job.
        """
        with env_override({SWEEP: self.name}):
            returns = self.launcher.launch(jobs, initial_job_idx=first)
        for job, result in zip(jobs, returns, strict=True):
            if result.status is not JobStatus.COMPLETED:
                self.failures[" ".join(job)] = format_failure(result)
        return returns

    def compare(self, configs: Sequence[ExperimentConfig], search: "Search | None" = None) -> None:
        """Write the page that compares the runs of all jobs, and print its path."""
        from adadepth.tasks.report import compare_sweep  # jinja, which `--help` has no use for

        if is_main_process():
            compare_sweep(self.name, [config.output_dir for config in configs], self.failures, search)

    def grid(self, arguments: list[str]) -> tuple[list[list[str]], dict[str, list[str]]]:
        """Return the overrides of every job, and the assignments ``key=value`` of every swept key."""
        overrides = self.parse(arguments)
        for override in overrides:
            if isinstance(override.value(), IntervalSweep):
                raise ConfigError(
                    f"{override.input_line}: a grid supports no intervals; use choice, range or sweep with Optuna"
                )
        values = [_list_assignments(override) for override in overrides]
        if math.prod(map(len, values)) > _MAX_JOBS:
            raise ConfigError(f"{' '.join(arguments)}: a grid of more than {_MAX_JOBS:,} jobs")
        jobs = [list(job) for job in itertools.product(*values)]
        return jobs, {o.get_key_element(): _list_assignments(o) for o in overrides if o.is_sweep_override()}

    def sweep(self, arguments: list[str]) -> list[JobReturn]:
        """Run the grid. If jobs fail, raise the first failure after all jobs have run."""
        jobs, assignments = self.grid(arguments)
        configs = self.check(jobs)
        returns = list(self.launch(jobs, 0))
        self.compare(configs)
        swept = set(itertools.chain.from_iterable(assignments.values()))
        for job, result in zip(jobs, returns, strict=True):
            log.info("%s -> %s", " ".join(filter(swept.__contains__, job)), result.return_value)
        return returns


class ChoosingSweeper(GridSweeper):
    """Sweeper that selects the grid cell with the best mean over seeds, and evaluates the checkpoint of its best seed.

    All files are in one folder. Repeating the command runs only the missing jobs. A job that fails is reported and
    excluded from the selection.

    Args:
        params: Values of the grid by key.
        from_epoch: First epoch from which checkpoints are considered.
        of_dataset: Overrides by name of the data set. Overrides on the command line take precedence.
        direction: `maximize` or `minimize` the metric that `optimise` names. None selects the direction in which this
            metric is better.
        folder: Folder of the runs and the summary.
    """

    def __init__(
        self,
        params: Mapping[str, Any] | None,
        from_epoch: int,
        of_dataset: Mapping[str, Sequence[str]],
        direction: str | None,
        folder: str,
    ) -> None:
        super().__init__(params)
        self.of_dataset = of_dataset
        self.from_epoch, self.direction, self.folder = from_epoch, direction, Path(folder)

    def parse(self, arguments: list[str]) -> list[Override]:
        """Parse the parameters, and put the overrides of the data set before them."""
        return super().parse([*self.of_dataset.get(str(self.base.dataset.name), ()), *arguments])

    def sweep(self, arguments: list[str]) -> Any:
        """Run the missing jobs, evaluate the best checkpoint and return the summary."""
        from adadepth.report.sweep import format_grid, write_grid  # torch, which `--help` has no use for

        jobs, swept = self.grid(arguments)
        jobs = [[*job, f"output_dir={self.folder / grid_search.RUNS}"] for job in jobs]
        configs = self.check(jobs)
        for config in configs:
            grid_search.check_epochs(config, self.from_epoch)
        self.direction = choose_direction(configs[0], self.direction)
        self.metric, self.cells = (
            configs[0].optimise,
            grid_search.group_into_cells(zip(jobs, configs, strict=True), swept),
        )
        failures = self._train(grid_search.list_missing_jobs(self.cells, grid_search.find_finished_runs(self.folder)))
        summary = self._choose_and_restore(failures)
        if not summary["chosen"]:
            if is_main_process():
                self.folder.mkdir(parents=True, exist_ok=True)
                write_grid(self.folder, summary)
            raise ConfigError(format_grid(summary))
        evaluation = self._evaluate(summary["chosen"])
        if is_main_process():
            self._write(summary, evaluation)
        return summary

    def _train(self, jobs: Sequence[tuple[int, list[str]]]) -> dict[int, str]:
        """Run jobs of the grid, and return the failure messages by number of the job."""
        returns = self.launcher.launch([job for _, job in jobs], initial_job_idx=0) if jobs else []
        wait_for_all_processes()
        failures = {}
        for (number, _), result in zip(jobs, returns, strict=True):
            if result.status is not JobStatus.COMPLETED:
                failures[number] = format_failure(result)
                log.warning("%s failed: %s", format_cell_settings(self.cells[number].settings), failures[number])
        return failures

    def _choose_and_restore(self, failures: Mapping[int, str]) -> dict[str, Any]:
        """Select the best cell. Retrain its best seed if an earlier selection deleted the checkpoint."""
        summary = self._choose(failures)
        if (chosen := summary["chosen"]) and not chosen["checkpoint"].exists():
            self._train([(chosen["cell"], self.cells[chosen["cell"]].of_seed(chosen["seed"]))])
            summary = self._choose(failures)
        return summary

    def _choose(self, failures: Mapping[int, str]) -> dict[str, Any]:
        """Select the best cell of the grid, and return the summary."""
        runs, maximize = grid_search.find_finished_runs(self.folder), self.direction == "maximize"
        choice = grid_search.choose(
            self.cells, runs, failures, self.metric, from_epoch=self.from_epoch, maximize=maximize
        )
        return {"name": str(self.base.name), "metric": self.metric, "from_epoch": self.from_epoch, **choice}

    def _evaluate(self, chosen: Mapping[str, Any]) -> Path:
        """Evaluate the selected checkpoint on the test sets, unless this was done before. Return the run directory."""
        checkpoint, folder = chosen["checkpoint"], self.folder / "chosen" / chosen["run"].name
        if (evaluation := grid_search.find_newest_evaluation(folder, checkpoint)) is None:
            job = [*self.cells[chosen["cell"]].of_seed(chosen["seed"]), f"output_dir={folder}"]
            job += ["mode=evaluate", f"checkpoint={checkpoint}"]
            _ = self.launcher.launch([job], initial_job_idx=0)[0].return_value  # raises what it ended with
            wait_for_all_processes()
            evaluation = grid_search.find_newest_evaluation(folder, checkpoint)
        assert evaluation is not None
        return evaluation

    def _write(self, summary: dict[str, Any], evaluation: Path) -> None:
        """Write and print the summary, and delete checkpoints that are no longer needed."""
        from adadepth.report.sweep import format_grid

        runs, chosen = grid_search.find_finished_runs(self.folder), summary["chosen"]
        used_runs = [runs[name] for cell in self.cells for name in cell.hashes.values() if name in runs]
        checkpoint, names = chosen["checkpoint"], grid_search.take_submissions(evaluation, self.folder)
        chosen |= {key: str(chosen[key].relative_to(self.folder)) for key in ("run", "checkpoint")}
        chosen |= {"evaluation": str(evaluation.relative_to(self.folder)), "submissions": names}
        report = grid_search.write_grid_report(self.folder, summary, used_runs)
        say(f"\n{format_grid(summary)}\ncheckpoint: {checkpoint}")
        for name in names:
            say(f"submission: {self.folder / grid_search.SUBMISSION / name}")
        say(f"report: {report}")
        grid_search.delete_checkpoints(used_runs, checkpoint)


class OptunaSweeper(GridSweeper):
    """Sweeper that searches with Optuna.

    It records failed trials and continues, also when the command is repeated.
    """

    def __init__(
        self,
        params: Mapping[str, Any] | None,
        n_trials: int,
        n_jobs: int,
        seed: int,
        direction: str | None,
        folder: str,
    ) -> None:
        super().__init__(params)
        self.n_trials, self.n_jobs, self.seed, self.direction = n_trials, n_jobs, seed, direction
        self.folder = Path(folder)

    def sweep(self, arguments: list[str]) -> Any:
        """Run the missing trials, ``n_jobs`` at a time, and return the study."""
        overrides = self.parse(arguments)
        space = {o.get_key_element(): _to_distribution(o) for o in overrides if o.is_sweep_override()}
        fixed = [assignment for o in overrides if not o.is_sweep_override() for assignment in _list_assignments(o)]
        if not space:
            raise ConfigError("hydra.sweeper.params: the search space is empty")
        if is_distributed():
            raise ConfigError(
                "an Optuna sweep cannot run under torchrun, because its processes would request different trials"
            )
        configs = self.check([fixed + _format_job(corner) for corner in _list_corners(space)])
        study = self._open_study(choose_direction(configs[0], self.direction))
        while (missing := self.n_trials - _count_finished_trials(study)) > 0:
            trials = [study.ask(space) for _ in range(min(self.n_jobs, missing))]
            jobs = [fixed + _format_job(trial.params) for trial in trials]
            for trial, result in zip(trials, self.launch(jobs, trials[0].number), strict=True):
                _report_result(study, trial, result)
        self.compare(configs, _summarise_study(study, configs[0].optimise))
        log.info("best of %d trials: %s -> %s", self.n_trials, study.best_params, study.best_value)
        return study

    def _open_study(self, direction: Direction) -> "optuna.Study":
        """Create a study or continue an existing one.

        A continued study gets another seed, because with the same seed it would repeat its first draws.
        """
        from optuna import create_study, samplers, storages
        from optuna.storages.journal import JournalFileBackend

        self.folder.mkdir(parents=True, exist_ok=True)
        record = self.folder / "optuna.log"
        if record.exists() and not record.is_file():
            raise ConfigError(f"{record}: must be a file")
        try:
            storage = storages.JournalStorage(JournalFileBackend(str(record)))
            study = create_study(storage=storage, study_name="sweep", direction=direction, load_if_exists=True)
        except (ValueError, LookupError, TypeError, AttributeError) as error:  # lines of JSON, and never a pickle
            hint = "to begin another study, set another hydra.sweeper.folder"
            raise ConfigError(f"{record}: not a record of a study ({type(error).__name__}: {error}); {hint}") from error
        if (stored_direction := study.direction.name.lower()) != direction:
            hint = "to begin another study, set another hydra.sweeper.folder"
            raise ConfigError(
                f"{record}: its trials {stored_direction} the metric, but this command would {direction} it; {hint}"
            )
        self.name = study.user_attrs.get(
            _SWEEP_ATTRIBUTE, self.name
        )  # so that the page has the trials of earlier commands
        study.set_user_attr(_SWEEP_ATTRIBUTE, self.name)
        study.sampler = samplers.TPESampler(seed=self.seed + len(study.trials))
        return study


_SWEEP_ATTRIBUTE = "sweep"  # attribute of a study that holds the name of the sweep


def choose_direction(config: ExperimentConfig, chosen: str | None) -> Direction:
    """Return whether the metric named by `optimise` is to be maximised or minimised.

    Args:
        config: Configuration of a job.
        chosen: Value of `hydra.sweeper.direction`.

    Raises:
        ConfigError: If the configured direction searches for the worst value of the metric, or if the metric is of
            unknown direction and none is configured.
    """
    kind, _, metric = config.optimise.partition("/")
    metrics = getattr(config.dataset, "metrics", ())
    if chosen is None and kind == "eval" and (unknown := find_unknown_direction(metric, metrics)):
        raise ConfigError(
            f"hydra.sweeper.direction: must be minimize or maximize for optimise={config.optimise}, because {unknown}"
        )
    if chosen is not None and kind == "eval" and is_contradicted(metric, chosen == "maximize", metrics):
        better = "lower" if chosen == "maximize" else "higher"
        raise ConfigError(
            f"hydra.sweeper.direction={chosen}: optimise={config.optimise} is better if {better}; null chooses the "
            "direction of every metric"
        )
    return resolve_direction(config.optimise, chosen)


def format_failure(result: JobReturn) -> str:
    """Return why a job failed. For an unexpected error, name the file with its traceback."""
    return format_job_failure(result._return_value)  # the property would raise it


def wait_for_all_processes() -> None:
    """Wait for all processes of a distributed run, so that all of them read the same files."""
    if (torch := sys.modules.get("torch")) and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()


def _list_assignments(override: Override) -> list[str]:
    """Return the ``key=value`` strings of an override, one for each value of the sweep."""
    key = override.get_key_element()
    if override.is_sweep_override():
        values = list(itertools.islice(override.sweep_string_iterator(), _MAX_JOBS + 1))
        if not values:
            raise ConfigError(f"{override.input_line}: it has no values")
        return [f"{key}={value}" for value in values]
    return [f"{key}={override.get_value_element_as_str()}"]


def _to_distribution(override: Override) -> Any:
    """Translate Hydra's sweep syntax into an Optuna distribution."""
    try:
        from optuna import distributions
    except ImportError as error:
        message = missing_package("optuna", "adadepth[optuna]")
        raise ConfigError(f"hydra/sweeper=optuna: {message}") from error
    value = override.value()
    if isinstance(value, IntervalSweep):
        low: Any = value.start
        high: Any = value.end
        is_integer = isinstance(low, int) and isinstance(high, int)  # int(interval(1, 8))
        distribution: Any = distributions.IntDistribution if is_integer else distributions.FloatDistribution
        return distribution(low, high, log="log" in value.tags)
    if isinstance(value, RangeSweep) and isinstance(steps := value.range(), range) and steps:
        return distributions.IntDistribution(steps.start, steps[-1], step=steps.step)
    key = override.get_key_element()
    return distributions.CategoricalDistribution(
        [assignment.removeprefix(f"{key}=") for assignment in _list_assignments(override)]
    )


def _list_corners(space: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a minimal list of points that includes every choice and both ends of every interval."""
    ends = {key: getattr(values, "choices", None) or (values.low, values.high) for key, values in space.items()}
    for index in range(max(map(len, ends.values()))):
        yield {key: values[min(index, len(values) - 1)] for key, values in ends.items()}


def _format_job(point: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in point.items()]


def _count_finished_trials(study: "optuna.Study") -> int:
    """Count trials with a result or a recorded failure. A trial with a killed process counts as missing."""
    return sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))


def _report_result(study: "optuna.Study", trial: "optuna.Trial", result: JobReturn) -> None:
    from optuna.trial import TrialState

    value = result._return_value  # the property would raise a failed job's exception
    if result.status is JobStatus.COMPLETED and isinstance(value, float | int) and math.isfinite(value):
        study.tell(trial, float(value))
        return
    failure = f"its result is {value!r}" if result.status is JobStatus.COMPLETED else format_failure(result)
    log.warning("trial %d failed: %s", trial.number, failure)
    trial.set_user_attr("failure", repr(value))
    study.tell(trial, state=TrialState.FAIL)


def _summarise_study(study: "optuna.Study", metric: str) -> "Search | None":
    """Summarise the study for the page of its runs, or return None if no trial has a result."""
    from optuna.importance import get_param_importances
    from optuna.study import StudyDirection
    from optuna.trial import TrialState

    from adadepth.report.run_groups import Parameter, Search

    completed = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if not completed:
        return None
    space: dict[str, Any] = {
        key: values
        for key, values in completed[-1].distributions.items()
        if all(key in trial.params for trial in completed)
    }
    parameters = []
    for key, values in space.items():
        choices = getattr(values, "choices", ())
        low, high = (choices[0], choices[-1]) if choices else (values.low, values.high)
        parameters.append(Parameter(key, low, high, getattr(values, "log", False), choices))
    trials = [(trial.params, trial.value) for trial in completed if trial.value is not None]
    importances = get_param_importances(study, params=list(space)) if len({value for _, value in trials}) > 1 else {}
    is_minimised = study.direction is StudyDirection.MINIMIZE
    return Search(metric, is_minimised, parameters, trials, importances)


_DIRECTION_HELP = "direction of the metric; None: the direction of improvement"
_DIRECTION = Allowed(lambda value: value in ("maximize", "minimize"), "maximize or minimize")


@dataclass
class _GridSettings:
    """Settings of the grid sweeper below `hydra.sweeper`."""

    _target_: str = f"{__name__}.{GridSweeper.__name__}"
    params: dict[str, Any] = setting({}, "values by key, in Hydra's syntax")


@dataclass
class _ChoiceSettings(_GridSettings):
    _target_: str = f"{__name__}.{ChoosingSweeper.__name__}"
    from_epoch: int = setting(1, "first epoch that may be selected", at_least(0))
    of_dataset: dict[str, list[str]] = setting({}, "overrides by name of the data set")
    direction: str | None = setting(None, _DIRECTION_HELP, _DIRECTION)
    folder: str = setting(
        "${output_dir}/${name}/sweep", "folder of the runs and the summary; another folder is another grid"
    )


@dataclass
class _OptunaSettings(_GridSettings):
    _target_: str = f"{__name__}.{OptunaSweeper.__name__}"
    n_trials: int = setting(20, "number of trials", at_least(1))
    n_jobs: int = setting(1, "number of parallel trials, for a launcher that runs jobs in parallel", at_least(1))
    seed: int = setting(0, "seed of the sampler", between(0, 2**31))
    direction: str | None = setting(None, _DIRECTION_HELP, _DIRECTION)
    folder: str = setting("${output_dir}/${name}/sweep", "folder of the study; another folder is another study")


for _name, _node in {"grid": _GridSettings, "choice": _ChoiceSettings, "optuna": _OptunaSettings}.items():
    ConfigStore.instance().store(group="hydra/sweeper", name=_name, node=_node, provider="adadepth")
