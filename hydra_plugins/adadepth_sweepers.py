"""Sweepers for Hydra's multirun: a grid, and Optuna's samplers by ask and tell.

Both read Hydra's own syntax (``key=a,b``, ``choice``, ``range``, ``interval``, ``tag(log, ...)``) from
``hydra.sweeper.params`` and the command line, and check every value before the first job runs. Optuna is an optional
extra, imported only by its sweeper. Hydra discovers this module and instantiates only sweepers that live in the
namespace ``hydra_plugins``, which is why it is not in ``adadepth``.
"""

import itertools
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from adadepth.errors import ConfigError
from adadepth.validation import checked

if TYPE_CHECKING:
    import optuna

log = logging.getLogger(__name__)


class GridSweeper(Sweeper):
    """Run every combination of the values; the jobs run in one process unless the launcher decides otherwise."""

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        self.params = dict(params or {})

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what Hydra hands over, and make the launcher."""
        self.base, self.context = config, hydra_context
        self.launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def parse(self, arguments: list[str]) -> list[Override]:
        """Parse the parameters from YAML and the command line; the last word on a key counts."""
        parser = OverridesParser.create(config_loader=self.context.config_loader)
        given = parser.parse_overrides([f"{key}={value}" for key, value in self.params.items()] + arguments)
        return list({override.get_key_element(): override for override in given}.values())

    def check(self, jobs: Sequence[Sequence[str]]) -> None:
        """Compose and validate every job; raises before anything has run."""
        for job in jobs:
            checked(self.context.config_loader.load_sweep_config(self.base, list(job)))

    def sweep(self, arguments: list[str]) -> list[JobReturn]:
        """Run the grid; the first failure is raised after all jobs have run."""
        overrides = self.parse(arguments)
        for override in overrides:
            if isinstance(override.value(), IntervalSweep):
                raise ConfigError(
                    f"{override.input_line}: a grid has no intervals; use choice, range or sweep with Optuna"
                )
        jobs = [list(job) for job in itertools.product(*map(_assignments, overrides))]
        self.check(jobs)
        returns = list(self.launcher.launch(jobs, initial_job_idx=0))
        swept = {assignment for o in overrides if o.is_sweep_override() for assignment in _assignments(o)}
        for job, result in zip(jobs, returns, strict=True):
            log.info("%s -> %s", " ".join(filter(swept.__contains__, job)), result.return_value)
        return returns


class OptunaSweeper(GridSweeper):
    """Search with Optuna. A failing trial is recorded and the search goes on; repeating the command continues it."""

    def __init__(
        self, params: Mapping[str, Any] | None, n_trials: int, n_jobs: int, seed: int, direction: Any, folder: str
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
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError("an Optuna sweep cannot run under torchrun: its processes would ask for different trials")
        self.check([fixed + _job(corner) for corner in _corners(space)])
        study = self._open_study()
        while (missing := self.n_trials - _finished(study)) > 0:
            trials = [study.ask(space) for _ in range(min(self.n_jobs, missing))]
            jobs = [fixed + _job(trial.params) for trial in trials]
            for trial, result in zip(trials, self.launcher.launch(jobs, trials[0].number), strict=True):
                _tell(study, trial, result)
        log.info("best of %d trials: %s -> %s", self.n_trials, study.best_params, study.best_value)
        return study

    def _open_study(self) -> "optuna.Study":
        """Create or continue the study; a continued one gets another seed, or it would repeat its first draws."""
        from optuna import create_study, samplers, storages
        from optuna.storages.journal import JournalFileBackend

        self.folder.mkdir(parents=True, exist_ok=True)
        storage = storages.JournalStorage(JournalFileBackend(str(self.folder / "optuna.log")))
        study = create_study(storage=storage, study_name="sweep", direction=self.direction, load_if_exists=True)
        study.sampler = samplers.TPESampler(seed=self.seed + len(study.trials))
        return study


def _assignments(override: Override) -> list[str]:
    """The ``key=value`` strings of one override: one, or one for each value of a sweep."""
    key = override.get_key_element()
    if override.is_sweep_override():
        return [f"{key}={value}" for value in override.sweep_string_iterator()]
    return [f"{key}={override.get_value_element_as_str()}"]


def _distribution(override: Override) -> Any:
    """Translate Hydra's sweep syntax into an Optuna distribution."""
    try:
        from optuna import distributions
    except ImportError as error:
        raise ConfigError("hydra/sweeper=optuna: Optuna is missing, install it with pip install optuna") from error
    value = override.value()
    if isinstance(value, IntervalSweep):
        low: Any = value.start
        high: Any = value.end
        whole = isinstance(low, int) and isinstance(high, int)  # int(interval(1, 8))
        kind: Any = distributions.IntDistribution if whole else distributions.FloatDistribution
        return kind(low, high, log="log" in value.tags)
    if isinstance(value, RangeSweep) and isinstance(steps := value.range(), range):
        return distributions.IntDistribution(steps.start, steps[-1], step=steps.step)
    return distributions.CategoricalDistribution(list(override.sweep_string_iterator()))


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
    log.warning("trial %d failed: %s", trial.number, value)
    trial.set_user_attr("failure", repr(value))
    study.tell(trial, state=TrialState.FAIL)


def _store(name: str, sweeper: type[Sweeper], **options: Any) -> None:
    node = {"_target_": f"{__name__}.{sweeper.__name__}", "params": {}, **options}
    ConfigStore.instance().store(group="hydra/sweeper", name=name, node=node, provider="adadepth")


_store("grid", GridSweeper)
_store(
    "optuna",
    OptunaSweeper,
    n_trials=20,
    n_jobs=1,  # trials at a time, for a launcher that runs jobs in parallel
    seed=0,
    direction="minimize",
    folder="${output_dir}/${name}/sweep",  # the study; another folder is another study
)
