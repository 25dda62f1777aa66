"""Figures of a run as PNG and PDF."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adadepth.report.pages import draw_figures
from tests.figures_support import find_inked_pixels
from tests.pages_support import read_report
from tests.unit.report.synthetic import make_run

NAMES = ["depth_by_class", "depth_over_training", "halting", "cosine", "losses"]


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_every_figure_is_drawn_and_none_is_blank(tmp_path: Path) -> None:
    paths = draw_figures(read_report(make_run(tmp_path, max_updates=6, evaluations=3)))
    assert paths == [tmp_path / "figures" / f"{name}.{suffix}" for name in NAMES for suffix in ("png", "pdf")]
    assert sorted((tmp_path / "figures").iterdir()) == sorted(paths)
    assert all(path.read_bytes().startswith(b"%PDF") for path in paths[1::2])
    for path in paths[::2]:
        pixels = find_inked_pixels(path)
        assert 0.01 < pixels.mean() < 0.7, path.name
        # something in every quarter: no panel stayed empty
        height, width = pixels.shape
        quarters = [
            part for half in np.array_split(pixels, [height // 2]) for part in np.array_split(half, [width // 2], 1)
        ]
        assert all(part.mean() > 0.003 for part in quarters), path.name


@pytest.mark.filterwarnings("error")
def test_a_single_evaluation_can_be_drawn(tmp_path: Path) -> None:
    """Draw no curves over training, for which one measurement is too few."""
    names = {path.stem for path in draw_figures(read_report(make_run(tmp_path, max_updates=1, evaluations=1)))}
    assert names == set(NAMES) - {"depth_over_training", "losses"}


def test_figures_without_numbers_are_not_drawn(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "train/loss": 2.0}\n{"step": 2, "train/loss": 1.0}\n')
    assert draw_figures(read_report(tmp_path)) == [
        tmp_path / "figures" / f"losses.{suffix}" for suffix in ("png", "pdf")
    ]
    assert draw_figures(read_report(tmp_path / "figures")) == []
