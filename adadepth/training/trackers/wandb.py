"""Weights & Biases (W&B) tracker, and the charts of its dashboard."""

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from adadepth.config import ExperimentConfig
from adadepth.config.experiment import TrackerMode
from adadepth.errors import ConfigError
from adadepth.metrics.directions import prefers_greater
from adadepth.runs.directory import get_plain_settings
from adadepth.training.trackers.base import Tracker, Value, compute_bin_edges


class Chart(NamedTuple):
    """Chart of a W&B dashboard: section, title, and the metrics to plot."""

    section: str
    title: str
    metrics: tuple[str, ...]


_OF_TASKS = ("eval/score", "eval/accuracy", "eval/token_accuracy", "eval/mlm_accuracy", "eval/perplexity")
_MEANS = ("halting/all/mean", "halting/expected_steps", "halting/layers/expected_depth", "search/expected_blocks")
_BUDGET = ("halting/ponder_cost", "halting/kl", "budget/measured", "budget/target")
_SPEEDS = ("cost/speedup_over_dense", "train/tokens_per_second", "eval/tokens_per_second")
PANELS = (
    Chart("Quality", "Loss", ("train/loss", "eval/loss")),
    Chart("Quality", "Task", _OF_TASKS),
    Chart("Depth", "Mean depth", _MEANS),
    Chart("Depth", "Does depth adapt?", ("halting/effective_depths", "halting/effective_depths_within")),
    Chart("Depth", "Depth and difficulty", ("halting/spearman_depth_loss", "halting/spearman_depth_difficulty")),
    Chart("Depth", "Depth penalty and budget", _BUDGET),
    Chart("Compute", "Compute at the measured depths (share of full depth)", ("cost/adaptive_over_full",)),
    Chart("Compute", "Executed compute of the evaluation (share of full depth)", ("cost/executed_over_full",)),
    Chart("Compute", "Measured speed", _SPEEDS),
)
_SHOWN = frozenset(metric for panel in PANELS for metric in panel.metrics)


def choose_summary(name: str, config: ExperimentConfig) -> str | None:
    """Choose how W&B summarises a metric in its table of runs.

    `min` and `max` show the best value, for the loss and for the metric that selects the model. None shows the last
    value, and `none` hides the metric.
    """
    trainer = config.trainer
    if trainer.metric_for_best_model and name == "eval/" + trainer.metric_for_best_model.removeprefix("eval_"):
        return "max" if prefers_greater(trainer.metric_for_best_model, trainer.greater_is_better) else "min"
    if name == "eval/loss":
        return "min"
    is_quality = name.startswith("eval/") and name.count("/") == 1
    return None if name in _SHOWN or is_quality else "none"


STEP = "step"
_NOT_IN_PROJECTS = "/\\#?%:"


class WandbTracker(Tracker):
    """W&B tracker, offline by default. `wandb sync` joins the parts of a resumed run by their common id.

    The x-axis of metrics is `step`, the number of optimiser steps. W&B's own step counts calls, and a resumed run would
    repeat some of them.
    """

    @classmethod
    def check(cls, config: ExperimentConfig) -> None:
        project = config.logger.project
        if len(project) > 128 or set(project) & set(_NOT_IN_PROJECTS):
            marks = " ".join(_NOT_IN_PROJECTS)
            raise ConfigError(f"logger.project={project}: W&B allows up to 128 characters and none of {marks}")
        if config.logger.mode is TrackerMode.online and "WANDB_MODE" not in os.environ and not _has_key():
            raise ConfigError(
                "logger=wandb: no API key is configured: use `wandb login`; logger.mode=offline needs neither account "
                "nor network"
            )

    def __init__(
        self, config: ExperimentConfig, directory: Path, identity: str | None = None, resume_step: int | None = None
    ) -> None:
        import wandb

        self.wandb, self.config = wandb, config
        # The agent of a sweep sets an id.
        self.identity = identity or os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
        try:
            self.run = wandb.init(
                id=self.identity,
                resume="allow",
                project=config.logger.project,
                entity=config.logger.entity,
                group=config.logger.group or config.name,
                tags=config.logger.tags,
                mode=cast(Any, config.logger.mode.value),
                name=directory.name,
                job_type=config.mode.value,
                dir=str(directory.resolve()),  # W&B writes in a process of its own
                config=get_plain_settings(config),
                reinit="finish_previous",
            )
        except wandb.errors.Error as error:  # not logged in, no network
            problem = str(error).splitlines()[0]
            raise ConfigError(
                f"logger=wandb: {problem}; logger.mode=offline needs neither account nor network"
            ) from error
        self.run.define_metric(STEP, hidden=True, summary="none")
        self._defined: set[str] = set()

    def log(self, metrics: Mapping[str, Value], step: int) -> None:
        for name in metrics:
            self._define(name, summary=choose_summary(name, self.config))
        self.run.log({**metrics, STEP: step})

    def histogram(self, name: str, counts: Sequence[float], first_bin: int, step: int) -> None:
        import numpy as np

        self._define_media(name)
        np_histogram = (np.asarray(counts), np.asarray(compute_bin_edges(counts, first_bin)))
        self.run.log({name: self.wandb.Histogram(np_histogram=np_histogram), STEP: step})

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        table = self.wandb.Table(columns=list(columns), data=[list(row) for row in rows])
        self.run.log({name: table, STEP: step})  # W&B shows the table of the summary

    def image(self, name: str, path: Path, step: int) -> None:
        self._define_media(name)
        self.run.log({name: self.wandb.Image(str(path)), STEP: step})

    def animation(self, name: str, path: Path, step: int) -> None:
        self._define_media(name)
        self.run.log({name: self.wandb.Video(str(path), format="gif"), STEP: step})

    def artifact(self, kind: str, path: Path) -> None:
        self.run.log_artifact(str(path), name=f"{self.config.name}-{kind}", type=kind)

    def objective(self, value: float) -> None:
        self.run.log({"objective": value})

    def finish(self, exit_code: int = 0) -> None:
        self.run.finish(exit_code=exit_code)

    def _define_media(self, name: str) -> None:
        """Define an image or table metric without a column in the table of runs.

        Otherwise W&B would make a metric of every entry of its value, which is a mapping.
        """
        self._define(name, summary="none")
        self._define(f"{name}.*", summary="none")

    def _define(self, name: str, summary: str | None) -> None:
        if name not in self._defined:
            self.run.define_metric(name, step_metric=STEP, summary=summary)
            self._defined.add(name)


def _has_key() -> bool:
    """Return whether an API key may exist, in the environment or in the netrc file that W&B reads."""
    files = (os.environ.get("NETRC", "~/.netrc"), "~/_netrc")
    is_set = any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"))
    return is_set or any(Path(file).expanduser().is_file() for file in files)
