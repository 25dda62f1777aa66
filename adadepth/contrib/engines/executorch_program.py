"""ExecuTorch programs of models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adadepth.config.export import ExportConfig


def write_executorch(model: Any, folder: Path, source: Path, settings: ExportConfig) -> None:
    """Write a model as an ExecuTorch program."""
    raise NotImplementedError
