"""Runs without their figures, for tests that look at other files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

from adadepth.analysis.render import plots
from adadepth.analysis.render.figure import Figure, Panel


@contextmanager
def undrawn() -> Iterator[None]:
    """Write one point where a run would draw a figure, a film or a frame of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "save", _save)
        patch.setattr(plots, "save_film", _save_film)
        patch.setattr(plots, "save_frame", _save_film)
        yield


def _save(figure: Figure, folder: Path) -> list[Path]:
    paths = [folder / f"{figure.name}{suffix}" for suffix in (".png", ".pdf")]
    for path in paths:
        _write_point(path)
    return paths


def _save_film(panels: Sequence[Panel] | Panel, path: Path) -> None:
    _write_point(path)


def _write_point(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (1, 1)).save(path)
