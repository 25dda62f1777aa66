"""Support for tracker tests: trackers as runs open them, and one value of every kind that they log."""

from __future__ import annotations

from pathlib import Path

import pytest

from adadepth.runs.directory import Run, read_record
from adadepth.training.trackers.base import Tracker
from adadepth.training.tracking import open_tracker
from tests.configs.support import configured


def open_run_tracker(directory: Path, *overrides: str, resume_step: int | None = None) -> Tracker:
    """Return the tracker of a run, or of a resumed one."""
    config = configured("act_tiny", f"output_dir={directory.parent}", *overrides)
    return open_tracker(config, Run(directory, record=read_record(directory)), resume_step)


def log_everything(tracker: Tracker, directory: Path) -> None:
    tracker.log({"train/loss": 2.5, "train/epoch": 1}, step=1)
    tracker.histogram("halting/all/histogram", [0, 3, 5], first_bin=1, step=2)
    tracker.table("halting/table", ["class", "mean"], [["all", 2.5], ["mask", 3.5]], step=2)
    picture = directory / "figures" / "depth.png"
    picture.parent.mkdir(exist_ok=True)
    write_png(picture)
    tracker.image("halting/depth", picture, step=2)
    film = picture.with_suffix(".gif")
    write_gif(film)
    tracker.animation("search/film", film, step=3)
    tracker.log({"search/architecture": "sf-f"}, step=3)


def write_gif(path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    frames = [image.new("RGB", (6, 4), color) for color in ("white", "black")]
    frames[0].save(path, save_all=True, append_images=frames[1:])


def write_png(path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (4, 4)).save(path)
