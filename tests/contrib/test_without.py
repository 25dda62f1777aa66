"""The core without `contrib`: a copy of the repository without that folder."""

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
    "tests/configs/test_mistakes.py", "tests/unit/runs/test_inheritance.py", "tests/cli/test_entry.py",
)  # fmt: skip
TINY = ("--config-name", "act_tiny", "debug=default", "trainer.use_cpu=true", "baseline=none")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def core_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("core")
    for name in ("adadepth", "configs", "docs", "examples", "hydra_plugins", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "contrib"))
    for name in ("pyproject.toml", "README.md", "CITATION.cff"):
        shutil.copy(ROOT / name, copy / name)
    return copy


def run_in_core(core_copy: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(core_copy), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *command], cwd=core_copy, env=os.environ | {"PYTHONPATH": path}, capture_output=True,
        text=True, timeout=900,
    )  # fmt: skip


def run_adadepth(core_copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_in_core(core_copy, "-m", "adadepth", *arguments)


def test_the_quick_tests_of_the_core_pass(core_copy: Path) -> None:
    result = run_in_core(core_copy, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *QUICK)
    assert result.returncode == 0, result.stdout[-3000:]


def test_help_lists_only_modes_of_the_core(core_copy: Path) -> None:
    assert " estimate " in run_adadepth(ROOT, "--help").stdout
    result = run_adadepth(core_copy, "--help")
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
def test_missing_parts_are_one_line_errors(core_copy: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run_adadepth(core_copy, *arguments)
    assert result.returncode == 2
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


def test_a_run_trains_and_is_evaluated(core_copy: Path) -> None:
    assert run_adadepth(core_copy, *TINY).returncode == 0
    result = run_adadepth(core_copy, *TINY, "mode=evaluate", "checkpoint=latest")
    assert result.returncode == 0, result.stderr


def test_names_of_contrib_are_not_exported(core_copy: Path) -> None:
    result = run_in_core(
        core_copy, "-c", "import adadepth; print('decode_texts' in dir(adadepth), 'retrofit' in dir(adadepth))"
    )
    assert result.stdout.split() == ["False", "True"], result.stderr


def test_a_run_recorded_with_contrib_is_read(core_copy: Path) -> None:
    """Read a run whose file has groups of absent modes."""
    assert run_adadepth(ROOT, *TINY, f"output_dir={core_copy}/before", "trainer.max_steps=2").returncode == 0
    (run,) = (core_copy / "before").glob("*/*/run.json")
    assert "serve:" in (run.parent / "config.yaml").read_text(encoding="utf-8")
    result = run_adadepth(core_copy, "--config-name", "act_tiny", f"resume={run.parent}")
    assert "this run is finished" in result.stderr  # which its settings say
