"""Where metrics go: always ``metrics.jsonl``, and Weights & Biases or TensorBoard beside it.

``metrics.jsonl`` holds one JSON object a line, ``{"step": int, "time": seconds of training, "<name>": value, ...}``,
and is complete: the other sinks repeat it. Only this module imports wandb and TensorBoard, when one is asked for.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

from omegaconf import OmegaConf

from adadepth.atomic import write_atomic
from adadepth.config import ExperimentConfig, Sink
from adadepth.training.run_directory import jsonable

METRICS = "metrics.jsonl"
Value = float | int | str | list[Any]


class Tracker(Protocol):
    """What a task may log; every sink, the fan-out and the silent one have these methods."""

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

    def finish(self, exit_code: int = 0) -> None:
        """Close; call it in ``finally``, with a code other than 0 after a failure."""


def open_tracker(
    config: ExperimentConfig, directory: Path, *, is_main: bool = True, resume_step: int | None = None
) -> Tracker:
    """Open the sinks the configuration asks for; processes other than the main one log nothing.

    ``resume_step`` is the step training continues from: later lines of ``metrics.jsonl`` are dropped, since the
    continued run writes them again.
    """
    if not is_main:
        return cast(Tracker, _FanOut([]))
    sinks: list[Tracker] = [_JsonLines(directory / METRICS, resume_step)]
    if config.logger.name is Sink.wandb:
        sinks.append(_Wandb(config, directory))
    elif config.logger.name is Sink.tensorboard:
        sinks.append(_TensorBoard(directory))
    return cast(Tracker, _FanOut(sinks))


@contextmanager
def closing_tracker(tracker: Tracker) -> Iterator[None]:
    """Close the tracker however the block ends, telling it whether that was well."""
    exit_code = 1
    try:
        yield
        exit_code = 0
    finally:
        tracker.finish(exit_code)


class _FanOut:
    """Hand every call of a `Tracker` to each sink."""

    def __init__(self, sinks: Sequence[Tracker]) -> None:
        self.sinks = sinks

    def __getattr__(self, method: str) -> Callable[..., None]:
        def call(*args: Any, **kwargs: Any) -> None:
            for sink in self.sinks:
                getattr(sink, method)(*args, **kwargs)

        return call


class _JsonLines:
    """Append to ``metrics.jsonl``, one flushed line a call; a resumed run continues file and clock."""

    def __init__(self, path: Path, resume_step: int | None = None) -> None:
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


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read ``metrics.jsonl``; a last line cut short by a killed run is left out."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]  # a whole line ends in a newline


class _Wandb:
    """One Weights & Biases run; offline unless the configuration says otherwise."""

    def __init__(self, config: ExperimentConfig, directory: Path) -> None:
        import wandb

        self.wandb = wandb
        settings: Any = OmegaConf.to_container(OmegaConf.structured(config), enum_to_str=True)
        self.run = wandb.init(
            project=config.logger.project,
            entity=config.logger.entity,
            group=config.logger.group or config.name,
            tags=config.logger.tags,
            mode=cast(Any, config.logger.mode.value),
            name=directory.name,
            job_type=config.mode.value,
            dir=str(directory),
            config={**settings, "resumed_from": config.resume},  # an offline run cannot be resumed: same group instead
            reinit="finish_previous",
        )

    def log(self, metrics: Mapping[str, Value], step: int) -> None:
        self.run.log(dict(metrics), step=step)

    def histogram(self, name: str, counts: Sequence[float], first_bin: int, step: int) -> None:
        import numpy as np

        edges = np.arange(len(counts) + 1) + first_bin - 0.5
        self.run.log({name: self.wandb.Histogram(np_histogram=(np.asarray(counts), edges))}, step=step)

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        self.run.log({name: self.wandb.Table(columns=list(columns), data=[list(row) for row in rows])}, step=step)

    def image(self, name: str, path: Path, step: int) -> None:
        self.run.log({name: self.wandb.Image(str(path))}, step=step)

    def animation(self, name: str, path: Path, step: int) -> None:
        self.run.log({name: self.wandb.Video(str(path), format="gif")}, step=step)

    def finish(self, exit_code: int = 0) -> None:
        self.run.finish(exit_code=exit_code)


class _TensorBoard:
    """Event files in the run's ``tensorboard`` folder."""

    def __init__(self, directory: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(directory / "tensorboard"))

    def log(self, metrics: Mapping[str, Value], step: int) -> None:
        for name, value in metrics.items():
            if isinstance(value, int | float):
                self.writer.add_scalar(name, value, step)
            elif isinstance(value, str):
                self.writer.add_text(name, value, step)

    def histogram(self, name: str, counts: Sequence[float], first_bin: int, step: int) -> None:
        bins = range(first_bin, first_bin + len(counts))
        self.writer.add_histogram_raw(
            name,
            min=bins[0],
            max=bins[-1],
            num=sum(counts),
            sum=sum(bin_ * count for bin_, count in zip(bins, counts, strict=True)),
            sum_squares=sum(bin_**2 * count for bin_, count in zip(bins, counts, strict=True)),
            bucket_limits=[bin_ + 0.5 for bin_ in bins],
            bucket_counts=list(counts),
            global_step=step,
        )

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        lines = [columns, ["---"] * len(columns), *rows]
        self.writer.add_text(name, "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines), step)

    def image(self, name: str, path: Path, step: int) -> None:
        import numpy as np
        from PIL import Image

        with Image.open(path) as picture:
            self.writer.add_image(name, np.asarray(picture.convert("RGB")), step, dataformats="HWC")

    def animation(self, name: str, path: Path, step: int) -> None:
        # TensorBoard shows a GIF as it is; `add_video` would take it apart and needs one more library for it.
        from PIL import Image
        from tensorboard.compat.proto.summary_pb2 import Summary

        with Image.open(path) as picture:
            width, height = picture.size
        image = Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=path.read_bytes())
        cast(Any, self.writer.file_writer).add_summary(Summary(value=[Summary.Value(tag=name, image=image)]), step)

    def finish(self, exit_code: int = 0) -> None:
        self.writer.close()
