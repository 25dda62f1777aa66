"""The entry point: accepted commands, return values, exit statuses, and starts from any directory."""

from __future__ import annotations

import errno
import io
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import adadepth.tasks
from adadepth.config import ExperimentConfig, Mode
from adadepth.errors import DataError
from adadepth.run import main
from adadepth.runs.commands import build_checkpoint_command, build_training_command, format_command
from hydra_plugins import adadepth_sweepers
from tests.cli.support import Command, Jobs

SCRIPT = Path(__file__).resolve().parents[2] / "adadepth" / "run.py"
TINY = ["--config-name", "act_tiny"]


def execute_path(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "HYDRA_FULL_ERROR")}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=600
    )


def test_help_from_another_directory_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv = [{str(SCRIPT)!r}, '--help']\n"
        "try:\n    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "assert not {'torch', 'transformers', 'datasets', 'wandb'} & set(sys.modules)\n"
    )
    path = [str(SCRIPT.parent)]  # what Python itself puts first when a script is run by its path
    command = [sys.executable, "-c", f"import sys; sys.path[0:1] = {path!r}\n{code}"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    for text in ("--config-name act_tiny", "albert_act_tiny, ", "optuna_penalty", "  ponder_tiny   "):
        assert text in result.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # the process of the test above is the quick one
def test_a_mistake_from_another_directory_is_a_one_line_error(tmp_path: Path) -> None:
    result = execute_path(*TINY, "model=albert_act_mimi", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("error: model=albert_act_mimi: unknown option (did you mean 'albert_act_mini'?)")
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_python_without_docstrings_is_refused_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-OO", str(SCRIPT), *TINY]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: python -OO: removes docstrings, which transformers needs; leave out -OO\n"


def test_characters_that_a_stream_cannot_show_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setattr("sys.argv", ["adadepth", "--help"])
    monkeypatch.setattr("adadepth.run.get_help_text", lambda words: "sch\xf6n\n")
    main()
    stream.flush()
    assert stream.buffer.getvalue() == b"sch\\xf6n\n"  # type: ignore[attr-defined]


def test_cfg_prints_the_composed_settings(command: Command, jobs: Jobs) -> None:
    result = command(*TINY, "seed=7", "--cfg", "job")
    assert result.status == 0
    assert "seed: 7\n" in result.out
    assert jobs == []


def test_hydra_completes_in_the_shell(command: Command) -> None:
    result = command("--shell-completion", "install=bash")
    assert result.status == 0
    assert "complete" in result.out


def test_a_run_gets_typed_settings_and_hydra_writes_nothing(command: Command, jobs: Jobs, tmp_path: Path) -> None:
    command(*TINY, "model=albert_act_mini", "seed=3").checked()
    assert [(job.name, job.seed, job.model.hidden_size) for job in jobs] == [("act_tiny", 3, 192)]  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []


LESS = "use a smaller trainer.per_device_train_batch_size with more trainer.gradient_accumulation_steps"


@pytest.mark.parametrize(("kind", "message", "advice"), [
    ("torch", "CUDA out of memory. Tried to allocate 20.00 GiB\n(more)", LESS),
    (RuntimeError, "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried", LESS),
    (MemoryError, "out of memory", LESS),
])  # fmt: skip
def test_out_of_memory_is_a_one_line_error_with_advice(
    kind: Any, message: str, advice: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_out_of_memory(config: ExperimentConfig) -> None:
        raise (torch.OutOfMemoryError if kind == "torch" else kind)(message)

    import torch

    monkeypatch.setattr(adadepth.tasks, "run", raise_out_of_memory)
    result = command(*TINY)
    assert result.status == 2
    assert result.err.startswith(f"error: {message.splitlines()[0]}; {advice}")
    assert result.err.count("\n") == 1


def test_a_multirun_runs_every_combination_in_this_process(command: Command, jobs: Jobs, tmp_path: Path) -> None:
    result = command(
        *TINY, "budget=none", "model.act_penalty=1e-3,5e-4", "-m", "seed=0,1"
    )  # flags and overrides in any order
    assert result.status == 0, result.err
    settings = [(job.model.act_penalty, job.seed) for job in jobs]  # type: ignore[attr-defined]
    assert settings == [(1e-3, 0), (1e-3, 1), (5e-4, 0), (5e-4, 1)]
    assert "model.act_penalty=0.0005 seed=1 -> 1.0000" in result.out  # the metric of each job
    assert list(tmp_path.iterdir()) == []


def test_letters_beyond_ascii_need_no_quotes(command: Command, jobs: Jobs) -> None:
    """Check texts, elements of lists and values of a sweep, which Hydra reads in quotes only."""
    lists = ["logger.tags=[ü, a,ö ö]", "logger.group='é'", 'output_dir="a/ü(1)"']
    command(*TINY, *lists, "-m", "name=ü,a = ñ").checked()
    assert [job.name for job in jobs] == ["ü", "a = ñ"]
    assert (jobs[0].logger.tags, jobs[0].logger.group, jobs[0].output_dir) == (["ü", "a", "ö ö"], "é", "a/ü(1)")


def test_a_run_names_its_configuration_in_any_folder(command: Command, jobs: Jobs, tmp_path: Path) -> None:
    (folder := tmp_path / "a (ü)").mkdir()
    (folder / "run.json").write_text('{"config_name": "act_small"}')
    command("mode=report", 'run="a (ü)"').checked()
    assert [(job.name, job.run) for job in jobs] == [("act_small", "a (ü)")]


@pytest.mark.slow
def test_a_published_run_needs_one_override(command: Command, jobs: Jobs) -> None:
    command(*TINY, "-m", "preset=none,paper", "seed=3").checked()
    assert [(job.name, job.seed) for job in jobs] == [("act_tiny", 3), ("act_tiny", 3)]
    assert [job.dataset.name == "wikipedia_bookcorpus" for job in jobs] == [False, True]


@pytest.mark.slow
def test_published_fine_tuning_is_a_sweep_without_a_flag(command: Command, jobs: Jobs) -> None:
    command("--config-name", "act_cola", "preset=paper")
    grid = {(job.trainer.learning_rate, job.trainer.per_device_train_batch_size) for job in jobs}
    assert grid == {(rate, size) for rate in (5e-5, 3e-5, 2e-5) for size in (16, 32)}


def test_a_sweep_file_needs_no_flag(command: Command, jobs: Jobs) -> None:
    command(*TINY, "sweep=penalty", "seed=0").checked()
    assert [job.model.act_penalty for job in jobs] == [0.0, 2.5e-4, 5e-4, 1e-3]  # type: ignore[attr-defined]
    assert {job.seed for job in jobs} == {0}


def build_failing_task(error: BaseException) -> Callable[[ExperimentConfig], float]:
    def task(config: ExperimentConfig) -> float:
        if config.seed == 1:
            raise error
        return 0.0

    return task


@pytest.mark.parametrize(("error", "status", "message"), [
    (DataError("corpus.txt: no such file"), 2, "error: corpus.txt: no such file\n"),
    (OSError(errno.ENOSPC, "No space left on device"), 2, "error: no space left on device"),
    (RuntimeError("writer: No space left on device (os error 28)"), 2, "error: no space left on device"),
    (KeyboardInterrupt(), 130, "error: interrupted\n"),
])  # fmt: skip
def test_a_failing_task_has_an_exit_status_and_a_message(
    error: BaseException, status: int, message: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adadepth.tasks, "run", build_failing_task(error), raising=False)
    result = command(*TINY, "seed=1")
    assert result.status == status
    assert result.err.endswith(message) or message in result.err.splitlines()[-1]


@pytest.mark.parametrize(
    "error", [ValueError("a defect"), KeyError("name"), ZeroDivisionError(), BaseException("panic")]
)
def test_an_unexpected_failure_is_a_line_and_a_file_with_its_traceback(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException
) -> None:
    monkeypatch.setattr(adadepth.tasks, "run", build_failing_task(error), raising=False)
    result = command(*TINY, "seed=1", f"output_dir={tmp_path}")
    (file,) = (tmp_path / "errors").iterdir()
    kind = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    message = f"error: training act_tiny failed unexpectedly ({kind}); its traceback is in {file}"
    assert (result.status, result.err.splitlines()[-1]) == (1, message)
    text = file.read_text()
    assert text.startswith("Traceback (most recent call last):")
    assert text.splitlines()[-1].startswith(kind[:8])


def test_a_requested_traceback_is_printed(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(adadepth.tasks, "run", build_failing_task(KeyError("name")), raising=False)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    result = command(*TINY, "seed=1", f"output_dir={tmp_path}")
    assert result.status == 1
    assert "KeyError: 'name'\n" in result.err
    assert result.err.splitlines()[-1].startswith("error: training act_tiny")


def test_a_defect_of_a_sweep_has_a_file_with_its_traceback(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Check a failure outside of any job, whose bare `error: 'name'` would be useless."""
    monkeypatch.setattr(adadepth_sweepers.GridSweeper, "grid", lambda self, arguments: {}["name"])
    monkeypatch.chdir(tmp_path)
    result = command(*TINY, "-m", "seed=0,1")
    (file,) = (tmp_path / "outputs" / "errors").iterdir()
    message = f"error: running the sweep failed unexpectedly (KeyError: 'name'); its traceback is in {file}"
    assert (result.status, result.err.splitlines()[-1]) == (1, message.replace(f"{tmp_path}/", ""))
    assert "in <lambda>" in file.read_text()


@pytest.mark.parametrize(("error", "message"), [
    (OSError(errno.EMFILE, "Too many open files", "/x/run.json"), "too many open files; raise the limit"),
    (RuntimeError("unable to open shared memory object: Too many open files (24)"), "too many open files; raise the"),
    (PermissionError(errno.EACCES, "Permission denied", "/x/run.json"), "/x/run.json: Permission denied"),
    (FileNotFoundError(errno.ENOENT, "No such file or directory", b"/x/text"), "/x/text: No such file or directory"),
])  # fmt: skip
def test_errors_of_the_system_are_one_line(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, message: str
) -> None:
    monkeypatch.setattr(adadepth.tasks, "run", build_failing_task(error), raising=False)
    result = command(*TINY, "seed=1", f"output_dir={tmp_path}")
    assert (result.status, len(result.err.splitlines())) == (2, 1)
    assert result.err.startswith(f"error: {message}")
    assert list(tmp_path.iterdir()) == []


def test_a_failing_job_of_a_grid_does_not_stop_the_others(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    def task(config: ExperimentConfig) -> float:
        done.append(config.seed)
        return build_failing_task(DataError("no such corpus"))(config)

    monkeypatch.setattr(adadepth.tasks, "run", task, raising=False)
    result = command(*TINY, "-m", "seed=0,1,2")
    assert (done, result.status) == ([0, 1, 2], 2)
    assert "seed=1" in result.err
    assert result.err.endswith("error: no such corpus\n")


def test_stored_commands_have_no_value_of_the_environment(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Check stored commands, because Hydra resolves its own record of overrides whenever one of them is read."""
    commands: list[str] = []

    def task(config: ExperimentConfig) -> float:
        arguments = [
            build_checkpoint_command(config, str(tmp_path), Mode.evaluate),
            build_training_command("seeds=3") or [],
        ]
        commands.extend([format_command(), *map(shlex.join, arguments)])
        return 1.0

    monkeypatch.setenv("TOKEN", str(tmp_path / "sekretvalue"))
    monkeypatch.setattr(adadepth.tasks, "run", task, raising=False)
    result = command(*TINY, "output_dir=${oc.env:TOKEN}")
    assert len(commands) == 3, result.err
    assert all("TOKEN" in text and "sekretvalue" not in text for text in commands)
