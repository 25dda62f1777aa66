"""Trainings that their launcher restarts: torchrun after a killed process, Slurm when a job's time is over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from adadepth.runs.checkpoints import list_complete_checkpoints
from adadepth.runs.directory import read_record
from tests.runs_support import read_logged
from tests.training.processes_support import ROOT
from tests.training.whole_runs import launch

SCRIPT = ROOT / "examples" / "slurm" / "train.sh"
LONG_ENOUGH = ("trainer.max_steps=100", "trainer.save_steps=4", "trainer.logging_steps=1")
LONGER = ("trainer.max_steps=200", "trainer.save_steps=1000")  # without checkpoints a step is quicker
COMMON = (
    "debug=default", "trainer.disable_tqdm=true", "trainer.eval_strategy=no", "trainer.eval_on_start=false",
    "trainer.load_best_model_at_end=false", "trainer.save_strategy=steps", "trainer.save_total_limit=2", *LONG_ENOUGH,
)  # fmt: skip
FAMILIES = {
    "act": ("act_tiny", "dataset.max_documents=12", "trainer.per_device_train_batch_size=2"),
    "ponder": ("ponder_tiny", "trainer.per_device_train_batch_size=2"),
    "trm": (
        "trm_tiny",
        "trainer.max_steps=40",
        "dataset.train_examples=64",
        "dataset.max_evaluation_examples=16",
        "trainer.ema_decay=0.5",
    ),
    "par": ("par_network", "model.architecture=sf-s", "dataset.evaluation_length=null"),
    "looped": ("loop_tiny", "trainer.max_steps=60"),
}
SHARDED = {"whole": "trainer.fsdp=false", "sharded": "trainer.fsdp=true"}
# test_many_processes compares how other families resume from sharded checkpoints.
KILLED = [*((family, "whole") for family in FAMILIES), ("act", "sharded"), ("looped", "sharded")]
LIMIT_S = 400.0


def build_command(family: str, folder: Path) -> list[str]:
    root, *overrides = FAMILIES[family]
    return ["--config-name", root, *COMMON, *overrides, f"output_dir={folder}"]


def wait_while_alive(is_true: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Wait for a condition while a process lives."""
    start = time.monotonic()
    while not is_true():
        assert process is None or process.poll() is None, "it ended before"
        assert time.monotonic() - start < LIMIT_S
        time.sleep(0.1)


def find_run(folder: Path) -> Path:
    (run,) = folder.glob("*/*")
    return run


def has_checkpoint(folder: Path) -> bool:
    return any(list_complete_checkpoints(run) for run in folder.glob("*/*/checkpoints"))


def assert_same_bits(run: Path, expected: Path) -> None:
    weights, expected_weights = (load_file(folder / "model" / "model.safetensors") for folder in (run, expected))
    assert all(weights[name].equal(weight) for name, weight in expected_weights.items())
    for name in ("train/loss", "train/grad_norm"):
        assert read_logged(run, name) == read_logged(expected, name)
    assert read_record(run)["status"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize(("family", "sharding"), KILLED)
def test_a_run_with_a_killed_process_resumes_exactly(family: str, sharding: str, tmp_path: Path) -> None:
    """Check that torchrun restarts all processes, which resume from the newest complete checkpoint by themselves."""
    launch([*build_command(family, tmp_path / "whole"), SHARDED[sharding]], 2)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--max_restarts=3", "--standalone"]
    process = subprocess.Popen(
        [*torchrun, "adadepth/run.py", *build_command(family, tmp_path / "killed"), SHARDED[sharding]],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        wait_while_alive(lambda: has_checkpoint(tmp_path / "killed"), process)
        (second,) = (child for child in psutil.Process(process.pid).children() if child.environ().get("RANK") == "1")
        second.kill()
        printed, _ = process.communicate(timeout=LIMIT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, printed[-3000:]
    run = find_run(tmp_path / "killed")
    assert f"restarted by the launcher; resuming {run}" in printed
    assert_same_bits(run, find_run(tmp_path / "whole"))


def write_program(folder: Path, name: str, text: str) -> None:
    """Write a replacement for a Slurm command that does what the test needs."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", SHARDED)
def test_slurm_s_warning_saves_requeues_and_resumes_the_job(sharding: str, tmp_path: Path) -> None:
    """Run the example's script, with Slurm's commands replaced by ones that record their arguments."""
    overrides = (*LONGER, SHARDED[sharding])
    launch([*build_command("act", tmp_path / "whole"), *overrides], 2)
    commands = tmp_path / "bin"
    write_program(commands, "srun", 'exec "$@"')
    write_program(commands, "scontrol", f'echo "$@" >> {tmp_path / "asked"}')
    write_program(commands, "hostname", "echo 127.0.0.1")
    number = str(77 + list(SHARDED).index(sharding))
    job = {"SLURM_JOB_ID": number, "SLURM_NNODES": "1", "SLURM_GPUS_ON_NODE": "2", "OMP_NUM_THREADS": "1"}
    path = f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    script_command = ["bash", str(SCRIPT), *build_command("act", tmp_path / "job"), *overrides]

    def start(**more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(script_command, cwd=ROOT, env=os.environ | job | more | {"PATH": path}, text=True)

    first = start()
    wait_while_alive(
        lambda: any("train/loss" in log.read_text() for log in (tmp_path / "job").rglob("metrics.jsonl")), first
    )
    first.send_signal(signal.SIGUSR1)
    assert first.wait(LIMIT_S) == 0
    assert (tmp_path / "asked").read_text() == f"requeue {number}\n"
    run = find_run(tmp_path / "job")
    assert read_record(run)["status"] == "interrupted"
    assert start(SLURM_RESTART_COUNT="1").wait(LIMIT_S) == 0
    assert_same_bits(find_run(tmp_path / "job"), find_run(tmp_path / "whole"))


@pytest.mark.slow
def test_submitit_s_warning_saves_and_the_next_start_resumes(tmp_path: Path) -> None:
    """Warn a sweep's job under submitit's local executor by SIGUSR2, as one of Slurm is warned."""
    launch([*build_command("act", tmp_path / "whole"), *LONGER])
    sweep = [f"hydra.sweep.dir={tmp_path / 'job' / 'sweep'}", "hydra/launcher=submitit_local"]
    process = subprocess.Popen(
        [sys.executable, "adadepth/run.py", "-m", *build_command("act", tmp_path / "job"), *LONGER, "seed=0", *sweep],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    folder = tmp_path / "job" / "act_tiny"
    wait_while_alive(lambda: any("train/loss" in log.read_text() for log in folder.rglob("metrics.jsonl")), process)
    lock = next(folder.glob("*/.lock")).read_text()
    os.kill(int(lock.partition('"pid": ')[2].partition(",")[0]), signal.SIGUSR2)
    assert process.wait(LIMIT_S) == 0
    (run,) = folder.iterdir()
    assert_same_bits(run, find_run(tmp_path / "whole"))
