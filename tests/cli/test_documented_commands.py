"""Commands of the README, of the pages of `docs` and of the examples, composed and checked as they are printed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from omegaconf import OmegaConf, open_dict

import adadepth.tasks
from adadepth.cli.command_line import arguments
from adadepth.cli.config_files import list_config_folders
from adadepth.cli.help import format_usage
from adadepth.cli.table_settings import add_table_settings
from tests.cli.support import Command
from tests.configs.support import compose_config, configured
from tests.marks_support import keep_one_quick, mark_mostly_slow
from tests.plugins_support import example_extensions

ROOT = Path(__file__).resolve().parents[2]
# The plugin's own commands need it installed, which its tests do. Months of docs/log keep the commands of their days.
ELSEWHERE = ("examples/plugin/README.md",)
PAGES = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.md")))
    if str(path.relative_to(ROOT)) not in ELSEWHERE
]
_STARTED = r"torchrun [^#]*?adadepth/run\.py|sbatch examples/slurm/train\.sh|python adadepth/run\.py|adadepth"
PROGRAM = re.compile(rf"(?:{_STARTED}) (?=--config|--help|--version|mode=)")
RUNS = ("RUN", "RUN_A", "RUN_B", "RUN_OF_PHASE_1", "SUMMARY_OF_SEEDS")
# Placeholders for a value or for more of a command, which cannot be composed.
OPEN = re.compile(rf"\.\.\.|[|$]|\[[A-Z[]|\b(?!(?:{'|'.join(RUNS)}|FOLDER)\b)[A-Z][A-Z_]*\b")


def iterate_code_lines(page: str) -> Iterator[str]:
    """Yield the lines of a page's blocks of code, fenced or indented, with continued lines joined."""
    code: list[str] = []
    fence = None  # language of the open fence
    for line in page.splitlines():
        if line.startswith("```"):
            fence = line.removeprefix("```").strip() or "console" if fence is None else None
        elif fence in ("bash", "sh", "console") or (fence is None and line.startswith("    ")):
            code.append(line.strip())
    yield from "\n".join(code).replace("\\\n", " ").splitlines()


def split_arguments(line: str) -> list[str]:
    """Return the arguments of a command of this program, or none for another line."""
    match = PROGRAM.match(line.strip())
    if match is None or "lm_eval" in line or "wandb_workspace" in line:
        return []
    return shlex.split(re.sub(r"(?:^|\s)#.*", "", line.strip())[match.end() :])


def list_commands() -> dict[str, str]:
    """Return the arguments of every command, and the page that has it first."""
    commands: dict[str, str] = {}
    for path in PAGES:
        name = str(path.relative_to(ROOT))
        for line in iterate_code_lines(path.read_text(encoding="utf-8")):
            words = split_arguments(line)
            if (
                words
                and "--config-dir" not in words
                and not OPEN.search(" ".join(word for word in words if not word.startswith("text=")))
            ):
                commands.setdefault(shlex.join(words), name)
    for line in format_usage(list_config_folders()).splitlines():
        words = split_arguments(re.split(r"(?<=\S) {2,}", line)[0])
        if words and not re.search(r"GROUP|KEY|NAME|--hydra-help", line):
            commands.setdefault(shlex.join(words), "--help")
    return commands


COMMANDS = list_commands()
FIRST = {page: line for line, page in reversed(COMMANDS.items())}  # of every page, its first command


@pytest.fixture(scope="module", autouse=True)
def _install_extensions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Install the packages that the commands of docs/plugins.md need."""
    with example_extensions(tmp_path_factory.mktemp("package")):
        yield


def test_pages_have_commands() -> None:
    assert len(COMMANDS) > 120
    assert len(set(COMMANDS.values())) > 15


@cache
def format_settings(root: str) -> str:
    """Return the settings of a configuration as a run writes them."""
    config = compose_config(root)
    with open_dict(config):
        del config["hydra"]
    return OmegaConf.to_yaml(config)


def write_run_of_root(root: str, folder: Path) -> None:
    """Write the files of a configuration's run, as far as a command that names the run checks them."""
    (folder / "model").mkdir(parents=True)
    (folder / "checkpoints").mkdir()
    (folder / "config.yaml").write_text(format_settings(root), encoding="utf-8")
    record = {"status": "stopped", "mode": "train", "config_name": root}
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")


def write_table(override: str) -> None:
    """Write the user's table that a command names, tagged words or sentences, whose rows choose settings."""
    if not override:
        return
    folder = Path(override.partition("=")[2])
    folder.mkdir()
    if folder.name == "my_tags":
        (folder / "train.conll").write_text("A\tB-X\nword\tO\n\n" * 9)
    else:
        (folder / "train.csv").write_text("text,label\n" + "a word,yes\nno word,no\n" * 9)


def is_plain(words: list[str]) -> bool:
    """Return whether a command is a root and overrides: no sweep, bench, or option of Hydra."""
    hydra = any(re.match(r"-m$|sweep=|hydra|\+|~|--help|--version|mode=report", word) for word in words)
    return not hydra and "depth_bench" not in words


@pytest.mark.parametrize("line", keep_one_quick(3, mark_mostly_slow(COMMANDS, lambda line: line in FIRST.values())))
def test_a_documented_command_is_valid(
    line: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(line)
    root = words[words.index("--config-name") + 1] if "--config-name" in words else "act_tiny"
    for name in {root, *re.findall(r"outputs/(\w+)", line)} - {"slurm", "published"}:
        write_run_of_root(name, tmp_path / "outputs" / name / "2026-01-02_03-04-05_0123456789")
        for run in RUNS:
            write_run_of_root(name, tmp_path / "outputs" / name / run)
    for run in RUNS:
        write_run_of_root(root, tmp_path / run)
    if is_plain(words):
        write_table(next((word for word in words if word.startswith("dataset.path=my_")), ""))
        arguments_with_settings = add_table_settings(arguments(words)) if root == "finetune" else arguments(words)
        assert arguments_with_settings[0] == "--config-name"
        configured(arguments_with_settings[1], *arguments_with_settings[2:])
        return
    if "hydra/launcher=submitit_slurm" in words:
        pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    monkeypatch.setattr(adadepth.tasks, "run", lambda config: 1.0, raising=False)
    if any(word.startswith("sweep=") for word in words):  # keep the first of the swept values
        words = [re.sub(r"^([^\[]*=[^\[,]*),.*", r"\1", word) for word in words]
    is_run = {"--help", "--version", "-m"} & {*words}
    result = command(*words) if is_run else command(*words, "--cfg", "job")
    assert result.status == 0, result.err
