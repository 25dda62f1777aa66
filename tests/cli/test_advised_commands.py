"""Commands that a run, its report and its card print, run as they are printed."""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from adadepth import run as program
from adadepth.config.overrides import format_override
from adadepth.runs.commands import format_resume_command
from tests.advice_support import read_next_commands
from tests.cli.support import Command
from tests.training.support import mark_interrupted

# Characters with a special meaning to a shell, to Hydra's grammar, or to both.
ODD = "a (b), [c]=d #e 'f' \"g\" $h ü; *~{i} & j"
# Sizes are explicit: a model that starts from the weights of this one keeps them.
SIZES = ("model.embedding_size=16", "model.hidden_size=32", "model.num_attention_heads=2", "model.intermediate_size=64")
TINY = ("--config-name", "ponder_tiny", "debug=default", *SIZES)


def split_command(label: str, out: str) -> list[str]:
    """Return the arguments of the one command that follows a label on its own line, as a shell splits it."""
    (line,) = (line for line in out.splitlines() if line.startswith(f"{label}: "))
    python, script, *words = shlex.split(line.removeprefix(f"{label}: "))
    assert (python, script) == ("python", "adadepth/run.py")
    return words


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a working directory with a run in a folder with an unusual name, and the messages of the run."""
    folder = tmp_path_factory.mktemp("advised")
    with pytest.MonkeyPatch.context() as patch, pytest.MonkeyPatch.context() as streams:
        patch.chdir(folder)
        overrides = [*TINY, format_override("output_dir", ODD)]
        patch.setattr(sys, "argv", ["adadepth/run.py", *overrides])
        messages: list[str] = []
        streams.setattr("adadepth.tasks.report.say", messages.append)
        program.main()
    return folder, "\n".join(messages)


@pytest.fixture
def working_directory(trained_run: tuple[Path, str], command: Command, tmp_path: Path) -> Path:
    """Return the working directory of a test, with a copy of the run where it was written."""
    shutil.copytree(trained_run[0], tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize("text", [
    *("a b", "a (b)", "a=b", "a,b", "[x]", "it's", 'q"q', "ü x", "a#b", "$x", "{a}", "~x", "a:b", "back\\", "a;b", "*"),
    *("null", "1e3", "true", " lead", "x!y", "%", "a&b|c", "-x", ODD, "a\\'b", 'a\\"b'),
])  # fmt: skip
def test_an_override_is_read_back(text: str) -> None:
    """Check that Hydra reads the override that a shell makes of the printed word."""
    (word,) = shlex.split(shlex.join([format_override("checkpoint", text)]))
    read = OverridesParser.create().parse_override(word)
    assert not read.is_sweep_override()
    assert str(read.value()) == text


@pytest.mark.slow
def test_the_printed_evaluation_runs(working_directory: Path, trained_run: tuple[Path, str], command: Command) -> None:
    words = next(words for words in read_next_commands(trained_run[1]) if "mode=evaluate" in words)
    assert words[:2] == ["python", "adadepth/run.py"]
    command(*words[2:]).checked()
    assert list(working_directory.glob("*/ponder_tiny/*/evaluations/*/report.html"))


@pytest.mark.slow
def test_the_printed_continuation_runs(
    working_directory: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = working_directory.glob("*/ponder_tiny/*")
    monkeypatch.setattr(sys, "argv", ["adadepth/run.py"])
    printed = f"continue: {format_resume_command(run.relative_to(working_directory))}"
    finished = command(*split_command("continue", printed))
    assert (finished.status, "this run is finished" in finished.err) == (2, True), finished.err
    advice = finished.err.partition("to train another run from its weights: ")[2]
    python, script, *again = shlex.split(advice)
    assert (python, script) == ("python", "adadepth/run.py")
    command(*again).checked()
    mark_interrupted(run)
    command(*split_command("continue", printed)).checked()
    assert json.loads((run / "run.json").read_text(encoding="utf-8"))["status"] == "finished"


@pytest.mark.slow
def test_the_command_of_a_report_repeats_the_run(working_directory: Path, command: Command) -> None:
    (page,) = working_directory.glob("*/ponder_tiny/*/report.html")
    text = html.unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))
    (printed,) = set(re.findall(r"python adadepth/run\.py .*", text))
    command(*shlex.split(printed)[2:]).checked()
    assert len(list(working_directory.glob("*/ponder_tiny/*/report.html"))) == 2


def test_the_card_of_a_model_has_code_that_runs(working_directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (card,) = working_directory.glob("*/ponder_tiny/*/model/README.md")
    (code,) = re.findall(r"```python\n(.*?)```", card.read_text(encoding="utf-8"), re.DOTALL)
    placeholder = '"FOLDER OR NAME OF THIS MODEL"'
    assert placeholder in code
    exec(code.replace(placeholder, repr(str(card.parent))), {})
    assert "updates=" in capfd.readouterr().out
