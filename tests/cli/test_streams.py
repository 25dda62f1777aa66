"""Standard output that nobody reads any more: a run goes on as if somebody did."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TINY = ("--config-name", "act_tiny")
RUN = (sys.executable, "adadepth/run.py", *TINY, "model=albert_act_mini", "debug=default", "trainer.max_steps=2")


HEADED = """
import os, sys
from adadepth.runtime.console import say
say("first")
sys.stdin.read()
say("second")
print("third")
"""


def test_a_reader_that_goes_away_does_not_end_a_run() -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", HEADED], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert program.stdin is not None
    assert program.stdout is not None
    assert program.stdout.readline() == b"first\n"
    program.stdout.close()
    program.stdin.close()
    assert (program.wait(600), program.stderr and program.stderr.read()) == (0, b"")


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
    while b"train step " not in told:
        told += os.read(terminal, 4096)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 129
    (directory,) = tmp_path.glob("act_tiny/*")
    assert '"status": "interrupted"' in (directory / "run.json").read_text()
    assert len(list((directory / "checkpoints").glob("checkpoint-*"))) == 1
    assert (directory / "report.html").is_file()
