"""Standard output without a reader: a run goes on all the same."""

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


def test_a_closed_pipe_does_not_end_a_run() -> None:
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
def test_a_run_on_a_closed_terminal_saves_a_checkpoint(tmp_path: Path) -> None:
    """Close the terminal: the run gets a signal, and its later output fails."""
    lasting = (
        "trainer.max_steps=4000", "trainer.eval_strategy=no", "trainer.eval_on_start=false", "trainer.save_steps=4000",
        "trainer.load_best_model_at_end=false", f"output_dir={tmp_path}",
    )  # fmt: skip
    process, terminal = pty.fork()
    if not process:
        os.chdir(ROOT)
        os.execv(sys.executable, [*RUN, *lasting])
    output = b""
    while b"train step " not in output:
        output += os.read(terminal, 4096)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 129
    (directory,) = tmp_path.glob("act_tiny/*")
    assert '"status": "interrupted"' in (directory / "run.json").read_text()
    assert len(list((directory / "checkpoints").glob("checkpoint-*"))) == 1
    assert (directory / "report.html").is_file()
