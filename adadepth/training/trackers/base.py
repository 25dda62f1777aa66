"""Interface of experiment trackers, which send metrics to services such as TensorBoard."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adadepth.config import ExperimentConfig

Value = float | int | str | list[Any]


class Tracker:
    """Base class of experiment trackers. A tracker ignores values it cannot display; `metrics.jsonl` has all of them.

    Attributes:
        identity: Name of the run in the tracker, stored in `run.json` for a resumed run, or None if the tracker needs
            no name.
    """

    identity: str | None = None

    @classmethod
    def check(cls, config: ExperimentConfig) -> None:
        """Raise an error if the tracker cannot be opened, without writing files or using the network.

        Raises:
            ConfigError: If it cannot be opened; the message names the setting.
        """

    def __init__(
        self, config: ExperimentConfig, directory: Path, identity: str | None = None, resume_step: int | None = None
    ) -> None:
        """Open the tracker for a run.

        Args:
            config: Configuration of the run.
            directory: Folder of the run.
            identity: Name of the run in the service, if it was opened before.
            resume_step: Step from which training continues, or None for a new run.
        """

    def log(self, metrics: Mapping[str, Value], step: int) -> None:
        """Log the scalars, short texts and lists of one step."""

    def histogram(self, name: str, counts: Sequence[float], first_bin: int, step: int) -> None:
        """Log a histogram of counts or weights over the integers ``first_bin, first_bin + 1, ...``."""

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        """Log a small table under a name."""

    def image(self, name: str, path: Path, step: int) -> None:
        """Log a PNG file under a name."""

    def animation(self, name: str, path: Path, step: int) -> None:
        """Log a GIF file under a name."""

    def artifact(self, kind: str, path: Path) -> None:
        """Upload a file or folder as an artifact; `kind` is `report` or `model`."""

    def objective(self, value: float) -> None:
        """Log the final value of the metric that `optimise` names, for the saved model."""

    def finish(self, exit_code: int = 0) -> None:
        """Close the tracker. Call it in ``finally``, with a non-zero code after a failure."""


def select_numbers(metrics: Mapping[str, Value]) -> dict[str, float]:
    """Select the metrics whose values are numbers."""
    return {name: value for name, value in metrics.items() if isinstance(value, int | float)}


def compute_bin_edges(counts: Sequence[float], first_bin: int) -> list[float]:
    """Return the edges of histogram bins centred on integers, one more than there are bins."""
    return [first_bin - 0.5 + number for number in range(len(counts) + 1)]
