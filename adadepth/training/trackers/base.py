"""What a tracker can be told."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adadepth.settings import ExperimentConfig

Value = float | int | str | list[Any]


class Tracker:
    """A place where metrics go. What one cannot show it leaves out, since `metrics.jsonl` has it.

    Attributes:
        identity: Under which name the tracker knows this run; kept in `run.json`, so that a continued run goes on
            there. None: it needs none.
    """

    identity: str | None = None

    @classmethod
    def check(cls, config: ExperimentConfig) -> None:
        """Say before anything is written what keeps the tracker from opening; asks nobody in a network.

        Raises:
            ConfigError: Naming the setting.
        """

    def __init__(
        self, config: ExperimentConfig, directory: Path, identity: str | None = None, resume_step: int | None = None
    ) -> None:
        """Open it.

        Args:
            config: Of the run.
            directory: Of the run.
            identity: That of this run, where it was opened before.
            resume_step: The step that training continues from; None: it begins.
        """

    def log(self, metrics: Mapping[str, Value], step: int) -> None:
        """Log scalars (and short texts and lists) of one step."""

    def histogram(self, name: str, counts: Sequence[float], first_bin: int, step: int) -> None:
        """Log counts, or weights, of the whole numbers ``first_bin, first_bin + 1, ...``."""

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        """Log a small table."""

    def image(self, name: str, path: Path, step: int) -> None:
        """Log a PNG file."""

    def animation(self, name: str, path: Path, step: int) -> None:
        """Log a GIF file."""

    def artifact(self, kind: str, path: Path) -> None:
        """Keep a file or folder: the `report` or the `model` of the run."""

    def objective(self, value: float) -> None:
        """Say what the run is worth: the metric named by `optimise`, of the model that was kept."""

    def finish(self, exit_code: int = 0) -> None:
        """Close; call it in ``finally``, with a code other than 0 after a failure."""


def numbers(metrics: Mapping[str, Value]) -> dict[str, float]:
    """The scalars among metrics."""
    return {name: value for name, value in metrics.items() if isinstance(value, int | float)}


def bin_edges(counts: Sequence[float], first_bin: int) -> list[float]:
    """Borders of bins around whole numbers, one more than there are bins."""
    return [first_bin - 0.5 + number for number in range(len(counts) + 1)]
