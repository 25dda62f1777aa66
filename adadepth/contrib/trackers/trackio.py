"""Trackio tracker, the local tracker by Hugging Face. `trackio show` displays its files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adadepth.config import ExperimentConfig
from adadepth.runs.directory import get_plain_settings
from adadepth.training.trackers.base import Tracker, Value, compute_bin_edges
from adadepth.training.trackers.run_labels import describe_run


class TrackioTracker(Tracker):
    """Tracker with one Trackio run in the project ``logger.project``. The run has the name of the run directory.

    Trackio writes to a folder of its own (``TRACKIO_DIR``).
    """

    def __init__(
        self, config: ExperimentConfig, directory: Path, identity: str | None = None, resume_step: int | None = None
    ) -> None:
        import trackio

        self.trackio = trackio
        labels = describe_run(config, directory)
        self.identity: str = identity or labels.name
        self.run = trackio.init(
            project=config.logger.project,
            name=self.identity,
            group=labels.group,
            config={**get_plain_settings(config), **labels.facts},
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def log(self, metrics: Mapping[str, Value], step: int) -> None:
        self.run.log(dict(metrics), step=step)

    def histogram(self, name: str, counts: Sequence[float], first_bin: int, step: int) -> None:
        edges = compute_bin_edges(counts, first_bin)
        self.run.log({name: self.trackio.Histogram(np_histogram=(list(counts), edges))}, step=step)

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        table = self.trackio.Table(columns=list(columns), data=[list(row) for row in rows])
        self.run.log({name: table}, step=step)

    def image(self, name: str, path: Path, step: int) -> None:
        self.run.log({name: self.trackio.Image(str(path))}, step=step)

    def animation(self, name: str, path: Path, step: int) -> None:
        self.run.log({name: self.trackio.Video(str(path), format="gif")}, step=step)

    def finish(self, exit_code: int = 0) -> None:
        self.run.finish()
