"""Every family without the others: in a copy of the package without other families and without `contrib`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {path.parent.name for path in ROOT.glob("adadepth/models/*/family.py")}
ALONE = {
    "albert_act": "act_hops", "ponder": "ponder_tiny", "adalayers": "adalayers_tiny", "par_xl": "par_tiny",
    "looped": "loop_hops", "early_exit": "exit_hops", "routed": "mor_hops", "trm": "trm_tiny",
}  # fmt: skip
SHORT = ("debug=default", "trainer.use_cpu=true", "trainer.disable_tqdm=true", "baseline=none")


@pytest.mark.slow
@pytest.mark.parametrize("folder", ALONE)
def test_a_family_trains_without_the_others(folder: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "adadepth", tmp_path / "adadepth", ignore=shutil.ignore_patterns("__pycache__", "contrib"))
    for other in FOLDERS - {folder}:
        shutil.rmtree(tmp_path / "adadepth" / "models" / other)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copy(ROOT / "CITATION.cff", tmp_path)  # for the model card
    result = subprocess.run(
        [sys.executable, "-m", "adadepth", "--config-name", ALONE[folder], *SHORT],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert list(tmp_path.glob("outputs/*/*/report.html"))
