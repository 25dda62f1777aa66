"""Trainings whose launcher starts them again: torchrun when a process was killed, Slurm when a job's time is over."""

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
from tests.runs_support import logged
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
# How other families go on from sharded checkpoints, test_many_processes compares.
KILLED = [*((family, "whole") for family in FAMILIES), ("act", "sharded"), ("looped", "sharded")]
LIMIT_S = 400.0


def command(family: str, folder: Path) -> list[str]:
    root, *own = FAMILIES[family]
    return ["--config-name", root, *COMMON, *own, f"output_dir={folder}"]


def until(found: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Wait for something, as long as the process that does it lives."""
    begun = time.monotonic()
    while not found():
        assert process is None or process.poll() is None, "it ended before"
        assert time.monotonic() - begun < LIMIT_S
        time.sleep(0.1)


def only_run(folder: Path) -> Path:
    (run,) = folder.glob("*/*")
    return run


def has_checkpoint(folder: Path) -> bool:
    return any(list_complete_checkpoints(run) for run in folder.glob("*/*/checkpoints"))


def assert_same_bits(run: Path, expected: Path) -> None:
    left, right = (load_file(each / "model" / "model.safetensors") for each in (run, expected))
    assert all(left[name].equal(weight) for name, weight in right.items())
    for name in ("train/loss", "train/grad_norm"):
        assert logged(run, name) == logged(expected, name)
    assert read_record(run)["status"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize(("family", "sharding"), KILLED)
def test_a_killed_process_brings_the_run_back_exactly(family: str, sharding: str, tmp_path: Path) -> None:
    """torchrun starts all processes anew, and they go on from the newest whole checkpoint by themselves."""
    launch([*command(family, tmp_path / "whole"), SHARDED[sharding]], 2)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--max_restarts=3", "--standalone"]
    started = subprocess.Popen(
        [*torchrun, "adadepth/run.py", *command(family, tmp_path / "killed"), SHARDED[sharding]],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        until(lambda: has_checkpoint(tmp_path / "killed"), started)
        (second,) = (each for each in psutil.Process(started.pid).children() if each.environ().get("RANK") == "1")
        second.kill()
        said, _ = started.communicate(timeout=LIMIT_S)
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode == 0, said[-3000:]
    run = only_run(tmp_path / "killed")
    assert f"restarted by the launcher; resuming {run}" in said
    assert_same_bits(run, only_run(tmp_path / "whole"))


def program(folder: Path, name: str, text: str) -> None:
    """A command of Slurm's that does what the test needs of it."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", SHARDED)
def test_slurms_warning_saves_and_queues_the_job_again_and_it_goes_on(sharding: str, tmp_path: Path) -> None:
    """The example's script, with Slurm's commands replaced by ones that write down what they are asked."""
    further = (*LONGER, SHARDED[sharding])
    launch([*command("act", tmp_path / "whole"), *further], 2)
    commands = tmp_path / "bin"
    program(commands, "srun", 'exec "$@"')
    program(commands, "scontrol", f'echo "$@" >> {tmp_path / "asked"}')
    program(commands, "hostname", "echo 127.0.0.1")
    number = str(77 + list(SHARDED).index(sharding))
    job = {"SLURM_JOB_ID": number, "SLURM_NNODES": "1", "SLURM_GPUS_ON_NODE": "2", "OMP_NUM_THREADS": "1"}
    path = f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    given = ["bash", str(SCRIPT), *command("act", tmp_path / "job"), *further]

    def start(**more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(given, cwd=ROOT, env=os.environ | job | more | {"PATH": path}, text=True)

    first = start()
    until(lambda: any("train/loss" in log.read_text() for log in (tmp_path / "job").rglob("metrics.jsonl")), first)
    first.send_signal(signal.SIGUSR1)
    assert first.wait(LIMIT_S) == 0
    assert (tmp_path / "asked").read_text() == f"requeue {number}\n"
    run = only_run(tmp_path / "job")
    assert read_record(run)["status"] == "interrupted"
    assert start(SLURM_RESTART_COUNT="1").wait(LIMIT_S) == 0
    assert_same_bits(only_run(tmp_path / "job"), only_run(tmp_path / "whole"))


@pytest.mark.slow
def test_submitits_warning_saves_and_its_next_start_goes_on(tmp_path: Path) -> None:
    """A sweep's job under submitit's local executor, which is warned by SIGUSR2 as one of Slurm is."""
    launch([*command("act", tmp_path / "whole"), *LONGER])
    sweep = [f"hydra.sweep.dir={tmp_path / 'job' / 'sweep'}", "hydra/launcher=submitit_local"]
    started = subprocess.Popen(
        [sys.executable, "adadepth/run.py", "-m", *command("act", tmp_path / "job"), *LONGER, "seed=0", *sweep],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    place = tmp_path / "job" / "act_tiny"
    until(lambda: any("train/loss" in log.read_text() for log in place.rglob("metrics.jsonl")), started)
    lock = next(place.glob("*/.lock")).read_text()
    os.kill(int(lock.partition('"pid": ')[2].partition(",")[0]), signal.SIGUSR2)
    assert started.wait(LIMIT_S) == 0
    (run,) = place.iterdir()
    assert_same_bits(run, only_run(tmp_path / "whole"))
