"""MLflow, Trackio and Comet, which register by entry points of this package."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from adadepth.runs.directory import read_record
from tests.cli.tracking_support import log_everything, open_run_tracker

ROOT = Path(__file__).resolve().parents[3]


def test_mlflow_continues_one_run(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    directory = tmp_path / "job"
    directory.mkdir()
    tracker = open_run_tracker(directory, "logger=mlflow")
    log_everything(tracker, directory)
    tracker.artifact("report", directory / "figures" / "depth.png")
    tracker.finish(1)
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    identity = read_record(directory)["trackers"]["mlflow"]
    assert client.get_run(identity).info.status == "FAILED"
    tracker = open_run_tracker(directory, "logger=mlflow", resume_step=1)
    tracker.log({"train/loss": 1.5}, 2)
    tracker.finish()
    experiment = client.get_experiment_by_name("adadepth").experiment_id
    (run,) = client.search_runs([experiment])
    assert (run.info.run_id, run.info.run_name, run.info.status) == (identity, "job", "FINISHED")
    assert run.data.params["model.cap_remainder"] == "forced"
    assert [(point.step, point.value) for point in client.get_metric_history(identity, "train/loss")] == [
        (1, 2.5),
        (2, 1.5),
    ]

    def list_files(folder: str) -> list[str]:
        return [file.path for file in client.list_artifacts(identity, folder)]

    assert list_files("halting/table") == ["halting/table/step_000002.json"]
    assert list_files("halting/all/histogram") == ["halting/all/histogram/step_000002.json"]
    assert (list_files("report"), list_files("search")) == (["report/depth.png"], ["search/depth.gif"])


@pytest.mark.slow
def test_trackio_continues_one_run(tmp_path: Path) -> None:
    """Run in a new process: Trackio decides where it writes when it is imported."""
    pytest.importorskip("trackio")
    script = f"""
from pathlib import Path
from tests.cli.tracking_support import log_everything, open_run_tracker
folder = Path({str(tmp_path / "job")!r})
folder.mkdir()
tracker = open_run_tracker(folder, "logger=trackio")
log_everything(tracker, folder)
tracker.finish()
tracker = open_run_tracker(folder, "logger=trackio", resume_step=1)
tracker.log({{"train/loss": 1.5}}, 2)
tracker.finish()
"""
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio")}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, cwd=ROOT)
    with sqlite3.connect(tmp_path / "trackio" / "adadepth.db") as base:
        rows = base.execute("select run_name, step, metrics from metrics order by id").fetchall()
    logged = [(name, step, key, value) for name, step, line in rows for key, value in json.loads(line).items()]
    assert {name for name, *_ in logged} == {"job"}
    assert [(step, value) for _, step, key, value in logged if key == "train/loss"] == [(1, 2.5), (2, 1.5)]
    kinds = {key: value["_type"] for _, _, key, value in logged if isinstance(value, dict)}
    assert kinds == {
        "halting/all/histogram": "trackio.histogram", "halting/table": "trackio.table",
        "halting/depth": "trackio.image", "search/film": "trackio.video",
    }  # fmt: skip


@pytest.mark.slow
def test_comet_writes_an_offline_archive(tmp_path: Path) -> None:
    """Run in a new process, since Comet changes the modules that it finds."""
    pytest.importorskip("comet_ml")
    script = f"""
from pathlib import Path
from tests.cli.tracking_support import log_everything, open_run_tracker
folder = Path({str(tmp_path)!r})
tracker = open_run_tracker(folder, "logger=comet")
log_everything(tracker, folder)
tracker.finish()
tracker = open_run_tracker(folder, "logger=comet", resume_step=1)
tracker.log({{"train/loss": 1.5}}, 2)
tracker.finish()
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
    key = read_record(tmp_path)["trackers"]["comet"]
    archives = sorted((tmp_path / "comet").glob("*.zip"), key=lambda path: path.stat().st_mtime_ns)
    assert len(archives) == 2
    messages = []
    for archive in map(zipfile.ZipFile, archives):
        assert json.loads(archive.read("experiment.json"))["offline_id"] == key
        messages += [json.loads(line) for line in archive.read("messages.json").splitlines()]
    metrics = [message["payload"]["metric"] for message in messages if message["type"] == "metric_msg"]
    losses = [(metric["step"], metric["metricValue"]) for metric in metrics if metric["metricName"] == "train/loss"]
    assert losses == [(1, 2.5), (2, 1.5)]
    uploaded = {message["payload"]["upload_type"] for message in messages if message["type"] == "file_upload"}
    assert uploaded >= {"asset", "histogram3d", "visualization"}
