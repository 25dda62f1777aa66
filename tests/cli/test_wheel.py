"""What users install: wheels of adadepth and of the toy family, in an environment without this repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.toy_support import TOY

ROOT = Path(__file__).resolve().parents[2]
SMALL = (
    "dataset.train_examples=64", "dataset.max_evaluation_examples=16", "model.num_hidden_layers=3",
    "model.hidden_size=32", "trainer.per_device_train_batch_size=8", "trainer.max_steps=2", "trainer.eval_steps=2",
    "trainer.save_steps=2", "trainer.disable_tqdm=true",
)  # fmt: skip

pytestmark = pytest.mark.slow


def command(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(argument) for argument in arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=280
    )


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with both wheels; their dependencies are those that the tests run with."""
    folder = tmp_path_factory.mktemp("environment")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    built = command(*pip, "wheel", "--no-deps", "-w", folder / "wheels", ROOT, TOY, cwd=folder)
    if "No matching distribution found for poetry-core" in built.stderr:
        pytest.skip("poetry-core cannot be had")
    assert built.returncode == 0, built.stderr
    command(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder).check_returncode()
    python = folder / "venv" / "bin" / "python"
    wheels = sorted((folder / "wheels").glob("*.whl"))
    assert [wheel.name.split("-")[0] for wheel in wheels] == ["adadepth", "adadepth_router"]
    command(*pip, "--python", python, "install", "--no-index", "--no-deps", *wheels, cwd=folder).check_returncode()
    where = command(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).stdout.strip()
    # A path in a .pth file brings packages, and none of the .pth files beside them, of which one is this repository's.
    Path(where, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder / "venv"


def test_the_toy_family_trains_through_its_entry_point(environment: Path, tmp_path: Path) -> None:
    program = environment / "bin" / "adadepth"
    given = ("--config-name", "router_hops", f"output_dir={tmp_path / 'out'}", *SMALL)
    done = command(program, *given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (directory,) = (tmp_path / "out").glob("router_hops/*")
    assert json.loads((directory / "run.json").read_text(encoding="utf-8"))["status"] == "finished"
    assert "Tokens left alone" in (directory / "report.html").read_text(encoding="utf-8")
    wrong = command(program, "--config-name", "router_hops", "model.update_prise=1", cwd=tmp_path)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: model.update_prise: unknown key (did you mean 'model.update_price'?)")


def test_nothing_comes_from_the_repository(environment: Path, tmp_path: Path) -> None:
    code = (
        "import adadepth, adadepth_router, hydra_plugins.adadepth_families as plugin\n"
        "from adadepth.run import CONFIGS\n"
        "for place in (adadepth.__file__, adadepth_router.__file__, plugin.__file__, CONFIGS / 'act_tiny.yaml'):\n"
        "    print(place)"
    )
    shown = command(environment / "bin" / "python", "-c", code, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    places = [Path(line) for line in shown.stdout.splitlines()]
    assert len(places) == 4
    assert all(place.is_file() and place.is_relative_to(environment) for place in places)
