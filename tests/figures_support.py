"""Runs without what only costs time, for tests that look at other files: their figures, and what they time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from accelerate.utils import memory
from PIL import Image

from adadepth.report import plots
from adadepth.report.figure import Figure, Panel
from adadepth.tasks import exit_study, session
from adadepth.training import speed

_timed = speed.time_interleaved
_DRAWING = {name: getattr(plots, name) for name in ("save", "save_film", "save_frame")}


@contextmanager
def undrawn() -> Iterator[None]:
    """Write one point where a run would draw a figure, a film or a frame of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "save", _save)
        patch.setattr(plots, "save_film", _save_film)
        patch.setattr(plots, "save_frame", _save_film)
        yield


@contextmanager
def drawn() -> Iterator[None]:
    """Draw what `undrawn` around it leaves out."""
    with pytest.MonkeyPatch.context() as patch:
        for name, draw in _DRAWING.items():
            patch.setattr(plots, name, draw)
        yield


@contextmanager
def drawn_as_png() -> Iterator[None]:
    """Leave out the second half of drawing a figure, into PDF."""
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    def write(canvas: object, path: Path, **options: object) -> None:
        Path(path).write_bytes(b"%PDF-1.4\n")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FigureCanvasPdf, "print_pdf", write)
        yield


@contextmanager
def briefly_timed() -> Iterator[None]:
    """Time executions and exit rules once: what a test reads of the times is that they are there.

    Nor is garbage looked for at the end of every training, for which Python has its own times.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "clear_device_cache", lambda garbage_collection=False: None)
        patch.setattr(speed, "_REPEATS", 1)
        patch.setattr(speed, "time_interleaved", lambda calls, repeats, _, device: _timed(calls, repeats, 0, device))
        patch.setattr(session, "_SECONDS_OF_TIMING", 0.0)
        patch.setattr(exit_study, "REPETITIONS", 1)
        patch.setattr(exit_study, "WARM_UP", 0)
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
