"""Memory that must not grow with the number of evaluations."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from adadepth.training.callbacks import TrackingCallback
from tests.unit.report.synthetic_architectures import search_evaluation


def test_drawings_of_a_search_do_not_wait_for_the_collector(tmp_path: Path) -> None:
    """Each is some thousand objects that refer to each other, and a full collection is a thousand updates away."""
    tracker: Any = SimpleNamespace(image=lambda *_: None)
    tracking = TrackingCallback(tracker, tmp_path)
    gc.disable()
    try:
        for step in range(2):
            tracking._draw_gates(search_evaluation(4, 0.5)["architecture"], step)
        alive = [found for found in gc.get_objects() if type(found).__module__ == "matplotlib.figure"]
    finally:
        gc.enable()
    assert not alive
    assert len(list(tmp_path.glob("figures/gates/*.png"))) == 2
