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


def export_demo(name: str, folder: Path, weights: str) -> None:
    export = ("mode=export", f"checkpoint=demo:{name}", "export.format=onnx", f"export.folder={folder}")
    assert execute(*export, f"export.weights={weights}") == 0


def check(folder: Path) -> tuple[int, str]:
    """Return the exit status and the last line of check.py."""
    result = subprocess.run([sys.executable, str(folder / "check.py")], capture_output=True, text=True, timeout=300)
    assert result.returncode in (0, 1), result.stderr
    return result.returncode, result.stdout.splitlines()[-1]


@pytest.mark.parametrize("name", ["maze", "words"])
def test_demos_are_reproduced(name: str, tmp_path: Path) -> None:
    """Check demos of which mazes have rows and columns, and `words` has pretraining heads."""
    export_demo(name, tmp_path / "written", "f32")
    status, line = check(tmp_path / "written")
    assert status == 0
    assert line.startswith("10 of 10 inputs agree; ")
    assert float(line.split()[-1]) < 1e-4


@pytest.mark.parametrize("name", ["maze", "words"])
def test_a_wrong_int8_weight_is_found(name: str, tmp_path: Path) -> None:
    """Check the exported file, which agrees, and the same with one row of a matrix negated, which does not."""
    import numpy as np
    import onnx

    folder = tmp_path / "written"
    export_demo(name, folder, "int8")
    status, line = check(folder)
    assert (status, line.startswith("10 of 10 inputs agree; ")) == (0, True), line
    program = onnx.load(folder / "model.onnx")
    weights = [weight for weight in program.graph.initializer if weight.name.endswith("_quantized")]
    matrix = min((weight for weight in weights if min(weight.dims, default=0) >= 32), key=lambda weight: weight.dims[0])
    values = onnx.numpy_helper.to_array(matrix).copy()
    values[3] = np.clip(-values[3].astype(np.int32), -127, 127) if values.dtype == np.int8 else 255 - values[3]
    matrix.CopyFrom(onnx.numpy_helper.from_array(values, matrix.name))
    onnx.save(program, folder / "model.onnx")
    assert check(folder)[0] == 1
