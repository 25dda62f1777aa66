"""The core without `contrib`: in a copy of the repository whose folder is deleted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUICK = (
    "tests/unit/config", "tests/unit/halting", "tests/unit/budget", "tests/configs/test_schema.py",
    "tests/configs/test_mistakes.py", "tests/configs/test_inheritance.py", "tests/cli/test_entry.py",
)  # fmt: skip
TINY = ("--config-name", "act_tiny", "debug=default", "trainer.use_cpu=true", "baseline=none")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("core")
    for name in ("adadepth", "configs", "docs", "examples", "hydra_plugins", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "contrib"))
    for name in ("pyproject.toml", "README.md", "CITATION.cff"):
        shutil.copy(ROOT / name, copy / name)
    return copy


def in_core(core: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(core), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *command], cwd=core, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True,
        timeout=900,
    )  # fmt: skip


def adadepth(core: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return in_core(core, "-m", "adadepth", *arguments)


def test_its_quick_tests_pass(core: Path) -> None:
    result = in_core(core, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *QUICK)
    assert result.returncode == 0, result.stdout[-3000:]


def test_help_lists_the_modes_of_the_core_alone(core: Path) -> None:
    assert " estimate " in adadepth(ROOT, "--help").stdout
    result = adadepth(core, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert " evaluate " in result.stdout
    assert not [name for name in (" estimate ", " probe ", " serve ") if name in result.stdout]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--config-name", "act_tiny", "mode=serve"), "error: mode: invalid value 'serve', expected one of [train, "),
        (("--config-name", "act_tiny", "serve.port=1"), "error: serve: unknown key"),
    ],
)
def test_what_is_gone_is_refused_in_one_line(core: Path, arguments: tuple[str, ...], message: str) -> None:
    result = adadepth(core, *arguments)
    assert result.returncode == 2
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


def test_a_run_trains_and_is_evaluated(core: Path) -> None:
    assert adadepth(core, *TINY).returncode == 0
    result = adadepth(core, *TINY, "mode=evaluate", "checkpoint=latest")
    assert result.returncode == 0, result.stderr


def test_names_of_contrib_are_not_exported(core: Path) -> None:
    result = in_core(core, "-c", "import adadepth; print('decode_texts' in dir(adadepth), 'retrofit' in dir(adadepth))")
    assert result.stdout.split() == ["False", "True"], result.stderr


def test_a_run_that_knew_contrib_is_read(core: Path) -> None:
    """Its file has the groups of modes that are not there."""
    assert adadepth(ROOT, *TINY, f"output_dir={core}/before", "trainer.max_steps=2").returncode == 0
    (run,) = (core / "before").glob("*/*/run.json")
    assert "serve:" in (run.parent / "config.yaml").read_text(encoding="utf-8")
    result = adadepth(core, "--config-name", "act_tiny", f"resume={run.parent}")
    assert "this run is finished" in result.stderr  # which its settings say
