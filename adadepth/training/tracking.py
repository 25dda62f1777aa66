"""Logging of metrics to ``metrics.jsonl``, which is always written, and to the trackers of ``logger.report_to``.

``metrics.jsonl`` holds one JSON object per line, ``{"step": int, "time": seconds of training, "<name>": value, ...}``,
and holds every metric. The trackers receive the same values of the main metrics, or of all (`logger.metrics`).
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict, cast

from adadepth.config import ExperimentConfig
from adadepth.runs.checkpoints import get_checkpoint_step
from adadepth.runs.directory import Run, jsonable
from adadepth.runtime.console import say
from adadepth.runtime.files import write_atomic
from adadepth.runtime.json_files import Count, read_json, read_json_lines
from adadepth.training.extension import Extension
from adadepth.training.trackers import trackers
from adadepth.training.trackers.base import Tracker
from adadepth.training.trackers.main_metrics import is_histogram_logged, is_logged

METRICS_FILE = "metrics.jsonl"
_POSITION = "metrics.json"  # file of a checkpoint


def open_tracker(
    config: ExperimentConfig, run: Run, resume_step: int | None = None, size: int | None = None
) -> Tracker:
    """Open the configured experiment trackers on the main process; other processes get one that logs nothing.

    A resumed run deletes the lines of ``metrics.jsonl`` that were written after its checkpoint, because it writes them
    again. The name of the run in every tracker is stored in ``run.json``.

    Args:
        config: Configuration of the run.
        run: Open run.
        resume_step: Step from which training continues, or None for a new run.
        size: Size of ``metrics.jsonl`` in bytes at that step. If it is None (unknown), the lines of later steps are
            deleted.
    """
    if not run.is_main:
        return cast(Tracker, _FanOut([], config))
    opened: list[Tracker] = [_JsonLines(run.directory / METRICS_FILE, resume_step, size)]
    identities: dict[str, str] = run.record.get("trackers", {})
    for name in config.logger.report_to:
        tracker: Tracker = trackers()[name].place()(config, run.directory, identities.get(name), resume_step)
        opened.append(tracker)
        if tracker.identity is not None:
            identities = {**identities, name: tracker.identity}
            run.update(trackers=identities)
    return cast(Tracker, _FanOut(opened, config))


def check_trackers(config: ExperimentConfig) -> None:
    """Raise an error if a configured tracker cannot be opened, before the run directory is created.

    Raises:
        ConfigError: If a tracker cannot be opened; the message names the setting.
    """
    for name in config.logger.report_to:
        if (check := getattr(trackers()[name].place(), "check", None)) is not None:
            check(config)


@contextmanager
def finish_tracker_afterwards(tracker: Tracker) -> Iterator[None]:
    """Close the tracker at the end of the `with` block, with exit code 1 after an error."""
    exit_code = 1
    try:
        yield
        exit_code = 0
    finally:
        tracker.finish(exit_code)


class _Position(TypedDict):
    """Size of the log file `metrics.jsonl` when a checkpoint was written."""

    bytes: Count


class _Line(TypedDict):
    """Required fields of a line of `metrics.jsonl`; all other fields are metrics."""

    step: Count
    time: float


class LogPosition(Extension):
    """Training extension that stores the size of `metrics.jsonl` in checkpoints, to truncate it on resume.

    Args:
        directory: Folder of the run.
    """

    def __init__(self, directory: Path) -> None:
        self._log = directory / METRICS_FILE

    def save(self, checkpoint: Path, process: int) -> None:
        """Write the current size of the log file to a checkpoint; it is exact because every line is flushed."""
        if process == 0:
            write_atomic(checkpoint / _POSITION, json.dumps({"bytes": measure_log_size(self._log.parent)}))


def measure_log_size(directory: Path) -> int:
    """Return the size of a run's `metrics.jsonl` in bytes, or 0 if there is none."""
    log = directory / METRICS_FILE
    return log.stat().st_size if log.is_file() else 0


def read_log_position(checkpoint: Path | None) -> tuple[int | None, int | None]:
    """Return a checkpoint's step and the size that the log file had then, for `open_tracker`.

    The size is None if an older version wrote the checkpoint. Without a checkpoint, the step is None and the size is 0.
    """
    if checkpoint is None:
        return None, 0
    path = checkpoint / _POSITION
    size = int(read_json(path, _Position)["bytes"]) if path.exists() else None
    return get_checkpoint_step(checkpoint), size


def read_last_scalars(directory: Path) -> dict[str, float]:
    """Read the last value of every scalar in a run's log, without histograms and tables."""
    lines = (
        line
        for line in read_metrics(directory / METRICS_FILE)
        if not any(isinstance(value, list | dict) for value in line.values())
    )
    values = {name: value for line in lines for name, value in line.items() if isinstance(value, int | float)}
    return {name: value for name, value in values.items() if name not in ("step", "time")}


class _FanOut:
    """Tracker that forwards every call to all open trackers, and only the main metrics to those of services.

    A tracker that fails during a run, e.g. without its server or with a full disk, is removed after one warning. The
    run continues, and `metrics.jsonl` is complete.
    """

    def __init__(self, sinks: Sequence[Tracker], config: ExperimentConfig) -> None:
        self.sinks = list(sinks)
        self._config = config

    def __getattr__(self, method: str) -> Callable[..., None]:
        def call(*args: Any, **kwargs: Any) -> None:
            self._forward(method, self.sinks, *args, **kwargs)

        return call

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Log all metrics to `metrics.jsonl`, and texts and the scalars that the settings select to the trackers."""
        files, services = self._split_sinks()
        self._forward("log", files, metrics, step)
        selected = {
            name: value
            for name, value in metrics.items()
            if not isinstance(value, int | float) or is_logged(name, self._config)
        }
        if selected:
            self._forward("log", services, selected, step)

    def histogram(self, name: str, counts: Sequence[float], first_bin: int, step: int) -> None:
        """Log a histogram to `metrics.jsonl`, and to the trackers if the settings select it."""
        sinks = self.sinks if is_histogram_logged(name, self._config) else self._split_sinks()[0]
        self._forward("histogram", sinks, name, counts, first_bin, step)

    def _split_sinks(self) -> tuple[list[Tracker], list[Tracker]]:
        """Return the sinks that write `metrics.jsonl`, and the trackers of services."""
        files: list[Tracker] = [sink for sink in self.sinks if isinstance(sink, _JsonLines)]
        return files, [sink for sink in self.sinks if sink not in files]

    def _forward(self, method: str, sinks: Sequence[Tracker], *args: Any, **kwargs: Any) -> None:
        for sink in list(sinks):
            try:
                getattr(sink, method)(*args, **kwargs)
            except Exception as error:
                if isinstance(sink, _JsonLines):
                    raise
                self._remove(sink, error)

    def _remove(self, sink: Tracker, error: Exception) -> None:
        reason = next(iter(str(error).splitlines()), "")
        say(
            f"warning: {type(sink).__name__} failed ({type(error).__name__}: {reason}); it gets no further "
            f"metrics, but {METRICS_FILE} still gets all of them"
        )
        self.sinks.remove(sink)


class _JsonLines(Tracker):
    """Tracker that writes ``metrics.jsonl``, one line per call.

    A resumed run continues the file and its clock.
    """

    def __init__(self, path: Path, resume_step: int | None = None, size: int | None = None) -> None:
        if size is not None and path.is_file():
            text = path.read_bytes()[:size]
            if not text or text.endswith(b"\n"):  # not within a line
                os.truncate(path, len(text))
        lines = [line for line in read_metrics(path) if resume_step is None or line["step"] <= resume_step]
        write_atomic(path, "".join(json.dumps(line) + "\n" for line in lines))
        self.begun = time.monotonic() - (lines[-1]["time"] if lines else 0.0)
        self.directory = path.parent
        self.file = path.open("a", encoding="utf-8")

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        seconds = round(time.monotonic() - self.begun, 3)
        line = {"step": step, "time": seconds, **metrics}
        self.file.write(json.dumps(jsonable(line), allow_nan=False) + "\n")
        self.file.flush()

    def histogram(self, name: str, counts: Sequence[float], first_bin: int, step: int) -> None:
        self.log({name: list(counts), f"{name}_first_bin": first_bin}, step)

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        self.log({name: {"columns": list(columns), "rows": [list(row) for row in rows]}}, step)

    def image(self, name: str, path: Path, step: int) -> None:
        inside = path.is_relative_to(self.directory)
        self.log({name: str(path.relative_to(self.directory) if inside else path)}, step)

    animation = image

    def finish(self, exit_code: int = 0) -> None:
        self.file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read ``metrics.jsonl``; ignore a last line that is incomplete because the run was killed.

    Raises:
        CheckpointError: If a line is damaged; the message names it.
    """
    return read_json_lines(path, _Line) if os.path.lexists(path) else []
