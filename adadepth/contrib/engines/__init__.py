"""File formats of other engines for mode `export`: GGUF (llama.cpp), ONNX and ExecuTorch.

They are registered by entry points of the group `adadepth.export_formats`. This module imports none of their packages.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from adadepth.config.export import ExportConfig, ExportFormat

_Write = Callable[[Any, Path, Path, ExportConfig], None]
_NEEDS = "adadepth[engines]"


def _import_write_gguf() -> _Write:
    from adadepth.contrib.engines.gguf_file import write_gguf

    return write_gguf


def _import_write_onnx() -> _Write:
    from adadepth.contrib.engines.onnx_program import write_onnx

    return write_onnx


def _import_write_executorch() -> _Write:
    from adadepth.contrib.engines.executorch_program import write_executorch

    return write_executorch


def _find_engine(name: str) -> Path:
    return Path(__file__).with_name(name)


GGUF = ExportFormat(
    _import_write_gguf,
    layout="optional",
    weights=("f32", "f16", "q8_0"),
    engine=_find_engine("run_gguf.py"),
    use="llama.cpp and its bindings read `model.gguf`:\n\n"
    "```bash\npython -m llama_cpp.server --model model.gguf   # pip install 'llama-cpp-python[server]'\n```",
    libraries=("gguf",),
    needs=_NEEDS,
)
ONNX = ExportFormat(
    _import_write_onnx,
    weights=("f32", "int8"),
    engine=_find_engine("run_onnx.py"),
    use="ONNX Runtime reads the files; `engine.py` shows how.",
    libraries=("onnx", "onnxscript", "onnxruntime"),
    needs=_NEEDS,
)
EXECUTORCH = ExportFormat(
    _import_write_executorch,
    weights=("f32",),
    engine=_find_engine("run_executorch.py"),
    use="The runtime of ExecuTorch reads the files; `engine.py` shows how.",
    libraries=("executorch",),
    needs="adadepth[executorch]",
)
