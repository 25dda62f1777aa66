"""`logger.report_to=csv`: the numbers of a run as a CSV file beside its metrics.jsonl, a line a number."""

import csv
from collections.abc import Mapping
from pathlib import Path

from adadepth.config import ExperimentConfig
from adadepth.training.trackers.base import Tracker, Value, select_numbers


class CsvTracker(Tracker):
    """Columns `step`, `name` and `value` in `metrics.csv`; a continued run goes on with the file."""

    def __init__(
        self, config: ExperimentConfig, directory: Path, identity: str | None = None, resume_step: int | None = None
    ) -> None:
        path = directory / "metrics.csv"
        is_new = not path.exists()
        self.file = path.open("a", encoding="utf-8", newline="")
        self.rows = csv.writer(self.file, lineterminator="\n")
        if is_new:
            self.rows.writerow(("step", "name", "value"))

    def log(self, metrics: Mapping[str, Value], step: int) -> None:
        """Write a line for every number."""
        self.rows.writerows((step, name, value) for name, value in select_numbers(metrics).items())
        self.file.flush()

    def finish(self, exit_code: int = 0) -> None:
        """Close the file."""
        self.file.close()
