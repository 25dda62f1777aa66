"""Console output of a run before, during and after its training."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from adadepth import __version__
from adadepth.training import console_output
from adadepth.training.console_output import ConsoleCallback
from tests.cli.support import Command

DEBUG = ("--config-name", "act_tiny", "budget=none", "debug=default")
BEST_FIRST = ("trainer.learning_rate=1e-12", "trainer.eval_steps=1", "trainer.save_steps=1", "trainer.max_steps=9",
              "trainer.early_stopping_patience=2", "trainer.eval_on_start=false")  # fmt: skip


def test_version_is_that_of_adadepth(command: Command) -> None:
    result = command("--version")
    assert (result.status, result.err) == (0, "")
    assert re.match(rf"adadepth {re.escape(__version__)}\ntorch \d.*, transformers \d", result.out)


@pytest.mark.slow
def test_a_run_reports_its_needs_and_the_reason_for_its_end(command: Command) -> None:
    """Check also that an evaluation has the figures of the end of the run."""
    printed = command(*DEBUG, *BEST_FIRST, "seed=3").out
    assert [line for line in printed.splitlines() if len(line) > 100 and not line.startswith("  /")] == []
    out = unwrap(printed)
    lines = out.splitlines()
    memory = r"[\d.,]+ of [\d.,]+ GiB free, a step needs at least \d+ MiB"
    expected = [
        r"act_tiny: AlbertActForPreTraining, [\d,]+ parameters, at most 6 updates per token",
        r"data: python_docs; training \d+ documents, \d+ examples, [\d,]+ tokens; evaluation \d+ documents, .* tokens",
        r"training: 9 steps or 30 minutes, batch 4, adamw, lr 1e-12, linear schedule",
        rf"machine: CPU, 1 thread, fp32 \((no CUDA device|the run must use the CPU)\), seed 3; {memory}",
        r"output: evaluation every 1 steps, keeps the step with the lowest eval/loss, in .*/act_tiny/\S+",
    ]
    start = next(number for number, line in enumerate(lines) if line.startswith("act_tiny: "))
    for pattern, line in zip(expected, lines[start : start + 5], strict=True):
        assert re.fullmatch(pattern, line), line
    (ended,) = (line for line in lines if line.startswith("training ended: "))
    match = re.fullmatch(
        r"training ended: early stopping at step 3 of 9, 2 evaluations without improvement; "
        r"best step 1, eval/loss (\d+\.\d{4})", ended,
    )  # fmt: skip
    assert match, ended
    assert f"loss {match[1]}, " in read_figures("eval best checkpoint, step 1: ", out)
    evaluated = command(
        "--config-name", "act_tiny", "debug=default", "mode=evaluate", "checkpoint=latest", "seed=3"
    ).checked()
    assert read_figures("eval: ", unwrap(evaluated.out)) == read_figures("eval best checkpoint, step 1: ", out)


def unwrap(out: str) -> str:
    """Return the output with prose that the console wraps at 100 columns joined to one line each."""
    return re.sub(r"(?<=\S)\n  (?=\S)", " ", out)


def read_figures(label: str, out: str) -> str:
    """Return the figures of the line that begins with a label, without its speed."""
    (line,) = (line for line in out.splitlines() if line.startswith(label))
    return re.sub(r", [\d,]+ tokens/s$", "", line.removeprefix(label))


@pytest.mark.slow
def test_tables_are_printed_once(command: Command) -> None:
    """Check that tables of intermediate evaluations are only in the files."""
    out = command(*DEBUG, "trainer.max_steps=4").out
    assert len(re.findall(r"^halting at step ", out, re.M)) > 2
    assert len(re.findall(r"^class ", out, re.M)) == 1
    assert out.index("training ended: all 4 steps are done; best step ") < out.index("\nclass ")


@pytest.mark.slow
def test_a_time_budget_is_reported_at_start_and_end(command: Command) -> None:
    lines = command(*DEBUG, "trainer.max_steps=500", "trainer.time_budget_minutes=1e-4").out.splitlines()
    assert any(line.startswith("training: 500 steps or 0.0001 minutes, ") for line in lines)
    (ended,) = (line for line in lines if line.startswith("training ended: "))
    assert re.match(r"training ended: time budget spent: 0.0001 minutes, at step \d+ of 500; best step \d+, ", ended)


@pytest.mark.parametrize(("budget", "expected"), [(None, 90 * (9 * 10 + 30) / 9), (10, 600 - 40 - 120)])
def test_the_remaining_time_follows_from_steps_or_budget(
    budget: float | None, expected: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Run 100 steps: the first takes 40 seconds, the others 10, and an evaluation 30."""
    now = [100.0]
    monkeypatch.setattr(console_output.time, "monotonic", lambda: now[0])
    args, state, control = TrainingArguments(str(tmp_path)), TrainerState(max_steps=100), TrainerControl()
    console = ConsoleCallback(budget, is_averaged=False)
    console.on_train_begin(args, state, control)
    for step in range(1, 11):
        now[0] += 40 if step == 1 else 10
        state.global_step = step
        console.on_step_end(args, state, control)
        if step == 1:
            assert console.seconds_left(state) is None
    now[0] += 30
    assert console.seconds_left(state) == pytest.approx(expected)


@pytest.mark.parametrize(("threads", "waited", "is_reported"), [(2, 9.0, True), (2, 2.0, False), (1, 9.0, False)])
def test_waiting_for_processors_is_reported_once(
    threads: int, waited: float, is_reported: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Run for 20 seconds in which the threads wait 9 or 2 seconds for a processor."""
    now, waiting = [100.0], [3.0]
    monkeypatch.setattr(console_output.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(console_output, "read_waiting_seconds", lambda: waiting[0])
    monkeypatch.setattr(console_output, "get_thread_limit", lambda: threads)
    args, state, control = TrainingArguments(str(tmp_path)), TrainerState(max_steps=100), TrainerControl()
    console = ConsoleCallback(None, is_averaged=False)
    console.on_train_begin(args, state, control)
    now[0], waiting[0] = 120.0, 3.0 + waited
    for _ in range(2):
        console.on_log(args, state, control, logs={"loss": 1.0, "tokens_per_second": 2.0})
    lines = [line for line in unwrap(capsys.readouterr().out).splitlines() if "other processes" in line]
    warning = "other processes slow this run down: its 2 threads waited 45% of the time for a CPU; "
    assert (
        lines == [f"{warning}to go on with fewer, stop it (Ctrl-C) and resume it with runtime.threads=1"] * is_reported
    )


@pytest.mark.slow
def test_a_quiet_run_prints_its_result_in_two_lines(command: Command) -> None:
    lines = command(*DEBUG, "quiet=true", "trainer.max_steps=2").checked().out.splitlines()
    result, report = [line for line in lines if not line.startswith("warning: ")]
    assert re.fullmatch(r"act_tiny, seed 0: eval/loss \d\.\d{4}, mean depth \d\.\d\d, compute \d+%", result)
    assert Path(report.removeprefix("report: ")).is_file()


@pytest.mark.slow
def test_jobs_of_a_sweep_are_quiet_unless_asked(command: Command) -> None:
    sweep = (*DEBUG, "trainer.max_steps=2", "-m", "seed=0,1")
    lines = command(*sweep).checked().out.splitlines()
    own_lines = [line for line in lines if not line.startswith(("warning: ", "[", "best: "))]
    assert [line.partition(":")[0] for line in own_lines if line] == [
        *("act_tiny, seed 0", "report", "act_tiny, seed 1", "report"), "comparison",
    ]  # fmt: skip
    assert command(*sweep, "quiet=false").checked().out.count("training ended: ") == 2
