"""Trackers: `metrics.jsonl` is complete and valid in every case; the others open and close once a job."""

from __future__ import annotations

import json
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from adadepth.errors import CheckpointError, ConfigError
from adadepth.metrics.metric_names import metric_name
from adadepth.metrics.unit_costs import TIME, UNIT_MACS
from adadepth.runs.directory import Run, read_record, write_jsonable
from adadepth.training import tracking
from adadepth.training.trackers import TrackerKind
from adadepth.training.trackers.base import Tracker
from adadepth.training.trackers.main_metrics import PANELS
from adadepth.training.trackers.run_labels import RunLabels, describe_run
from adadepth.training.tracking import (
    LogPosition,
    check_trackers,
    open_tracker,
    read_last_scalars,
    read_log_position,
    read_metrics,
)
from tests.before.runs import list_former_names
from tests.cli.tracking_support import log_everything, open_run_tracker, write_png
from tests.configs.support import configured
from tests.wandb_support import read_wandb_history, read_wandb_records, read_wandb_summary

ROOT = Path(__file__).resolve().parents[2]


def test_metrics_are_always_written_and_readable_at_once(tmp_path: Path) -> None:
    tracker = open_run_tracker(tmp_path)
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
    tracker = open_run_tracker(tmp_path)
    tracker.log({"train/loss": float("nan"), "train/grad_norm": float("inf")}, step=1)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    line = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert (line["train/loss"], line["train/grad_norm"]) == ("nan", "inf")


def test_a_resumed_run_drops_all_lines_after_its_checkpoint(tmp_path: Path) -> None:
    """Check also lines of the same step, which an interrupted run logs at its end."""
    tracker = open_run_tracker(tmp_path)
    tracker.log({"train/loss": 1.0}, 4)
    checkpoint = tmp_path / "checkpoint-4"
    checkpoint.mkdir()
    LogPosition(tmp_path).save(checkpoint, 0)
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    tracker.log({"train/runtime": 3.0}, 4)
    tracker.image("figures/depth", tmp_path / "depth.png", 4)
    tracker.finish(1)
    config, run = configured("act_tiny"), Run(tmp_path)
    open_tracker(config, run, *read_log_position(checkpoint)).finish()
    assert (tmp_path / "metrics.jsonl").read_bytes() == whole
    assert read_last_scalars(tmp_path) == {"train/loss": 1.0}
    open_tracker(config, run, resume_step=4, size=len(whole) - 3).finish()
    assert (tmp_path / "metrics.jsonl").read_bytes() == whole, "edited since: the place is within a line"
    open_tracker(config, run, size=0).finish()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


@pytest.mark.parametrize(
    "line", [b"{broken", b"3", b"{}", b"\xff\xfe", b'{"step": "2", "time": 1.0}', b'{"step": 2, "time": null}']
)
def test_a_broken_line_of_the_log_is_named(tmp_path: Path, line: bytes) -> None:
    whole = b'{"step": 1, "time": 0.5}\n'
    (tmp_path / "metrics.jsonl").write_bytes(whole + line + b"\n" + whole)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: line 2 is damaged \(.+\); repair or delete it"):
        read_metrics(tmp_path / "metrics.jsonl")


def test_a_resumed_run_continues_the_file_and_drops_repeated_steps(tmp_path: Path) -> None:
    tracker = open_run_tracker(tmp_path)
    for step in range(1, 7):
        tracker.log({"train/loss": 1.0}, step)
    tracker.finish(1)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "ti')  # a killed run's last line
    tracker = open_run_tracker(tmp_path, resume_step=4)
    tracker.log({"train/loss": 2.0}, 5)
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [(line["step"], line["train/loss"]) for line in lines] == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2)]
    assert lines[4]["time"] >= lines[3]["time"]


def test_other_processes_log_nothing(tmp_path: Path) -> None:
    tracker = open_tracker(configured("act_tiny", "logger=wandb"), Run(tmp_path, is_main=False))
    tracker.log({"train/loss": 1.0}, 1)
    tracker.finish()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_wandb_gets_one_offline_run_a_job(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    for number in range(2):
        directory = tmp_path / f"job{number}"
        directory.mkdir()
        write_jsonable(directory / "run.json", RECORD)
        tracker = open_run_tracker(directory, "logger=wandb", f"seed={number}")
        try:
            assert wandb.run.settings.mode == "offline"
            assert (wandb.run.name, wandb.run.config["seed"]) == (f"job{number}", number)
            assert (wandb.run.group, wandb.run.job_type) == ("sweep-0a1b2c", "train")
            assert {"act_tiny", "model.act_penalty=0.01"} <= {*wandb.run.tags}
            assert (wandb.run.config["overrides"], wandb.run.config["parameters"]) == (RECORD["overrides"], 5000)
            assert wandb.run.config["model"]["cap_remainder"] == "forced"
            log_everything(tracker, directory)
        finally:
            tracker.finish(number)
        assert wandb.run is None
        assert len(list((directory / "wandb").glob("offline-run-*/*.wandb"))) == 1
        assert len(read_metrics(directory / "metrics.jsonl")) == 6
        assert len(list((directory / "wandb").glob("offline-run-*/files/media/videos/search/*.gif"))) == 1


def test_a_resumed_wandb_run_goes_on_under_its_id(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    for resume_step, steps in ((None, range(1, 4)), (2, range(3, 5))):
        tracker = open_run_tracker(tmp_path, "logger=wandb", resume_step=resume_step)
        for step in steps:
            tracker.log({"train/loss": float(step)}, step)
        tracker.finish()
    identity = read_record(tmp_path)["trackers"]["wandb"]
    first, second = read_wandb_records(tmp_path, "run")
    assert first.run_id == second.run_id == identity
    assert second.resume, "online, W&B adds to the run instead of overwriting it"
    assert len([*(tmp_path / "wandb").glob(f"offline-run-*-{identity}*")]) == 2
    assert [(line["step"], line["train/loss"]) for line in read_wandb_history(tmp_path)] == [
        (1, 1),
        (2, 2),
        (3, 3),
        (3, 3),
        (4, 4),
    ]


def test_wandb_draws_over_updates_and_ends_with_the_saved_model(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    tracker = open_run_tracker(tmp_path, "logger=wandb", "trainer.metric_for_best_model=eval_mlm_accuracy",
                     "trainer.greater_is_better=true")  # fmt: skip
    for step, value in enumerate((2.0, 3.0, 1.0)):
        names = ("train/loss", "eval/loss", "eval/mlm_accuracy", "eval/mlm_loss", "halting/all/mean", "halting/cls/p90")
        tracker.log(dict.fromkeys(names, value), step)
    tracker.table("halting/table", ["class", "mean"], [["all", 2.5]], step=2)
    tracker.histogram("halting/all/histogram", [0, 3, 5], first_bin=1, step=2)
    write_png(tmp_path / "a.png")
    tracker.image("figures/a", tmp_path / "a.png", step=2)
    tracker.objective(1.5)
    tracker.finish()
    summary = read_wandb_summary(tmp_path)
    table = {name: summary.pop(name) for name in list(summary) if name.startswith("halting/table")}
    assert table["halting/table/_type"] == "table-file", table
    assert summary == {
        "train/loss": 1, "eval/loss": 1, "eval/mlm_accuracy": 1, "eval/mlm_loss": 1, "halting/all/mean": 1,
        "objective": 1.5,
    }  # fmt: skip
    assert {"halting/all/histogram/values", "figures/a/path"} <= {
        name for call in read_wandb_history(tmp_path) for name in call
    }
    axes = {metric.name or metric.glob_name: metric.step_metric for metric in read_wandb_records(tmp_path, "metric")}
    assert axes.pop("step") == ""
    assert set(axes.values()) == {"step"}


def test_a_refusal_of_wandb_is_a_one_line_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")

    def refuse(**options: object) -> None:
        raise wandb.errors.UsageError("No API key configured. Use `wandb login` to log in.\n(more)")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(ConfigError, match=r"^logger=wandb: No API key.*; logger.mode=offline needs .*$"):
        open_run_tracker(tmp_path, "logger=wandb", "logger.mode=online")


@pytest.mark.parametrize(("overrides", "message"), [
    (["logger.mode=online"], r"logger=wandb: no API key is configured: use `wandb login`; logger.mode=offline needs"),
    (["logger.project=a/b"], r"logger.project=a/b: W&B allows up to 128 characters and none of / \\ # \? % :"),
])  # fmt: skip
def test_impossible_settings_of_wandb_are_refused_before_a_run(
    overrides: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_MODE", "WANDB_API_KEY", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=message):
        check_trackers(configured("act_tiny", "logger=wandb", *overrides))


class Vanishing(Tracker):
    """Tracker whose server fails after the first call."""

    def __init__(self, *args: object) -> None:
        self.calls: list[int] = []

    def log(self, metrics: Mapping[str, object], step: int) -> None:
        self.calls.append(step)
        if step > 1:
            raise ConnectionError("no route to host\n(more)")


def test_a_failing_tracker_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trackers: list[Vanishing] = []
    monkeypatch.setattr(Vanishing, "__init__", lambda self, *_: trackers.append(self) or setattr(self, "calls", []))
    monkeypatch.setattr(tracking, "trackers", lambda: {"vanishing": TrackerKind(lambda: Vanishing, "json", "nothing")})
    config = configured()
    config.logger.report_to = ["vanishing"]
    tracker = open_tracker(config, Run(tmp_path))
    for step in (1, 2, 3):
        tracker.log({"train/loss": float(step)}, step)
    tracker.finish()
    assert trackers[0].calls == [1, 2]
    assert [line["train/loss"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [1.0, 2.0, 3.0]
    assert capsys.readouterr().out == (
        "warning: Vanishing failed (ConnectionError: no route to host); it gets no further metrics, but "
        "metrics.jsonl still gets all of them\n"
    )


def test_wandb_stores_the_requested_files(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    (tmp_path / "report.html").write_text("a page")
    tracker = open_run_tracker(tmp_path, "logger=wandb", "logger.artifacts=[report]")
    tracker.artifact("report", tmp_path / "report.html")
    tracker.finish()
    (artifact,) = read_wandb_records(tmp_path, "artifact")
    assert (artifact.name, artifact.type) == ("act_tiny-report", "report")
    assert [entry.path for entry in artifact.manifest.contents] == ["report.html"]


PREFIXES = ("train", "eval", "halting", "cost", "search", "budget")
RECORD: dict[str, Any] = {
    "status": "running", "sweep": "sweep-0a1b2c", "owner": None, "parameters": 5000, "trainable_parameters": 70,
    "overrides": ["seed=3", "model.act_penalty=0.01", "logger=wandb", f"dataset.path={'x' * 80}", "resume=latest"],
}  # fmt: skip


def describe_label(directory: Path, record: Mapping[str, Any], *overrides: str) -> RunLabels:
    directory.mkdir(parents=True, exist_ok=True)
    write_jsonable(directory / "run.json", record)
    return describe_run(configured("act_tiny", *overrides), directory)


def test_a_sweep_is_a_group_and_overrides_are_tags_and_facts(tmp_path: Path) -> None:
    labels = describe_label(tmp_path / "job", RECORD, "logger.tags=[mine]")
    assert (labels.name, labels.group, labels.job_type) == ("job", "sweep-0a1b2c", "train")
    long = f"dataset.path={'x' * 48}..."
    assert labels.tags == ["mine", "act_tiny", "seed=3", "model.act_penalty=0.01", long]
    assert max(map(len, labels.tags)) == 64, "W&B refuses longer ones"
    assert labels.facts == {
        "overrides": RECORD["overrides"], "sweep": "sweep-0a1b2c", "parameters": 5000, "trainable_parameters": 70,
    }  # fmt: skip
    assert describe_label(tmp_path / "job", RECORD, "logger.group=mine").group == "mine"


def test_runs_of_one_command_have_distinct_names_and_kinds(tmp_path: Path) -> None:
    alone = {**RECORD, "sweep": None}
    assert describe_label(tmp_path / "job", alone).group is None
    assert describe_label(tmp_path / "job", {**alone, "owner": "seeds"}).group == "seeds"
    search = tmp_path / "search"
    assert describe_label(search, alone, "mode=evaluate", "checkpoint=x").job_type == "evaluate"
    for folder, name, job in (
        (search / "derived", "search/derived", "evaluate"),
        (search / "retrained" / "derived", "search/derived", "retrain"),
        (search / "retrained" / "vanilla", "search/vanilla", "retrain"),
    ):
        labels = describe_label(folder, alone)
        assert (labels.name, labels.group, labels.job_type) == (name, "search", job)


def test_trackers_get_a_short_list_and_the_file_gets_all(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    names = sorted({metric_name(name) for name in list_former_names() if name.partition("/")[0] in PREFIXES})
    scalars, lists = [name for name in names if "histogram" not in name], ["all", "mask", "label_no"]
    for metrics, most in (("main", 80), ("all", len(scalars))):
        directory = tmp_path / metrics
        directory.mkdir()
        tracker = open_run_tracker(
            directory, "logger=tensorboard", f"logger.metrics={metrics}", "optimise=halting/mask/std"
        )
        tracker.log(dict.fromkeys(scalars, 1.0), 1)
        for name in lists:
            tracker.histogram(f"halting/{name}/histogram", [0, 1], 1, 1)
        tracker.finish()
        seen = events.EventAccumulator(str(directory / "tensorboard"))
        seen.Reload()
        tags = seen.Tags()
        assert len(tags["scalars"]) <= most
        assert {"eval/loss", "train/learning_rate", "halting/all/mean", "halting/mask/std"} <= {*tags["scalars"]}
        assert ("halting/mask/p90" in tags["scalars"]) == (metrics == "all")
        assert len(tags["histograms"]) == (len(lists) if metrics == "all" else 1)
        assert read_metrics(directory / "metrics.jsonl")[0].keys() == {"step", "time", *scalars}


@pytest.mark.parametrize(("overrides", "expected"), [
    (["logger=[wandb,tensorboard]"], ["wandb", "tensorboard"]),
    (["logger.report_to=[wandb,mlflow]"], ["wandb", "mlflow"]),
    (["logger.report_to=wandb"], ["wandb"]), (["logger=none"], []), (["logger.report_to=none"], []),
])  # fmt: skip
def test_trackers_are_named_as_a_list(
    overrides: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adadepth.training.trackers.find_spec", lambda name: name)
    assert configured("act_tiny", *overrides).logger.report_to == expected


@pytest.mark.parametrize(("overrides", "message"), [
    (["logger.report_to=wandbb"], r"report_to=wandbb: must be one of wandb, .*, none \(did you mean 'wandb'\?\)"),
    (["logger=wandb"], r"logger=wandb: the package wandb is missing; install it with pip install wandb"),
    (["logger.artifacts=[model]"], r"logger.artifacts=\['model'\]: only used with logger=wandb, comet or mlflow"),
])  # fmt: skip
def test_a_missing_tracker_is_a_one_line_error(
    overrides: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adadepth.training.trackers.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=message):
        configured("act_tiny", *overrides)


def test_tensorboard_gets_every_kind(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tracker = open_run_tracker(tmp_path, "logger=tensorboard")
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


def test_a_resumed_tensorboard_hides_repeated_steps(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for resume_step, steps in ((None, range(1, 6)), (2, range(3, 5))):
        tracker = open_run_tracker(tmp_path, "logger=tensorboard", resume_step=resume_step)
        for step in steps:
            tracker.log({"train/loss": float(step)}, step)
        tracker.finish()
    seen = events.EventAccumulator(str(tmp_path / "tensorboard"))
    seen.Reload()
    assert [event.step for event in seen.Scalars("train/loss")] == [1, 2, 3, 4]


def test_the_documented_panels_are_the_columns_of_wandb() -> None:
    lines = (ROOT / "docs" / "tracking.md").read_text().splitlines()
    begin = lines.index("| section | chart | metrics |") + 2
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[begin : lines.index("", begin)]]
    documented = [
        (section, title, tuple(name.strip("` ") for name in names.split(","))) for section, title, names in rows
    ]
    assert documented == [tuple(panel) for panel in PANELS]


def test_every_panel_shows_what_is_logged() -> None:
    newer = {"cost/speedup_over_dense", *UNIT_MACS, TIME}  # times are left out there, the other metrics were not logged
    logged = {metric_name(name) for name in list_former_names()} | newer
    assert {metric for panel in PANELS for metric in panel.metrics} <= logged


@pytest.mark.slow
def test_a_workspace_of_wandb_has_these_panels() -> None:
    pytest.importorskip("wandb_workspaces")
    example = runpy.run_path(str(ROOT / "examples" / "wandb_workspace.py"))
    spec = json.loads(example["workspace"]("team", "project")._to_model().model_dump_json(by_alias=True))["spec"]
    *sections, tables = spec["section"]["panelBankConfig"]["sections"]
    charts = [(section["name"], panel["config"]) for section in sections for panel in section["panels"]]
    panels_of_workspace = [(name, chart["chartTitle"], tuple(chart["metrics"])) for name, chart in charts]
    assert panels_of_workspace == [tuple(panel) for panel in PANELS]
    assert {chart["xAxis"] for _, chart in charts} == {"step"}
    assert len(tables["panels"]) == 2
