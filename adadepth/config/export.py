"""Settings of mode `export`, which writes a checkpoint in the layout in which others publish such models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from adadepth.config.declaration import setting


@dataclass
class ExportConfig:
    """Settings of mode `export`."""

    layout: str | None = setting(
        None,
        "published layout: ouro, huginn, hrm_text, nanbeige, or the type of a decoder of transformers, such as llama",
    )
    folder: str | None = setting(None, "new folder of the files")
    drop_exits: bool = setting(False, "leave out early exits, their gate and exit rule: the network at full depth")


def check_export(config: Any) -> Iterator[str]:
    """Yield an error line for every setting that mode `export` lacks."""
    if config.export.layout is None:
        names = "ouro, huginn, hrm_text, nanbeige, or the type of a decoder, such as llama"
        yield f"export.layout: required by mode=export: {names}"
    if config.export.folder is None:
        yield "export.folder: required by mode=export: a new folder"
