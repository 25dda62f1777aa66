"""Commands that a training run suggests at its end."""

from __future__ import annotations

import shlex
from pathlib import Path

from adadepth.cli.command_line import quote_text_override
from adadepth.report.run_files import read_run
from adadepth.runs.directory import MODEL
from adadepth.tasks.next_commands import list_next_commands
from tests.configs.support import configured
from tests.unit.report.synthetic import make_run


def test_a_shell_predicts_the_text_of_the_printed_command_without_quotation_marks(tmp_path: Path) -> None:
    (make_run(tmp_path / "run", 6, 2) / MODEL).mkdir()
    commands = list_next_commands(configured("ponder_tiny"), read_run(tmp_path / "run"))
    (words,) = (words for words in commands if "mode=predict" in words)
    (override,) = (word for word in shlex.split(shlex.join(words)) if word.startswith("text="))
    config = configured("ponder_tiny", "mode=predict", "checkpoint=x", quote_text_override(override))
    assert config.text == "Not worth the popcorn, let alone two hours."
