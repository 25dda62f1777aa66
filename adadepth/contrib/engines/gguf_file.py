"""GGUF files of language models for llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adadepth.config.export import ExportConfig


def write_gguf(model: Any, folder: Path, source: Path, settings: ExportConfig) -> None:
    """Write a language model and its tokenizer as one GGUF file."""
    raise NotImplementedError
