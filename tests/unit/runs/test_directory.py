"""A run's folder: unique, locked, with whole files only and a true record, and found by name."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from adadepth import tasks
from adadepth.config import OPTIONAL_GROUPS, ExperimentConfig
from adadepth.config.fingerprint import hash_result_settings
from adadepth.errors import CheckpointError
from adadepth.runs import checkpoints
from adadepth.runs.directory import (
    jsonable,
    open_run,
    read_record,
    resolve_run,
    run_directory,
    write_jsonable,
)
from adadepth.runs.lock import lock_directory
from tests.configs.support import configured
from tests.marks_support import keep_one_quick


@pytest.fixture
def config(tmp_path: Path) -> ExperimentConfig:
    return configured("act_tiny", f"output_dir={tmp_path}", "model=albert_act_mini")


def finish_run(config: ExperimentConfig, checkpoint: bool = True) -> Path:
    directory = run_directory(config)
    with open_run(config, directory) as run:
        run.update(final_metrics={"eval/loss": 2.5})
    if checkpoint:
        (directory / "checkpoints").mkdir()
    return directory


def test_the_name_has_time_and_settings_and_is_unique(config: ExperimentConfig, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        directories = list(pool.map(lambda _: run_directory(config), range(32)))
    assert len(set(directories)) == 32
    for directory in directories:
        assert directory.parent == tmp_path / "act_tiny"
        pattern = rf"\d{{4}}-\d\d-\d\d_\d\d-\d\d-\d\d_{hash_result_settings(config)}-[0-9a-f]{{4}}"
        assert re.fullmatch(pattern, directory.name)


def test_a_finished_run_is_recorded(config: ExperimentConfig) -> None:
    directory = run_directory(config)
    with open_run(config, directory) as run:
        assert read_record(directory)["status"] == "running"
        run.update(final_metrics={"eval/loss": 2.5, "eval/x": float("nan")}, best_checkpoint="checkpoints/checkpoint-4")
    record = read_record(directory)
    assert (record["status"], record["error"], record["seed"], record["config_name"]) == (
        "finished",
        None,
        0,
        "act_tiny",
    )
    assert record["final_metrics"] == {"eval/loss": 2.5, "eval/x": "nan"}
    assert record["best_checkpoint"] == "checkpoints/checkpoint-4"
    assert record["wall_time_s"] >= 0
    assert record["versions"]["torch"]
    assert record["hardware"]["cpus"] == os.cpu_count()
    assert yaml.safe_load((directory / "config.yaml").read_text())["model"]["hidden_size"] == 192
    assert not (directory / ".lock").exists()


@pytest.mark.parametrize(("root", "groups"), keep_one_quick(2, [
    ("act_tiny", {"budget"}), ("ponder_parity", {"budget", "halting"}), ("par_tiny", {"budget", "search", "context"}),
    ("adalayers_tiny", {"budget", "features"}),
]))  # fmt: skip
def test_the_file_has_the_settings_of_the_family(root: str, groups: set[str], tmp_path: Path) -> None:
    config = configured(root, f"output_dir={tmp_path}")
    directory = interrupt_run(config)
    written = yaml.safe_load((directory / "config.yaml").read_text())
    assert written.keys() & OPTIONAL_GROUPS.keys() == groups
    assert vars(config).keys() - written.keys() == OPTIONAL_GROUPS.keys() - groups
    assert run_directory(configured(root, f"output_dir={tmp_path}", "resume=latest")) == directory


def test_unfinished_matched_baselines_are_the_latest_run(tmp_path: Path) -> None:
    overrides = ("act_tiny", f"output_dir={tmp_path}", "model=albert_act_mini")
    interrupt_run(configured(*overrides))
    directory = finish_run(configured(*overrides, "name=act_tiny_rival"), checkpoint=False)
    record = {**read_record(directory), "trains_baselines": True}
    write_jsonable(directory / "run.json", {**record, "status": "interrupted"})
    assert resolve_run("latest", configured(*overrides), needs="checkpoints") == directory
    # A newer run of the configuration itself comes first, and baselines that are finished are not resumed.
    newer = tmp_path / "act_tiny/2999-01-01_00-00-00_aaaaaaaa-0000"
    shutil.copytree(interrupt_run(configured(*overrides)), newer)
    assert resolve_run("latest", configured(*overrides), needs="checkpoints") == newer
    shutil.rmtree(newer)
    write_jsonable(directory / "run.json", record)
    assert resolve_run("latest", configured(*overrides), needs="checkpoints").parent == tmp_path / "act_tiny"


def test_a_group_that_is_not_at_its_defaults_is_always_written(config: ExperimentConfig) -> None:
    config.search.tau_end = 0.2
    written = yaml.safe_load((finish_run(config) / "config.yaml").read_text())
    assert written["search"]["tau_end"] == 0.2
    assert "context" not in written


@pytest.mark.slow
def test_a_run_whose_file_has_every_group_is_resumed(config: ExperimentConfig, tmp_path: Path) -> None:
    """Check a run with a file as older versions wrote it."""
    directory = interrupt_run(config)
    (directory / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.structured(config)))
    assert "search" in yaml.safe_load((directory / "config.yaml").read_text())
    again = ("act_tiny", f"output_dir={tmp_path}", "model=albert_act_mini", "resume=latest")
    assert run_directory(configured(*again)) == directory


def test_the_record_has_the_settings_that_identify_the_run(tmp_path: Path) -> None:
    settings = read_record(
        finish_run(configured("act_tiny", "budget=none", f"output_dir={tmp_path}", "model.recall=true"))
    )["settings"]
    assert settings["model"].items() >= {"name": "albert_act", "recall": True, "hidden_size": 128}.items()
    assert "act_epsilon" not in settings["model"], "at its default"
    assert settings.keys() == {"model"}


@pytest.mark.parametrize(("error", "status"), [
    (RuntimeError("diverged"), "failed"), (KeyboardInterrupt(), "interrupted"), (SystemExit(143), "interrupted"),
])  # fmt: skip
def test_the_record_of_an_unfinished_run_says_so(config: ExperimentConfig, error: BaseException, status: str) -> None:
    directory = run_directory(config)
    with pytest.raises(type(error)), open_run(config, directory):
        raise error
    record = read_record(directory)
    assert (record["status"], record["error"]) == (status, f"{type(error).__name__}: {error}")
    assert not (directory / ".lock").exists()


def test_a_status_set_by_the_task_is_kept(config: ExperimentConfig) -> None:
    directory = run_directory(config)
    with open_run(config, directory) as run:
        run.update(status="interrupted")
    assert read_record(directory)["status"] == "interrupted"


def test_other_processes_write_nothing(config: ExperimentConfig, tmp_path: Path) -> None:
    with open_run(config, tmp_path, is_main=False) as run:
        run.update(final_metrics={})
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_use_is_refused(config: ExperimentConfig) -> None:
    directory = finish_run(config)
    with lock_directory(directory):
        with pytest.raises(CheckpointError, match=f"in use by process {os.getpid()} on"), open_run(config, directory):
            pytest.fail("the lock was ignored")
        assert read_record(directory)["status"] == "finished"
    with open_run(config, directory):
        pass


def test_latest_is_the_newest_run_with_the_needed_files(config: ExperimentConfig, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"latest: no run with checkpoints found in .*act_tiny"):
        resolve_run("latest", config, needs="checkpoints")
    names = ["2026-01-01_00-00-00_aa-1", "2026-01-02_00-00-00_aa-1", "2026-01-03_00-00-00_aa-1"]
    for name in names:
        write_json_record(tmp_path / "act_tiny" / name)
    (tmp_path / "act_tiny" / names[1] / "checkpoints").mkdir()
    (tmp_path / "act_tiny" / "2027-not-a-run").mkdir()
    assert resolve_run("latest", config).name == names[2]
    assert resolve_run("latest", config, needs="checkpoints").name == names[1]


def write_json_record(directory: Path) -> None:
    directory.mkdir(parents=True)
    write_jsonable(directory / "run.json", {"status": "finished"})


def test_a_wrong_run_names_the_candidates(config: ExperimentConfig) -> None:
    directory = finish_run(config, checkpoint=False)
    with pytest.raises(CheckpointError, match="not a run directory") as caught:
        resolve_run(f"{directory}x", config)
    assert f"did you mean '{directory}'?" in str(caught.value)
    assert resolve_run(str(directory), config) == directory
    with pytest.raises(CheckpointError, match="this run has no checkpoints"):
        resolve_run(str(directory), config, needs="checkpoints")


def test_a_run_without_a_model_names_its_newest_checkpoint(
    config: ExperimentConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = interrupt_run(config)
    with pytest.raises(CheckpointError, match=r"this run has no model$"):
        resolve_run(str(directory), config, needs="model")
    names = [directory / "checkpoints" / f"checkpoint-{step}" for step in (16, 32)]
    monkeypatch.setattr(checkpoints, "list_complete_checkpoints", lambda folder: names)
    expected = f"this run has no model; its newest checkpoint is checkpoint={names[1]}"
    with pytest.raises(CheckpointError, match=f"{re.escape(expected)}$"):
        resolve_run(str(directory), config, needs="model")


def interrupt_run(config: ExperimentConfig) -> Path:
    directory = finish_run(config)
    write_jsonable(directory / "run.json", read_record(directory) | {"status": "interrupted"})
    return directory


def test_resume_continues_the_same_folder(config: ExperimentConfig, tmp_path: Path) -> None:
    directory = interrupt_run(config)
    first = read_record(directory)
    again = configured("act_tiny", f"output_dir={tmp_path}", "resume=latest", "trainer.logging_steps=7",
                       "trainer.save_steps=50", "trainer.eval_steps=50", "runtime.num_workers=2")  # fmt: skip
    assert run_directory(again) == directory
    with open_run(again, directory):
        record = read_record(directory)
    assert (record["status"], record["started"]) == ("running", first["started"])
    assert record["resumed_from"] == str(directory)
    assert read_record(directory)["wall_time_s"] >= first["wall_time_s"]


def test_resume_has_the_settings_of_the_run(tmp_path: Path) -> None:
    """Check also a command whose --config-name, and so everything else, is that of another run."""
    overrides = (
        "model=albert_act_mini",
        "model.act_epsilon=0.05",
        "trainer.max_steps=40",
        "runtime.threads=1",
        "seed=7",
    )
    ran = configured("act_tiny", f"output_dir={tmp_path}", "dataset.sequence_length=16", *overrides)
    directory = interrupt_run(ran)
    for root, value in (("act_tiny", "latest"), ("ponder_tiny", str(directory))):
        config = configured(
            root, f"output_dir={tmp_path}", f"resume={value}", "trainer.logging_steps=3", "logger=wandb"
        )
        assert config.model == ran.model
        assert config.dataset == ran.dataset
        assert config.trainer == dataclasses.replace(ran.trainer, logging_steps=3)
        assert (config.name, config.task, config.seed, config.runtime) == ("act_tiny", ran.task, 7, ran.runtime)
        assert (config.resume, config.logger.report_to) == (str(directory), ["wandb"])
        assert run_directory(config) == directory


def test_resume_with_the_same_command_is_no_change(tmp_path: Path) -> None:
    overrides = ("act_tiny", f"output_dir={tmp_path}", "debug=default", "model=albert_act_mini", "trainer.max_steps=6")
    directory = interrupt_run(configured(*overrides))
    assert configured(*overrides, "resume=latest").trainer.max_steps == 6
    assert run_directory(configured(*overrides, "resume=latest")) == directory
    assert configured("act_tiny", f"output_dir={tmp_path}", "resume=latest").trainer.max_steps == 6, "not shrunk again"


@pytest.mark.slow
def test_resume_refuses_settings_that_change_past_results(config: ExperimentConfig, tmp_path: Path) -> None:
    directory = interrupt_run(config)
    refused = f"resume={directory}: these settings of the run differ: "

    def resume(*overrides: str) -> Path:
        return run_directory(configured("act_tiny", f"output_dir={tmp_path}", "resume=latest", *overrides))

    with pytest.raises(CheckpointError, match=re.escape(f"{refused}seed was 0 and now is 5") + "$"):
        resume("seed=5")
    spread = (
        "trainer.max_steps was 1000 and now is 900 (trainer.schedule=linear depends on the number of optimiser steps)"
    )
    with pytest.raises(
        CheckpointError, match=re.escape(f"{refused}{spread}; trainer.learning_rate was 0.002 and now is 0.1")
    ):
        resume("trainer.max_steps=900", "trainer.learning_rate=0.1")
    with pytest.raises(CheckpointError, match="small was False and now is True; a resumed run cannot change it"):
        resume("debug=default")
    with pytest.raises(CheckpointError, match=r"trainer.max_steps was 1000 and now is 500"):
        resume("debug=overfit")


def test_a_run_with_a_constant_rate_can_be_extended(tmp_path: Path) -> None:
    overrides = (
        "act_tiny",
        "budget=none",
        f"output_dir={tmp_path}",
        "trainer.schedule=constant",
        "trainer.warmup_steps=0",
    )
    directory = finish_run(configured(*overrides))
    again = configured("act_tiny", f"output_dir={tmp_path}", "resume=latest", "trainer.max_steps=900")
    assert (run_directory(again), again.trainer.max_steps) == (directory, 900)
    with pytest.raises(CheckpointError, match=rf"to train it further: resume={directory} trainer.max_steps=2000; to "):
        configured("act_tiny", f"output_dir={tmp_path}", "resume=latest")


def test_a_finished_run_has_nothing_to_continue(config: ExperimentConfig, tmp_path: Path) -> None:
    directory = finish_run(config)
    again = ("act_tiny", f"output_dir={tmp_path}", "resume=latest")
    refused, weights = f"resume={directory}: this run is finished and cannot be resumed", f"{directory}/model"
    with pytest.raises(CheckpointError, match=re.escape(refused)) as raised:
        configured(*again)
    assert ", because trainer.schedule=linear depends on the number of optimiser steps; to train" in str(raised.value)
    assert f"model.pretrained={weights}; its report is missing" in str(raised.value)
    write_jsonable(directory / "run.json", read_record(directory) | {"stopped_because": "time budget spent"})
    assert run_directory(configured(*again)) == directory


def test_an_evaluation_is_in_its_run_and_not_the_latest_run(tmp_path: Path) -> None:
    root = ("act_tiny", f"output_dir={tmp_path}")
    directory = interrupt_run(configured(*root))
    (directory / "model").mkdir()
    for checkpoint in ("latest", str(directory), f"{directory}/model"):
        evaluation = finish_run(configured(*root, "mode=evaluate", f"checkpoint={checkpoint}"))
        assert evaluation.parent == directory / "evaluations"
    again = configured(*root, "resume=latest")
    assert (run_directory(again), resolve_run("latest", again, needs="model")) == (directory, directory)
    assert resolve_run("latest", again).parent == directory / "evaluations", "the report that was written last"
    with pytest.raises(CheckpointError, match="the run has mode=evaluate; only a training run can be resumed"):
        configured(*root, f"resume={evaluation}")


@pytest.mark.slow
def test_an_evaluation_of_an_older_version_beside_its_run_is_not_the_latest(tmp_path: Path) -> None:
    root = ("act_tiny", f"output_dir={tmp_path}")
    directory = interrupt_run(configured(*root))
    beside = directory.with_name("2999-01-01_00-00-00_aa-1")
    write_json_record(beside)
    write_jsonable(beside / "run.json", {"status": "finished", "mode": "evaluate"})
    (beside / "checkpoints").mkdir()
    assert run_directory(configured(*root, "resume=latest")) == directory


@pytest.mark.slow
def test_an_evaluation_of_somebody_elses_run_leaves_it_alone(tmp_path: Path) -> None:
    directory = interrupt_run(configured("act_tiny", f"output_dir={tmp_path}/theirs"))
    (directory / "model").mkdir()
    overrides = ("act_tiny", f"output_dir={tmp_path}/mine", "mode=evaluate", f"checkpoint={directory}")
    assert run_directory(configured(*overrides)).parent == tmp_path / "mine" / "act_tiny"


def test_a_run_of_a_version_with_one_logger_resumes(tmp_path: Path) -> None:
    directory = interrupt_run(configured("act_tiny", f"output_dir={tmp_path}"))
    stored = yaml.safe_load((directory / "config.yaml").read_text())
    stored["logger"] = {"name": "wandb", "project": "mine", "mode": "offline"}
    (directory / "config.yaml").write_text(yaml.safe_dump(stored))
    config = configured("act_tiny", f"output_dir={tmp_path}", "resume=latest")
    assert (config.logger.report_to, config.logger.project) == (["wandb"], "mine")


def test_a_run_with_removed_settings_is_an_error(tmp_path: Path) -> None:
    directory = interrupt_run(configured("act_tiny", f"output_dir={tmp_path}"))
    with (directory / "config.yaml").open("a") as file:
        file.write("gone: 1\n")
    with pytest.raises(CheckpointError, match=r"its config.yaml was written by another version: .*gone"):
        configured("act_tiny", f"output_dir={tmp_path}", "resume=latest")


def test_an_impossible_output_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"output_dir=.*file: cannot make"):
        run_directory(configured("act_tiny", f"output_dir={tmp_path / 'file'}"))


def test_json_is_strict() -> None:
    value = {"a": float("inf"), 1: [float("nan"), (-float("inf"), 2)], "path": Path("x"), "n": None}
    assert json.loads(json.dumps(jsonable(value), allow_nan=False)) == {
        "a": "inf", "1": ["nan", ["-inf", 2]], "path": "x", "n": None,
    }  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), keep_one_quick(3, [
    ("run.json", b"", "run.json: is damaged and holds no record of a run"),
    ("run.json", b'{"status": "inter', "run.json: is damaged and holds no record of a run"),
    ("run.json", b"[1, 2]", "run.json: is damaged and holds no record of a run"),
    ("run.json", b"\xff\xfe\x00", "run.json: is damaged and holds no record of a run"),
    ("config.yaml", None, "config.yaml: is missing"),
    ("config.yaml", b"\x00\xff\x01", "config.yaml: is damaged and holds no settings of a run"),
    ("config.yaml", b"", "config.yaml: is damaged and holds no settings of a run"),
    ("config.yaml", b"- 1\n", "config.yaml: is damaged and holds no settings of a run"),
    ("config.yaml", b"model: 3\n", "config.yaml: is damaged and holds no settings of a run"),
]))  # fmt: skip
def test_a_damaged_run_is_a_one_line_error(
    config: ExperimentConfig, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    directory = interrupt_run(config)
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_bytes(content)
    before = sorted(path.name for path in directory.iterdir())
    for value in ("latest", str(directory)):
        with pytest.raises(CheckpointError) as caught:
            configured("act_tiny", f"output_dir={tmp_path}", f"resume={value}")
        assert str(caught.value).startswith(f"{directory}/{message}")
        assert "\n" not in str(caught.value)
    assert sorted(path.name for path in directory.iterdir()) == before


def test_a_folder_with_garbage_gets_no_report(config: ExperimentConfig) -> None:
    directory = finish_run(config)
    for path in filter(Path.is_file, directory.iterdir()):
        path.write_bytes(b"garbage")
    before = sorted(directory.iterdir())
    with pytest.raises(CheckpointError) as caught:
        tasks.run(configured("act_tiny", "mode=report", f"run={directory}"))
    assert str(caught.value).startswith(f"{directory}/run.json: is damaged and holds no record of a run (not JSON: ")
    assert sorted(directory.iterdir()) == before


def test_a_damaged_run_before_the_latest_does_not_matter(config: ExperimentConfig, tmp_path: Path) -> None:
    for name in ("2026-01-01_00-00-00_aa-1", "2026-01-02_00-00-00_aa-1"):
        write_json_record(tmp_path / "act_tiny" / name)
        (tmp_path / "act_tiny" / name / "checkpoints").mkdir()
    (tmp_path / "act_tiny" / "2026-01-01_00-00-00_aa-1" / "run.json").write_text("")
    assert resolve_run("latest", config, needs="checkpoints").name == "2026-01-02_00-00-00_aa-1"


def test_partial_files_of_a_kill_are_removed_at_the_next_start(config: ExperimentConfig) -> None:
    directory = finish_run(config)
    figures = directory / "figures" / "gates"
    figures.mkdir(parents=True)
    partial_files = [
        directory / ".run.json.4711.tmp", directory / ".metrics.jsonl.4711.tmp",
        directory / "figures" / ".depth.png.4711.tmp", figures / ".step_000004.png.4711.tmp",
    ]  # fmt: skip
    user_files = [directory / ".notes", figures / "step_000004.png", figures / ".gitignore"]
    for path in (*partial_files, *user_files):
        path.write_bytes(b"half")
    with open_run(config, directory):
        assert not any(path.exists() for path in partial_files)
    assert all(path.exists() for path in user_files)


def test_the_record_stays_when_a_run_is_opened_again(config: ExperimentConfig) -> None:
    """Check that a kill at any time keeps the record."""
    directory = run_directory(config)
    with open_run(config, directory) as run:
        run.update(operation_costs=[1.0, 2.0], final_metrics={"eval/loss": 1.0})
    with open_run(config, directory):
        record = read_record(directory)
    assert (record["status"], record["operation_costs"], record["final_metrics"]) == ("running", [1.0, 2.0], None)
