"""Sweepers for Hydra's multirun: a grid, a grid that chooses over seeds and epochs, and Optuna by ask and tell.

All read Hydra's own syntax (``key=a,b``, ``choice``, ``range``, ``interval``, ``tag(log, ...)``) from
``hydra.sweeper.params`` and the command line, and check every value before the first job runs. Optuna is an optional
extra, imported only by its sweeper. Hydra discovers this module and instantiates only sweepers that live in the
namespace ``hydra_plugins``, which is why it is not in ``adadepth``.
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
from adadepth.errors import ConfigError, missing_package
from adadepth.measure.directions import Direction, is_contradicted, resolve_direction
from adadepth.report.sweep import format_cell_settings
from adadepth.runs.directory import SWEEP
from adadepth.settings import ExperimentConfig
from adadepth.settings.declaration import Allowed, at_least, between, find_range_errors, setting
from adadepth.system.console import say
from adadepth.system.distributed import is_distributed, is_main_process
from adadepth.tasks import grid_search

if TYPE_CHECKING:
    import optuna

    from adadepth.report.run_groups import Search

log = logging.getLogger(__name__)
_MOST_JOBS = 10_000  # of a grid; to compose and check them takes an hour


class GridSweeper(Sweeper):
    """Run every combination of the values; the jobs run in one process unless the launcher decides otherwise.

    At the end the runs of the jobs are put side by side on a page.
    """

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        self.params = dict(params or {})
        self.name = f"sweep-{secrets.token_hex(6)}"  # by which the runs of this sweep know each other
        self.failures: dict[str, str] = {}  # by job

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what Hydra hands over, and make the launcher.

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
        """Parse the parameters from YAML and the command line; the last word on a key counts."""
        parser = OverridesParser.create(config_loader=self.context.config_loader)
        given = parser.parse_overrides([f"{key}={value}" for key, value in self.params.items()] + arguments)
        return list({override.get_key_element(): override for override in given}.values())

    def check(self, jobs: Sequence[Sequence[str]]) -> list[ExperimentConfig]:
        """Compose and validate every job; raises before anything has run."""
        return [build_config(self.context.config_loader.load_sweep_config(self.base, list(job))) for job in jobs]

    def launch(self, jobs: Sequence[list[str]], first: int) -> Sequence[JobReturn]:
        """Run jobs; their runs keep the name of the sweep, and why a job failed is kept here.

        The name is in the environment, which jobs of this process have and launchers hand on to others.

        Args:
            jobs: The overrides of each.
            first: The number of the first one.
        """
        with env_override({SWEEP: self.name}):
            returns = self.launcher.launch(jobs, initial_job_idx=first)
        for job, result in zip(jobs, returns, strict=True):
            if result.status is not JobStatus.COMPLETED:
                self.failures[" ".join(job)] = failure_of(result)
        return returns

    def compare(self, configs: Sequence[ExperimentConfig], search: "Search | None" = None) -> None:
        """Write the page of the runs of all jobs, which may be trials of a search, and print where it is."""
        from adadepth.tasks.report import compare_sweep  # jinja, which `--help` has no use for

        if is_main_process():
            compare_sweep(self.name, [config.output_dir for config in configs], self.failures, search)

    def grid(self, arguments: list[str]) -> tuple[list[list[str]], dict[str, list[str]]]:
        """The overrides of every job, and of every swept key its assignments."""
        overrides = self.parse(arguments)
        for override in overrides:
            if isinstance(override.value(), IntervalSweep):
                raise ConfigError(
                    f"{override.input_line}: a grid has no intervals; use choice, range or sweep with Optuna"
                )
        values = [_assignments(override) for override in overrides]
        if math.prod(map(len, values)) > _MOST_JOBS:
            raise ConfigError(f"{' '.join(arguments)}: a grid of more than {_MOST_JOBS:,} jobs")
        jobs = [list(job) for job in itertools.product(*values)]
        return jobs, {o.get_key_element(): _assignments(o) for o in overrides if o.is_sweep_override()}

    def sweep(self, arguments: list[str]) -> list[JobReturn]:
        """Run the grid; the first failure is raised after all jobs have run."""
        jobs, assignments = self.grid(arguments)
        configs = self.check(jobs)
        returns = list(self.launch(jobs, 0))
        self.compare(configs)
        swept = set(itertools.chain.from_iterable(assignments.values()))
        for job, result in zip(jobs, returns, strict=True):
            log.info("%s -> %s", " ".join(filter(swept.__contains__, job)), result.return_value)
        return returns


class ChoosingSweeper(GridSweeper):
    """Run a grid, choose a place in it by the mean over seeds, evaluate the best seed's checkpoint there, summarise.

    Everything is in one folder; repeating the command runs what is missing. A job that fails is named and left out.

    Args:
        params: Values of the grid.
        from_epoch: Epochs from this one on compete.
        of_dataset: Overrides by the name of the data set, weaker than those of the command line.
        direction: `maximize` or `minimize` the metric named by `optimise`; None: as it is better.
        folder: Of the runs and of the summary.
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
        """As in any grid, with what the data set brings."""
        return super().parse([*self.of_dataset.get(str(self.base.dataset.name), ()), *arguments])

    def sweep(self, arguments: list[str]) -> Any:
        """Run what is missing, choose, predict with what was chosen; returns the summary."""
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
        found = self._chosen(failures)
        if not found["chosen"]:
            if is_main_process():
                self.folder.mkdir(parents=True, exist_ok=True)
                write_grid(self.folder, found)
            raise ConfigError(format_grid(found))
        evaluation = self._evaluate(found["chosen"])
        if is_main_process():
            self._write(found, evaluation)
        return found

    def _train(self, jobs: Sequence[tuple[int, list[str]]]) -> dict[int, str]:
        """Run jobs of the grid; returns why cells failed, by their number."""
        returns = self.launcher.launch([job for _, job in jobs], initial_job_idx=0) if jobs else []
        meet()
        failures = {}
        for (number, _), result in zip(jobs, returns, strict=True):
            if result.status is not JobStatus.COMPLETED:
                failures[number] = failure_of(result)
                log.warning("%s failed: %s", format_cell_settings(self.cells[number].settings), failures[number])
        return failures

    def _chosen(self, failures: Mapping[int, str]) -> dict[str, Any]:
        """Choose; if the checkpoint was deleted after an earlier choice, which had fewer seeds, train it once more."""
        found = self._choose(failures)
        if (chosen := found["chosen"]) and not chosen["checkpoint"].exists():
            self._train([(chosen["cell"], self.cells[chosen["cell"]].of_seed(chosen["seed"]))])
            found = self._choose(failures)
        return found

    def _choose(self, failures: Mapping[int, str]) -> dict[str, Any]:
        runs, maximize = grid_search.find_finished_runs(self.folder), self.direction == "maximize"
        found = grid_search.choose(
            self.cells, runs, failures, self.metric, from_epoch=self.from_epoch, maximize=maximize
        )
        return {"name": str(self.base.name), "metric": self.metric, "from_epoch": self.from_epoch, **found}

    def _evaluate(self, chosen: Mapping[str, Any]) -> Path:
        """Evaluate what was chosen, which predicts the test sets; the folder of that run, new or an earlier one's."""
        checkpoint, folder = chosen["checkpoint"], self.folder / "chosen" / chosen["run"].name
        if (done := grid_search.find_newest_evaluation(folder, checkpoint)) is None:
            job = [*self.cells[chosen["cell"]].of_seed(chosen["seed"]), f"output_dir={folder}"]
            job += ["mode=evaluate", f"checkpoint={checkpoint}"]
            _ = self.launcher.launch([job], initial_job_idx=0)[0].return_value  # raises what it ended with
            meet()
            done = grid_search.find_newest_evaluation(folder, checkpoint)
        assert done is not None
        return done

    def _write(self, found: dict[str, Any], evaluation: Path) -> None:
        """Write and tell the summary; delete the checkpoints that are not needed any more."""
        from adadepth.report.sweep import format_grid

        runs, chosen = grid_search.find_finished_runs(self.folder), found["chosen"]
        used = [runs[name] for cell in self.cells for name in cell.hashes.values() if name in runs]
        checkpoint, names = chosen["checkpoint"], grid_search.take_submissions(evaluation, self.folder)
        chosen |= {key: str(chosen[key].relative_to(self.folder)) for key in ("run", "checkpoint")}
        chosen |= {"evaluation": str(evaluation.relative_to(self.folder)), "submissions": names}
        report = grid_search.write_grid_report(self.folder, found, used)
        say(f"\n{format_grid(found)}\ncheckpoint: {checkpoint}")
        for name in names:
            say(f"submission: {self.folder / grid_search.SUBMISSION / name}")
        say(f"report: {report}")
        grid_search.delete_checkpoints(used, checkpoint)


class OptunaSweeper(GridSweeper):
    """Search with Optuna. A failing trial is recorded and the search goes on; repeating the command continues it."""

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
        """Run the trials that are still missing, ``n_jobs`` at a time; return the study."""
        overrides = self.parse(arguments)
        space = {o.get_key_element(): _distribution(o) for o in overrides if o.is_sweep_override()}
        fixed = [assignment for o in overrides if not o.is_sweep_override() for assignment in _assignments(o)]
        if not space:
            raise ConfigError("hydra.sweeper.params: the search space is empty")
        if is_distributed():
            raise ConfigError("an Optuna sweep cannot run under torchrun: its processes would ask for different trials")
        configs = self.check([fixed + _job(corner) for corner in _corners(space)])
        study = self._open_study(choose_direction(configs[0], self.direction))
        while (missing := self.n_trials - _finished(study)) > 0:
            trials = [study.ask(space) for _ in range(min(self.n_jobs, missing))]
            jobs = [fixed + _job(trial.params) for trial in trials]
            for trial, result in zip(trials, self.launch(jobs, trials[0].number), strict=True):
                _tell(study, trial, result)
        self.compare(configs, _search(study, configs[0].optimise))
        log.info("best of %d trials: %s -> %s", self.n_trials, study.best_params, study.best_value)
        return study

    def _open_study(self, direction: Direction) -> "optuna.Study":
        """Create or continue the study; a continued one gets another seed, or it would repeat its first draws."""
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
            another = "another hydra.sweeper.folder begins another study"
            raise ConfigError(
                f"{record}: not the record of a study ({type(error).__name__}: {error}); {another}"
            ) from error
        if (known := study.direction.name.lower()) != direction:
            another = "another hydra.sweeper.folder begins another study"
            raise ConfigError(
                f"{record}: its trials {known} the metric, and this command would {direction} it; {another}"
            )
        self.name = study.user_attrs.get(_NAME, self.name)  # so that the page has the trials of earlier commands
        study.set_user_attr(_NAME, self.name)
        study.sampler = samplers.TPESampler(seed=self.seed + len(study.trials))
        return study


_NAME = "sweep"  # the attribute of a study


def choose_direction(config: ExperimentConfig, chosen: str | None) -> Direction:
    """Return in which direction the metric of `optimise` is better.

    Args:
        config: Of a job.
        chosen: `hydra.sweeper.direction`.

    Raises:
        ConfigError: If the chosen direction looks for the worst value.
    """
    kind, _, metric = config.optimise.partition("/")
    metrics = getattr(config.dataset, "metrics", ())
    if chosen is not None and kind == "eval" and is_contradicted(metric, chosen == "maximize", metrics):
        better = "lower" if chosen == "maximize" else "higher"
        raise ConfigError(
            f"hydra.sweeper.direction={chosen}: optimise={config.optimise} is better the {better} it is; "
            "null says so of every metric"
        )
    return resolve_direction(config.optimise, chosen)


def failure_of(result: JobReturn) -> str:
    """Why a job failed; what nobody foresaw leaves its traceback in a file, which is named."""
    return format_job_failure(result._return_value)  # the property would raise it


def meet() -> None:
    """Wait until all processes of a run have come this far, so that they find the same files."""
    if (torch := sys.modules.get("torch")) and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()


def _assignments(override: Override) -> list[str]:
    """The ``key=value`` strings of one override: one, or one for each value of a sweep."""
    key = override.get_key_element()
    if override.is_sweep_override():
        values = list(itertools.islice(override.sweep_string_iterator(), _MOST_JOBS + 1))
        if not values:
            raise ConfigError(f"{override.input_line}: there are no values in it")
        return [f"{key}={value}" for value in values]
    return [f"{key}={override.get_value_element_as_str()}"]


def _distribution(override: Override) -> Any:
    """Translate Hydra's sweep syntax into an Optuna distribution."""
    try:
        from optuna import distributions
    except ImportError as error:
        told = missing_package("optuna", "adadepth[optuna]")
        raise ConfigError(f"hydra/sweeper=optuna: {told}") from error
    value = override.value()
    if isinstance(value, IntervalSweep):
        low: Any = value.start
        high: Any = value.end
        whole = isinstance(low, int) and isinstance(high, int)  # int(interval(1, 8))
        kind: Any = distributions.IntDistribution if whole else distributions.FloatDistribution
        return kind(low, high, log="log" in value.tags)
    if isinstance(value, RangeSweep) and isinstance(steps := value.range(), range) and steps:
        return distributions.IntDistribution(steps.start, steps[-1], step=steps.step)
    key = override.get_key_element()
    return distributions.CategoricalDistribution([each.removeprefix(f"{key}=") for each in _assignments(override)])


def _corners(space: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield as few points as show every choice and both ends of every interval."""
    ends = {key: getattr(values, "choices", None) or (values.low, values.high) for key, values in space.items()}
    for index in range(max(map(len, ends.values()))):
        yield {key: values[min(index, len(values) - 1)] for key, values in ends.items()}


def _job(point: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in point.items()]


def _finished(study: "optuna.Study") -> int:
    """Count trials with a result or a recorded failure; one whose process was killed counts as missing."""
    return sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))


def _tell(study: "optuna.Study", trial: "optuna.Trial", result: JobReturn) -> None:
    from optuna.trial import TrialState

    value = result._return_value  # the property would raise a failed job's exception
    if result.status is JobStatus.COMPLETED and isinstance(value, float | int) and math.isfinite(value):
        study.tell(trial, float(value))
        return
    failure = f"its result is {value!r}" if result.status is JobStatus.COMPLETED else failure_of(result)
    log.warning("trial %d failed: %s", trial.number, failure)
    trial.set_user_attr("failure", repr(value))
    study.tell(trial, state=TrialState.FAIL)


def _search(study: "optuna.Study", metric: str) -> "Search | None":
    """The study as the page of its runs shows it; None where no trial has a result."""
    from optuna.importance import get_param_importances
    from optuna.study import StudyDirection
    from optuna.trial import TrialState

    from adadepth.report.run_groups import Parameter, Search

    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if not done:
        return None
    space: dict[str, Any] = {
        key: values for key, values in done[-1].distributions.items() if all(key in each.params for each in done)
    }
    parameters = []
    for key, values in space.items():
        choices = getattr(values, "choices", ())
        low, high = (choices[0], choices[-1]) if choices else (values.low, values.high)
        parameters.append(Parameter(key, low, high, getattr(values, "log", False), choices))
    trials = [(each.params, each.value) for each in done if each.value is not None]
    importances = get_param_importances(study, params=list(space)) if len({value for _, value in trials}) > 1 else {}
    is_less = study.direction is StudyDirection.MINIMIZE
    return Search(metric, is_less, parameters, trials, importances)


_OF_METRIC = "of the metric; None: that in which it is better"
_DIRECTION = Allowed(lambda value: value in ("maximize", "minimize"), "maximize or minimize")


@dataclass
class _Grid:
    """What a YAML file and the command line can say below `hydra.sweeper`."""

    _target_: str = f"{__name__}.{GridSweeper.__name__}"
    params: dict[str, Any] = setting({}, "values by key, in Hydra's syntax")


@dataclass
class _Choice(_Grid):
    _target_: str = f"{__name__}.{ChoosingSweeper.__name__}"
    from_epoch: int = setting(1, "earlier ones do not compete", at_least(0))
    of_dataset: dict[str, list[str]] = setting({}, "overrides by the name of the data set")
    direction: str | None = setting(None, _OF_METRIC, _DIRECTION)
    folder: str = setting("${output_dir}/${name}/sweep", "of the runs and the summary; another folder is another grid")


@dataclass
class _Optuna(_Grid):
    _target_: str = f"{__name__}.{OptunaSweeper.__name__}"
    n_trials: int = setting(20, "in all", at_least(1))
    n_jobs: int = setting(1, "trials at a time, for a launcher that runs jobs in parallel", at_least(1))
    seed: int = setting(0, "of the sampler", between(0, 2**31))
    direction: str | None = setting(None, _OF_METRIC, _DIRECTION)
    folder: str = setting("${output_dir}/${name}/sweep", "the study; another folder is another study")


for _name, _node in {"grid": _Grid, "choice": _Choice, "optuna": _Optuna}.items():
    ConfigStore.instance().store(group="hydra/sweeper", name=_name, node=_node, provider="adadepth")
