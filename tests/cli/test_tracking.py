"""Trackers: `metrics.jsonl` is complete and valid whatever happens; the other sinks open and close once a job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adadepth.training.tracking import Tracker, open_tracker, read_metrics
from tests.configs.support import configured


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


def test_metrics_are_always_written_and_readable_at_once(tmp_path: Path) -> None:
    tracker = open_tracker(configured(), tmp_path)
    log_everything(tracker, tmp_path)
    lines = read_metrics(tmp_path / "metrics.jsonl")  # before the tracker is closed
    assert [line["step"] for line in lines] == [1, 2, 2, 2, 3, 3]
    assert lines[0]["train/loss"] == 2.5
    assert lines[1]["halting/all/histogram"] == [0, 3, 5]
    assert lines[1]["halting/all/histogram_first_bin"] == 1
    assert lines[2]["halting/table"]["rows"] == [["all", 2.5], ["mask", 3.5]]
    assert lines[3]["halting/depth"] == "figures/depth.png"
    assert lines[4]["search/film"] == "figures/depth.gif"
    assert lines[5]["search/architecture"] == "sf-f"
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    tracker.finish()


def test_a_non_finite_value_stays_valid_json(tmp_path: Path) -> None:
    tracker = open_tracker(configured(), tmp_path)
    tracker.log({"train/loss": float("nan"), "train/grad_norm": float("inf")}, step=1)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    line = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert (line["train/loss"], line["train/grad_norm"]) == ("nan", "inf")


def test_a_resumed_run_continues_the_file_and_drops_what_it_will_repeat(tmp_path: Path) -> None:
    tracker = open_tracker(configured(), tmp_path)
    for step in range(1, 7):
        tracker.log({"train/loss": 1.0}, step)
    tracker.finish(1)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "ti')  # a killed run's last line
    tracker = open_tracker(configured(), tmp_path, resume_step=4)
    tracker.log({"train/loss": 2.0}, 5)
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [(line["step"], line["train/loss"]) for line in lines] == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2)]
    assert lines[4]["time"] >= lines[3]["time"]


def test_other_processes_log_nothing(tmp_path: Path) -> None:
    tracker = open_tracker(configured("act_tiny", "logger=wandb"), tmp_path, is_main=False)
    tracker.log({"train/loss": 1.0}, 1)
    tracker.finish()
    assert list(tmp_path.iterdir()) == []


def test_wandb_gets_one_offline_run_a_job(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    for number in range(2):
        directory = tmp_path / f"job{number}"
        directory.mkdir()
        tracker = open_tracker(configured("act_tiny", "logger=wandb", f"seed={number}"), directory)
        try:
            assert wandb.run.settings.mode == "offline"
            assert (wandb.run.group, wandb.run.name, wandb.run.config["seed"]) == ("act_tiny", f"job{number}", number)
            assert wandb.run.config["model"]["cap_remainder"] == "reference"
            log_everything(tracker, directory)
        finally:
            tracker.finish(number)
        assert wandb.run is None
        assert len(list((directory / "wandb").glob("offline-run-*/*.wandb"))) == 1
        assert len(read_metrics(directory / "metrics.jsonl")) == 6
        assert len(list((directory / "wandb").glob("offline-run-*/files/media/videos/search/*.gif"))) == 1


def test_tensorboard_gets_every_kind(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tracker = open_tracker(configured("act_tiny", "logger=tensorboard"), tmp_path)
    log_everything(tracker, tmp_path)
    tracker.finish()
    seen = events.EventAccumulator(str(tmp_path / "tensorboard"))
    seen.Reload()
    assert seen.Scalars("train/loss")[0].value == 2.5
    histogram = seen.Histograms("halting/all/histogram")[0].histogram_value
    assert (histogram.num, histogram.sum, list(histogram.bucket)[-3:]) == (8, 3 * 2 + 5 * 3, [0, 3, 5])
    assert seen.Tags()["images"] == ["halting/depth", "search/film"]
    film = seen.Images("search/film")[0]
    assert (film.width, film.height) == (6, 4)
    assert film.encoded_image_string == (tmp_path / "figures" / "depth.gif").read_bytes()
    assert seen.Tags()["tensors"] == ["halting/table/text_summary", "search/architecture/text_summary"]
