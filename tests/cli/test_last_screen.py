"""The last screen of a training of every family: 24 lines of 80 columns, with commands that run as printed."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from tests.advice_support import read_next_commands
from tests.cli.support import Command

ROOTS = ("act_tiny", "act_hops", "ponder_tiny", "adalayers_tiny", "loop_hops", "loop_tiny", "trm_tiny", "par_tiny")
QUESTIONS = (
    "Was the target depth reached? ",
    "Does depth adapt? ",
    "Does adaptive depth improve quality? ",
    "What does it cost? ",
)


def read_last_screen(out: str) -> list[str]:
    """Return the lines from the first question on; stages of a search have questions before."""
    lines = out.splitlines()
    pairs = enumerate(pairwise(lines), start=1)
    begin = max(index for index, (line, after) in pairs if not line and after.startswith(QUESTIONS))
    return lines[begin:]


def check_screen(out: str) -> None:
    """Check the size of the last screen, and its last lines."""
    screen = read_last_screen(out)
    assert len(screen) <= 24, screen
    assert max(map(len, screen)) <= 80, screen
    assert screen.index("") <= 8, "the verdict"
    assert sum(line.startswith("report: ") for line in screen) == 1
    assert len(read_next_commands(out)) == 3


def test_the_last_screen_fits_a_terminal(command: Command) -> None:
    check_screen(command("--config-name", "ponder_tiny", "debug=default").checked().out)


@pytest.mark.slow
@pytest.mark.parametrize("root", ROOTS)
def test_the_last_screen_fits_and_its_commands_run(root: str, command: Command) -> None:
    out = command("--config-name", root, "debug=default").checked().out
    check_screen(out)
    for words in read_next_commands(out):
        assert words[:2] == ["python", "adadepth/run.py"]
        result = command(*words[2:])
        assert result.status == 0, (words, result.err)


def test_only_the_summary_of_seeds_lists_next_commands(command: Command, tmp_path: Path) -> None:
    out = command("--config-name", "ponder_tiny", "debug=default", "seeds=2").checked().out
    assert out.count("\nnext:\n") == 1, "none after a single seed"
    (summary,) = (path.parent for path in tmp_path.glob("outputs/*/*/seeds.json"))
    commands = read_next_commands(out)
    assert commands[0][-1] == f"rival_of={summary.relative_to(tmp_path)}"
    assert all("seed=0" in words for words in commands[1:])
    command(*commands[0][2:]).checked()
    assert {row["seed"] for row in json.loads((summary / "rivals.json").read_text())["rows"]} == {0, 1}


def test_a_quiet_summary_of_seeds_names_its_report_once(command: Command, tmp_path: Path) -> None:
    out = command("--config-name", "ponder_tiny", "debug=default", "seeds=2", "quiet=true").checked().out
    (summary,) = (path.parent for path in tmp_path.glob("outputs/*/*/seeds.json"))
    assert out.count(f"report: {summary.relative_to(tmp_path)}") == 1
    assert "next:" not in out


@pytest.mark.slow
def test_a_matched_baseline_has_no_last_screen(command: Command) -> None:
    """Check the run it is compared with: its next commands do not repeat the comparison."""
    command("--config-name", "act_hops", "debug=default")
    result = command("--config-name", "act_hops", "debug=default", "rival_of=latest").checked()
    commands = read_next_commands(result.out)
    assert len(commands) == 3
    assert not any("rival_of" in word for words in commands for word in words)
    for words in commands:
        assert command(*words[2:]).status == 0, words
