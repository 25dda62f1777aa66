"""What a run says before it trains, while it trains, and when it has ended."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from adadepth import __version__
from adadepth.training import remaining as time_left
from adadepth.training.remaining import TimeLeft
from tests.cli.support import Result

ROOT = Path(__file__).resolve().parents[2]
DEBUG = ("--config-name", "act_tiny", "budget=none", "debug=default")
BEST_FIRST = ("trainer.learning_rate=1e-12", "trainer.eval_steps=1", "trainer.save_steps=1", "trainer.max_steps=9",
              "trainer.early_stopping_patience=2", "trainer.eval_on_start=false")  # fmt: skip


def test_version_is_that_of_adadepth(command: Callable[..., Result]) -> None:
    result = command("--version")
    assert (result.status, result.err) == (0, "")
    assert re.match(rf"adadepth {re.escape(__version__)}\ntorch \d.*, transformers \d", result.out)


def test_the_package_is_the_program() -> None:
    program = [sys.executable, "-m", "adadepth", "--version"]
    shown = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.startswith(f"adadepth {__version__}\n")


def test_a_run_says_what_it_needs_and_why_it_ended(command: Callable[..., Result]) -> None:
    """An evaluation has the figures that it ended with."""
    out = command(*DEBUG, *BEST_FIRST, "seed=3").out
    lines = out.splitlines()
    memory = r"memory [\d.,]+ of [\d.,]+ GiB free, an update takes at least \d+ MiB"
    assert re.search(rf"^fp32 on CPU, 1 thread; {memory}; 9 steps, at most 30 minutes$", out, re.M)
    (ended,) = (line for line in lines if line.startswith("training ended: "))
    found = re.fullmatch(
        r"training ended: early stopping at step 3 of 9, 2 evaluations without improvement; "
        r"best step 1, eval/loss (\d+\.\d{4})", ended,
    )  # fmt: skip
    assert found, ended
    assert f"loss {found[1]}, " in figures_of("eval best checkpoint, step 1: ", out)
    evaluated = command("--config-name", "act_tiny", "debug=default", "mode=evaluate", "checkpoint=latest", "seed=3")
    assert evaluated.status == 0, evaluated.err
    assert figures_of("eval: ", evaluated.out) == figures_of("eval best checkpoint, step 1: ", out)


def figures_of(label: str, out: str) -> str:
    """The figures of the line that begins so, without its speed."""
    (line,) = (line for line in out.splitlines() if line.startswith(label))
    return re.sub(r", [\d,]+ tokens/s$", "", line.removeprefix(label))


def test_tables_are_shown_once(command: Callable[..., Result]) -> None:
    """Those of the evaluations on the way are in the files."""
    out = command(*DEBUG, "trainer.max_steps=4").out
    assert len(re.findall(r"^halting at step ", out, re.M)) > 2
    assert len(re.findall(r"^class ", out, re.M)) == 1
    assert out.index("training ended: all 4 steps are done; best step ") < out.index("\nclass ")


def test_a_time_budget_is_told_at_both_ends(command: Callable[..., Result]) -> None:
    lines = command(*DEBUG, "trainer.max_steps=500", "trainer.time_budget_minutes=1e-4").out.splitlines()
    assert any(line.endswith("; 500 steps, at most 0.0001 minutes") for line in lines)
    (ended,) = (line for line in lines if line.startswith("training ended: "))
    assert re.match(r"training ended: time budget spent: 0.0001 minutes, at step \d+ of 500; best step \d+, ", ended)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the time is."""
    now = [100.0]
    monkeypatch.setattr(time_left.time, "monotonic", lambda: now[0])
    return now


def steps_of(told: TimeLeft, clock: list[float], tmp_path: Path, count: int) -> tuple[TrainingArguments, TrainerState]:
    """Train some of 100 steps of ten seconds, the first one 40, with an evaluation of a minute before."""
    args = TrainingArguments(
        output_dir=str(tmp_path), eval_strategy="steps", eval_steps=20, report_to="none", use_cpu=True
    )
    state, control = TrainerState(max_steps=100), TrainerControl()
    told.on_train_begin(args, state, control)
    clock[0] += 60
    told.on_evaluate(args, state, control, metrics={"eval_runtime": 60.0})
    for step in range(1, count + 1):
        clock[0] += 10 if step > 1 else 40
        state.global_step = step
        told.on_step_end(args, state, control)
    return args, state


def test_the_time_left_counts_steps_and_evaluations(
    clock: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = TimeLeft(None)
    args, state = steps_of(told, clock, tmp_path, 3)
    assert told.left(args, state) is None, "two steps do not make a pace"
    assert capsys.readouterr().out == ""
    told = TimeLeft(None)
    args, state = steps_of(told, clock, tmp_path, 10)
    assert told.left(args, state) == pytest.approx(90 * 10 + 5 * 60)
    assert capsys.readouterr().out == "expected: about 21:00 for the other 96 steps\n"


def test_the_time_left_ends_with_the_budget(
    clock: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = TimeLeft(10)
    args, state = steps_of(told, clock, tmp_path, 10)
    assert told.left(args, state) == pytest.approx(600 - 60 - 40 - 90)
    assert capsys.readouterr().out == "expected: 7:50 of time budget, until about step 39 of 100\n"
