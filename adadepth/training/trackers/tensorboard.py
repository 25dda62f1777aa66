"""TensorBoard tracker, which writes event files to the ``tensorboard`` folder of the run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from adadepth.config import ExperimentConfig
from adadepth.training.trackers.base import Tracker, Value


class TensorBoardTracker(Tracker):
    """TensorBoard tracker. A resumed run writes a new file, which hides the steps of earlier files that it repeats."""

    def __init__(
        self, config: ExperimentConfig, directory: Path, identity: str | None = None, resume_step: int | None = None
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purged = None if resume_step is None else resume_step + 1
        self.writer = SummaryWriter(str(directory / "tensorboard"), purge_step=purged)

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
