"""Installed wheels of adadepth and of two packages that extend it, in an environment without a clone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.toy_support import TOY

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "examples" / "plugin"
SMALL = (
    "dataset.train_examples=64", "dataset.max_evaluation_examples=16", "model.num_hidden_layers=3",
    "model.hidden_size=32", "trainer.per_device_train_batch_size=8", "trainer.max_steps=2", "trainer.eval_steps=2",
    "trainer.save_steps=2", "trainer.disable_tqdm=true",
)  # fmt: skip

pytestmark = pytest.mark.slow


def execute(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(argument) for argument in arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a virtual environment with the three wheels; their dependencies are those of the tests."""
    folder = tmp_path_factory.mktemp("environment")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    built = execute(*pip, "wheel", "--no-deps", "-w", folder / "wheels", ROOT, TOY, PLUGIN, cwd=folder)
    if "No matching distribution found for poetry-core" in built.stderr:
        pytest.skip("poetry-core cannot be had")
    assert built.returncode == 0, built.stderr
    execute(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder).check_returncode()
    python = folder / "venv" / "bin" / "python"
    wheels = sorted((folder / "wheels").glob("*.whl"))
    assert [wheel.name.split("-")[0] for wheel in wheels] == ["adadepth", "adadepth_reviews", "adadepth_router"]
    execute(*pip, "--python", python, "install", "--no-index", "--no-deps", *wheels, cwd=folder).check_returncode()
    where = execute(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).stdout.strip()
    # A path in a .pth file brings packages, and none of the .pth files beside them, of which one is this repository's.
    Path(where, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder / "venv"


def test_the_toy_family_trains_through_its_entry_point(environment: Path, tmp_path: Path) -> None:
    program = environment / "bin" / "adadepth"
    arguments = ("--config-name", "router_hops", f"output_dir={tmp_path / 'out'}", *SMALL)
    done = execute(program, *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (directory,) = (tmp_path / "out").glob("router_hops/*")
    assert json.loads((directory / "run.json").read_text(encoding="utf-8"))["status"] == "finished"
    assert "Tokens left alone" in (directory / "report.html").read_text(encoding="utf-8")
    wrong = execute(program, "--config-name", "router_hops", "model.update_prise=1", cwd=tmp_path)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: model.update_prise: unknown key (did you mean 'model.update_price'?)")


def test_nothing_comes_from_the_repository(environment: Path, tmp_path: Path) -> None:
    code = (
        "import adadepth, adadepth_router, hydra_plugins.adadepth_families as plugin\n"
        "from adadepth.cli.config_files import CONFIGS\n"
        "for place in (adadepth.__file__, adadepth_router.__file__, plugin.__file__, CONFIGS / 'act_tiny.yaml'):\n"
        "    print(place)"
    )
    result = execute(environment / "bin" / "python", "-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    paths = [Path(line) for line in result.stdout.splitlines()]
    assert len(paths) == 4
    assert all(path.is_file() and path.is_relative_to(environment) for path in paths)


def test_the_wheel_has_all_configurations_and_is_typed(environment: Path, tmp_path: Path) -> None:
    code = "from adadepth.cli.config_files import CONFIGS; print(CONFIGS)"
    result = execute(environment / "bin" / "python", "-c", code, cwd=tmp_path)
    configs = Path(result.stdout.strip())
    shipped = {path.relative_to(ROOT / "configs") for path in (ROOT / "configs").rglob("*.yaml")}
    assert {path.relative_to(configs) for path in configs.rglob("*.yaml")} == shipped
    assert (configs.parent / "py.typed").is_file()
    result = execute(environment / "bin" / "python", "-m", "adadepth", "--version", cwd=tmp_path)
    assert result.stdout.startswith("adadepth "), result.stderr
    listed = execute(environment / "bin" / "adadepth", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "  ponder_tiny  " in listed.stdout


def test_the_wheel_has_demos_that_work_without_training(environment: Path, tmp_path: Path) -> None:
    code = "from adadepth.runtime.demos import resolve_demo; print(resolve_demo('checkpoint', 'demo:hops').parent)"
    result = execute(environment / "bin" / "python", "-c", code, cwd=tmp_path)
    installed, here = Path(result.stdout.strip()), ROOT / "adadepth" / "demos"
    assert installed.is_relative_to(environment)
    stored = {path.relative_to(here): path.read_bytes() for path in here.rglob("*") if path.is_file()}
    assert {path.relative_to(installed): path.read_bytes() for path in installed.rglob("*") if path.is_file()} == stored
    done = execute(
        environment / "bin" / "adadepth", "mode=predict", "checkpoint=demo:hops", "text=>2 blue >1", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("outputs/act_hops/*/texts.json"))) == 1


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Write a folder with the files of its owner, and no clone of adadepth."""
    shutil.copytree(PLUGIN / "configs", tmp_path / "configs")
    shutil.copytree(PLUGIN / "tests", tmp_path / "tests")
    shutil.copy(PLUGIN / "reviews.csv", tmp_path)
    return tmp_path


def test_the_example_runs_in_a_project_of_its_own(environment: Path, project: Path) -> None:
    program = (environment / "bin" / "adadepth", "--config-dir", "configs")
    printed = execute(*program, "--help", "dataset.praise_from", cwd=project)
    assert printed.stdout == "dataset.praise_from\n  stars from which a review is praise; from 2 to 5.\n  default: 4\n"
    done = execute(*program, "--config-name", "reviews", "debug=default", "dataset.cache_dir=cache", cwd=project)
    assert done.returncode == 0, done.stderr
    (record,) = project.glob("outputs/reviews/*/run.json")
    assert json.loads(record.read_text(encoding="utf-8"))["dataset_schema"] == "reviews"
    assert "eval/loss" in (record.parent / "metrics.csv").read_text(encoding="utf-8")
    config = json.loads((record.parent / "model" / "config.json").read_text(encoding="utf-8"))
    assert config["halting_rule"] == "stick_breaking"
    again = (
        "--config-name",
        "reviews",
        "mode=evaluate",
        "checkpoint=latest",
        "debug=default",
        "dataset.cache_dir=cache",
    )
    evaluated = execute(*program, *again, cwd=project)
    assert evaluated.returncode == 0, evaluated.stderr


def test_a_plugin_slice_brings_its_configurations(environment: Path, tmp_path: Path) -> None:
    program = environment / "bin" / "adadepth"
    assert "  brackets  " in execute(program, cwd=tmp_path).stdout
    arguments = ("--config-name", "brackets", "model=router_mini", f"output_dir={tmp_path / 'out'}", *SMALL)
    done = execute(program, *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "out").glob("brackets/*/tables/brackets.csv"))) == 1


def test_the_tests_of_the_example_pass(environment: Path, project: Path) -> None:
    done = execute(environment / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
