"""The server of llama.cpp: check.py agrees with it, and names a changed file."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.runs_support import execute_run
from tests.toy_support import execute
from tests.training.processes_support import find_free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("gguf", "llama_cpp", "fastapi", "sse_starlette")),
        reason="llama.cpp or its server is not installed",
    ),
]


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Run llama.cpp's server for the file of a folder, and yield its address."""
    port = find_free_port()
    url = f"http://127.0.0.1:{port}/v1"
    command = [sys.executable, "-m", "llama_cpp.server", "--model", str(folder / "model.gguf"), "--port", port]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{url}/models", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None, (folder / "server.log").read_text()
                time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.wait(60)


def test_a_looped_model_is_served(tmp_path: Path) -> None:
    plain = ("model.norms=pre", "model.prelude=0", "model.coda=0", "model.core=2", "model.num_loops=2")
    command = ("--config-name", "loop_tiny", "debug=default", "trainer.max_steps=60", "trainer.learning_rate=0.01")
    run = execute_run(tmp_path, *command, *plain)
    folder = tmp_path / "written"
    export = ("mode=export", f"checkpoint={run}", "export.format=gguf", "export.weights=f32", f"export.folder={folder}")
    assert execute("--config-name", "loop_tiny", *export, "model.exit_rule=fixed:2") == 0
    check = [sys.executable, str(folder / "check.py")]
    with serve(folder) as url:
        result = subprocess.run([*check, "--url", url, "--text"], capture_output=True, text=True, timeout=300)
        refused = subprocess.run([*check, "--url", url], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout
    assert result.stdout.splitlines()[-1].startswith("10 of 10 inputs agree; ")
    assert refused.returncode == 2
    assert "--text" in refused.stderr
    result = subprocess.run(check, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert float(result.stdout.split()[-1]) < 1e-4
