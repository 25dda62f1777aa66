"""Weights & Biases (W&B) tracker."""

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from adadepth.config import ExperimentConfig
from adadepth.config.experiment import TrackerMode
from adadepth.errors import ConfigError
from adadepth.runs.directory import get_plain_settings
from adadepth.runtime.console import is_quiet
from adadepth.training.trackers.base import Tracker, Value, compute_bin_edges
from adadepth.training.trackers.main_metrics import is_summarised
from adadepth.training.trackers.run_labels import describe_run

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
        labels = describe_run(config, directory)
        # The agent of a sweep sets an id.
        self.identity = identity or os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
        try:
            self.run = wandb.init(
                id=self.identity,
                resume="allow",
                project=config.logger.project,
                entity=config.logger.entity,
                group=labels.group,
                tags=labels.tags,
                mode=cast(Any, config.logger.mode.value),
                name=labels.name,
                job_type=labels.job_type,
                dir=str(directory.resolve()),  # W&B writes in a process of its own
                config={**get_plain_settings(config), **labels.facts},
                reinit="finish_previous",
                settings=wandb.Settings(silent=is_quiet()),
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
            self._define(name, summary=None if is_summarised(name) else "none")
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
