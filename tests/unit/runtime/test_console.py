"""Console output of a run: plain in a log, with colour and a progress bar in a terminal."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from adadepth.runtime.console import RESULT, is_quiet, limit_output, minutes, progress, say

ROOT = Path(__file__).resolve().parents[3]
TEXT = "halting at step 3: 12 tokens\n  all   0.25  [red]\nwarning: every token gets 2 updates"
SAYING = f"""
from adadepth.runtime.console import progress, say
say({TEXT!r})
with progress("timing", 2) as advance:
    advance(1)
    say("between")
    advance(1)
"""


def test_a_log_has_the_text_without_colour(capsys: pytest.CaptureFixture[str]) -> None:
    say(TEXT)
    with progress("timing", 10) as advance:
        advance(5)
    assert capsys.readouterr() == (f"{TEXT}\n", "")  # no bar for what is done at once


def test_prose_wraps_and_tables_commands_and_paths_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    words = "warning: " + "depth does not adapt, " * 12
    table = "| ".join(["all  0.25"] * 20)
    path = f"report: {'folder/' * 20}page.html"
    say(f"{words}\n{table}\n{path}", wraps=True)
    say(words)
    *wrapped, row, start, rest, whole = capsys.readouterr().out.splitlines()
    assert max(map(len, wrapped)) <= 100 < len(words)
    assert [line[:2] for line in wrapped] == ["wa", "  ", "  "]
    assert " ".join(line.strip() for line in wrapped) == words.strip()
    assert (row, whole) == (table, words)
    assert f"{start} {rest.strip()}" == path
    with limit_output(is_limited=True):
        say(f"eval step 3: loss 2\n{words}", wraps=True)
    assert capsys.readouterr().out.splitlines() == wrapped


def test_control_characters_are_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    say("class \x1b[2J\x9b1m \u202egnp\r of \ud800:\t\u05d0\u200d\n")
    assert capsys.readouterr().out == "class \\x1b[2J\\x9b1m \\u202egnp\\r of \\ud800:\t\u05d0\u200d\n\n"


def test_a_quiet_run_prints_results_and_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    with limit_output(is_limited=True):
        assert is_quiet()
        say(TEXT)
        say("train step 1/2: loss 2.0")
        say("skipped checkpoint-3", logging.WARNING)
        with progress("timing", 10) as advance:
            advance(5)
        assert not logging.getLogger("adadepth.data").isEnabledFor(logging.INFO)
        say("report: page.html", RESULT)
    assert capsys.readouterr().out.splitlines() == [TEXT.splitlines()[-1], "skipped checkpoint-3", "report: page.html"]
    assert not is_quiet()
    with limit_output(is_limited=False):
        say(TEXT)
    assert capsys.readouterr().out == f"{TEXT}\n"


def test_python_silences_the_console(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("adadepth-console")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        say("report: page.html", RESULT)
        say(TEXT)
    finally:
        logger.setLevel(before)
    assert capsys.readouterr().out.splitlines() == [TEXT.splitlines()[-1]]


def test_durations_of_hours_are_formatted() -> None:
    assert [minutes(seconds) for seconds in (4.6, 65, 3909)] == ["0:05", "1:05", "1:05:09"]


def run_in_terminal(**environment: str) -> str:
    """Return what a terminal receives."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    allowed = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    variables = {**allowed, "TERM": "xterm-256color", **environment}
    done = subprocess.Popen([sys.executable, "-c", SAYING], cwd=ROOT, env=variables, stdout=theirs, stderr=theirs)
    os.close(theirs)
    with io.FileIO(ours) as file:
        text = b""
        while True:
            try:
                part = file.read(4096)
            except OSError:  # Linux reports so that no process writes any more
                break
            if not part:
                break
            text += part
    assert done.wait(600) == 0, text
    return text.decode()


def test_a_terminal_gets_colour_and_a_bar() -> None:
    screen = run_in_terminal()
    assert "\x1b[33mwarning: every token gets " in screen
    assert "[red]" in strip_colours(screen), "no markup is read out of the words"
    assert "timing" in screen
    assert "50%" in screen
    assert "between" in screen


def test_no_color_is_respected() -> None:
    screen = run_in_terminal(NO_COLOR="1")
    assert "\x1b[33m" not in screen
    assert "warning: every token gets 2 updates" in strip_colours(screen)


def strip_colours(screen: str) -> str:
    """Return the text of a screen without its colours."""
    return re.sub(r"\x1b\[[\d;]*m", "", screen)
