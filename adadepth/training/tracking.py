"""Where metrics go: always ``metrics.jsonl``, and the trackers that ``logger.report_to`` names beside it.

``metrics.jsonl`` holds one JSON object a line, ``{"step": int, "time": seconds of training, "<name>": value, ...}``,
and is complete: the trackers repeat it.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict, cast

from adadepth.families.registry import load
from adadepth.runs.directory import Run, jsonable
from adadepth.settings import ExperimentConfig
from adadepth.system.console import say
from adadepth.system.files import write_atomic
from adadepth.system.json_files import Count, read_json, read_json_lines
from adadepth.training.extension import Extension
from adadepth.training.trackers import trackers
from adadepth.training.trackers.base import Tracker

METRICS_FILE = "metrics.jsonl"
_POSITION = "metrics.json"  # of a checkpoint


def open_tracker(
    config: ExperimentConfig, run: Run, resume_step: int | None = None, size: int | None = None
) -> Tracker:
    """Open what the configuration asks for; processes other than the main one log nothing.

    What a run wrote after the state from which it goes on is dropped from ``metrics.jsonl``, since it writes it again.
    Under which name each tracker knows the run is kept in ``run.json``.

    Args:
        config: Of the run.
        run: Open.
        resume_step: The step training continues from; None: it begins.
        size: Bytes of ``metrics.jsonl`` then; None: not known, later lines are those of later steps.
    """
    if not run.is_main:
        return cast(Tracker, _FanOut([]))
    opened: list[Tracker] = [_JsonLines(run.directory / METRICS_FILE, resume_step, size)]
    known: dict[str, str] = run.record.get("trackers", {})
    for name in config.logger.report_to:
        tracker: Tracker = load(trackers()[name].place)(config, run.directory, known.get(name), resume_step)
        opened.append(tracker)
        if tracker.identity is not None:
            known = {**known, name: tracker.identity}
            run.update(trackers=known)
    return cast(Tracker, _FanOut(opened))


def check_trackers(config: ExperimentConfig) -> None:
    """Say before a run has a folder what keeps its trackers from opening.

    Raises:
        ConfigError: Naming the setting.
    """
    for name in config.logger.report_to:
        if (check := getattr(load(trackers()[name].place), "check", None)) is not None:
            check(config)


@contextmanager
def closing_tracker(tracker: Tracker) -> Iterator[None]:
    """Close the tracker however the block ends, telling it whether that was well."""
    exit_code = 1
    try:
        yield
        exit_code = 0
    finally:
        tracker.finish(exit_code)


class _Position(TypedDict):
    """The size of the log when a checkpoint was written."""

    bytes: Count


class _Line(TypedDict):
    """A line of the log; what else is in it are values by the names of metrics."""

    step: Count
    time: float


class LogPosition(Extension):
    """Keeps in a checkpoint how far the log of the run was."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / METRICS_FILE

    def save(self, checkpoint: Path, process: int) -> None:
        """Write the size of the file, whose every line is flushed."""
        if process == 0:
            write_atomic(checkpoint / _POSITION, json.dumps({"bytes": log_size(self._log.parent)}))


def log_size(directory: Path) -> int:
    """Bytes of a run's log, 0 where there is none."""
    log = directory / METRICS_FILE
    return log.stat().st_size if log.is_file() else 0


def logged_before(checkpoint: Path) -> int | None:
    """The size of the log when a checkpoint was written; None: an older version wrote it."""
    path = checkpoint / _POSITION
    return int(read_json(path, _Position)["bytes"]) if path.exists() else None


def scalars(directory: Path) -> dict[str, float]:
    """The last value of every number that a run has logged so far; histograms and tables have lines of their own."""
    lines = (line for line in read_metrics(directory / METRICS_FILE) if not any(map(_is_nested, line.values())))
    values = {name: value for line in lines for name, value in line.items() if isinstance(value, int | float)}
    return {name: value for name, value in values.items() if name not in ("step", "time")}


def _is_nested(value: Any) -> bool:
    return isinstance(value, list | dict)


class _FanOut:
    """Hand every call of a `Tracker` to each sink.

    A tracker that fails in the middle of a run, because a server went away or its disk is full, is told once and then
    left alone: the run is worth more, and `metrics.jsonl` has everything.
    """

    def __init__(self, sinks: Sequence[Tracker]) -> None:
        self.sinks = list(sinks)

    def __getattr__(self, method: str) -> Callable[..., None]:
        def call(*args: Any, **kwargs: Any) -> None:
            for sink in list(self.sinks):
                try:
                    getattr(sink, method)(*args, **kwargs)
                except Exception as error:
                    if isinstance(sink, _JsonLines):
                        raise
                    self._leave(sink, error)

        return call

    def _leave(self, sink: Tracker, error: Exception) -> None:
        reason = next(iter(str(error).splitlines()), "")
        say(
            f"warning: {type(sink).__name__} failed ({type(error).__name__}: {reason}); it is told nothing more, "
            f"{METRICS_FILE} goes on"
        )
        self.sinks.remove(sink)


class _JsonLines(Tracker):
    """Append to ``metrics.jsonl``, one flushed line a call; a resumed run continues file and clock."""

    def __init__(self, path: Path, resume_step: int | None = None, size: int | None = None) -> None:
        if size is not None and path.is_file():
            _cut(path, size)
        kept = [line for line in read_metrics(path) if resume_step is None or line["step"] <= resume_step]
        write_atomic(path, "".join(json.dumps(line) + "\n" for line in kept))
        self.begun = time.monotonic() - (kept[-1]["time"] if kept else 0.0)
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


def _cut(path: Path, size: int) -> None:
    """Drop what lies after the first `size` bytes, if a line ends there: who edited the file has moved the place."""
    text = path.read_bytes()[:size]
    if not text or text.endswith(b"\n"):
        os.truncate(path, len(text))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read ``metrics.jsonl``; a last line cut short by a killed run is left out.

    Raises:
        CheckpointError: Naming a line that is damaged.
    """
    return read_json_lines(path, _Line) if os.path.lexists(path) else []
