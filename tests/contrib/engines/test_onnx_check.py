"""Commands that train a classifier with exits, export it for ONNX Runtime, and check the files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs_support import execute_run
from tests.toy_support import execute

pytestmark = pytest.mark.slow
for name in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(name)


def test_onnx_runtime_has_the_predictions_of_the_model(tmp_path: Path) -> None:
    training = ("debug=default", "trainer.max_steps=20", "trainer.time_budget_minutes=null", "baseline=none")
    run = execute_run(tmp_path, "--config-name", "ponder_tiny", *training)
    folder = tmp_path / "written"
    export = ("mode=export", f"checkpoint={run}", "export.format=onnx", f"export.folder={folder}")
    assert execute("--config-name", "ponder_tiny", *export) == 0
    result = subprocess.run([sys.executable, str(folder / "check.py")], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1].startswith("10 of 10 inputs agree; ")
    assert float(result.stdout.split()[-1]) < 1e-4
