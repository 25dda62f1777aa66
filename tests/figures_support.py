"""Shortcuts for runs in tests, and pixels of figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from accelerate.utils import memory
from PIL import Image

from adadepth.report import export
from adadepth.report.figure import Figure
from adadepth.tasks import exit_study, results
from adadepth.training import profiling

_timed = profiling.time_rounds
_convert = export._convert


@contextmanager
def shorten_runs() -> Iterator[None]:
    """Make runs short: time executions and exit rules once, skip garbage collection, draw each kind of picture once.

    Tests read that times are there, not their values. Python collects garbage at its own times. Every picture of a run
    is the first one of its kind; `tests/unit/report` looks at pictures.
    """
    pictures: dict[str, bytes] = {}

    def convert_once(figure: Figure, kind: Literal["png", "pdf"]) -> bytes:
        if kind not in pictures:
            pictures[kind] = _convert(figure, kind)
        return pictures[kind]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "clear_device_cache", lambda garbage_collection=False: None)
        patch.setattr(profiling, "_REPEATS", 1)
        patch.setattr(profiling, "time_rounds", lambda calls, repeats, _, device: _timed(calls, repeats, 0, device))
        patch.setattr(results, "_TIMING_S", 0.0)
        patch.setattr(results, "_TIMING_SHARE", float("inf"))
        patch.setattr(exit_study, "REPETITIONS", 1)
        patch.setattr(exit_study, "WARM_UP", 0)
        patch.setattr(export, "_convert", convert_once)
        yield


def find_inked_pixels(path: Path) -> np.ndarray:
    """Return which pixels of a picture are not white."""
    with Image.open(path) as picture:
        return (np.asarray(picture.convert("RGB")) < 230).any(axis=-1)
