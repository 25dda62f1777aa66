"""ONNX programs of models for ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adadepth.config.export import ExportConfig


def write_onnx(model: Any, folder: Path, source: Path, settings: ExportConfig) -> None:
    """Write a model as an ONNX program."""
    raise NotImplementedError
