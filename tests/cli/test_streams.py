"""Standard streams that nobody reads, or that are closed: a run goes on as if somebody did."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import adadepth.tasks
from adadepth.settings import ExperimentConfig
from adadepth.system.console import patient_streams, say
from tests.cli.support import Result

ROOT = Path(__file__).resolve().parents[2]
TINY = ("--config-name", "act_tiny")
RUN = (sys.executable, "adadepth/run.py", *TINY, "model=albert_act_mini", "debug=default", "trainer.max_steps=2")


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_reader_that_goes_away_does_not_end_a_run(
    name: str, command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = os.pipe()
    done: list[str] = []

    def task(config: ExperimentConfig) -> float:
        say("first")
        os.close(ours)
        for word in ("second", "third"):
            say(word)
            print(word, file=sys.stderr, flush=True)
            done.append(word)
        os.write(theirs, b"by a library that writes to the file itself")
        return 1.0

    monkeypatch.setattr(adadepth.tasks, "run", task, raising=False)
    with open(theirs, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, name, pipe)
        result = command(*TINY)
    assert result.status == 0, result.err
    assert done == ["second", "third"]


def test_a_stream_that_is_kept_writes_nothing_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler of a log may hold it when the number of its file is that of another one."""
    with open(tmp_path / "said", "w", encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stdout", file)
        with patient_streams():
            kept = sys.stdout
            kept.write("within")
        kept.write("afterwards")
    assert (tmp_path / "said").read_text() == "within"


CLOSED = """
import sys
from adadepth.system.console import progress, say
from adadepth.system.console import patient_streams
with patient_streams(), open(sys.argv[1], "w", encoding="utf-8") as file:
    say("lost")
    with progress("work", 1) as advance:
        advance(1)
    print("lost", file=sys.stderr)
    file.write("kept " * (sys.stdin.read() == ""))
"""


def test_streams_that_are_closed_at_the_start_are_opened_on_nothing(tmp_path: Path) -> None:
    """Otherwise the first file that is opened would be standard input, and the second standard output."""
    program = [sys.executable, "-c", CLOSED, str(tmp_path / "file")]
    closing = ["bash", "-c", 'exec "$0" "$@" <&- >&- 2>&-', *program]
    assert subprocess.run(closing, cwd=ROOT, check=False).returncode == 0
    assert (tmp_path / "file").read_text() == "kept "


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", ['set -o pipefail; "$0" "$@" 2>&1 | head -1', '"$0" "$@" >&-', '"$0" "$@" <&- >&- 2>&-']
)
def test_a_whole_run_that_nobody_reads_finishes(how: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", how, *RUN, f"output_dir={tmp_path}"], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (directory,) = tmp_path.glob("act_tiny/*")
    assert '"status": "finished"' in (directory / "run.json").read_text()
    assert (directory / "report.html").is_file()


@pytest.mark.slow
def test_a_terminal_that_closes_saves_a_checkpoint(tmp_path: Path) -> None:
    """The run hears of it by a signal, and whatever it says from then on fails."""
    lasting = (
        "trainer.max_steps=4000", "trainer.eval_strategy=no", "trainer.eval_on_start=false", "trainer.save_steps=4000",
        "trainer.load_best_model_at_end=false", f"output_dir={tmp_path}",
    )  # fmt: skip
    process, terminal = pty.fork()
    if not process:
        os.chdir(ROOT)
        os.execv(sys.executable, [*RUN, *lasting])
    told = b""
    while b"train step 3/" not in told:
        told += os.read(terminal, 4096)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 129
    (directory,) = tmp_path.glob("act_tiny/*")
    assert '"status": "interrupted"' in (directory / "run.json").read_text()
    assert len(list((directory / "checkpoints").glob("checkpoint-*"))) == 1
    assert (directory / "report.html").is_file()
