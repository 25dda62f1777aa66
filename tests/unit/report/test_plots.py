from __future__ import annotations

import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from adadepth.report.pages import draw_figures
from adadepth.report.style import FONT_WEIGHTS, without_shaping
from tests.unit.report.synthetic import make_run

NAMES = ["depth_by_class", "depth_over_training", "halting", "cosine", "losses"]


@pytest.mark.filterwarnings("error")
def test_every_figure_is_drawn_and_none_is_blank(tmp_path: Path) -> None:
    from matplotlib.image import imread

    drawn = draw_figures(make_run(tmp_path, max_updates=6, evaluations=3))
    assert drawn == [tmp_path / "figures" / f"{name}.{suffix}" for name in NAMES for suffix in ("png", "pdf")]
    assert sorted((tmp_path / "figures").iterdir()) == sorted(drawn)
    assert all(path.read_bytes().startswith(b"%PDF") for path in drawn[1::2])
    for path in drawn[::2]:
        pixels = imread(path)[..., :3]
        inked = (pixels < 0.9).any(axis=-1)
        assert 0.01 < inked.mean() < 0.7, path.name
        # something in every quarter: no panel stayed empty
        height, width = inked.shape
        quarters = [
            part for half in np.array_split(inked, [height // 2]) for part in np.array_split(half, [width // 2], 1)
        ]
        assert all(part.mean() > 0.003 for part in quarters), path.name


@pytest.mark.filterwarnings("error")
def test_a_single_evaluation_can_be_drawn(tmp_path: Path) -> None:
    """What was measured once is no curve over training."""
    drawn = {path.stem for path in draw_figures(make_run(tmp_path, max_updates=1, evaluations=1))}
    assert drawn == set(NAMES) - {"depth_over_training", "losses"}


def test_what_has_no_numbers_is_not_drawn(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "train/loss": 2.0}\n{"step": 2, "train/loss": 1.0}\n')
    assert draw_figures(tmp_path) == [tmp_path / "figures" / f"losses.{suffix}" for suffix in ("png", "pdf")]
    assert draw_figures(tmp_path / "figures") == []


@pytest.mark.filterwarnings("error")
def test_the_font_of_drawings_is_matplotlibs_without_its_tables_of_shaping() -> None:
    import matplotlib
    from fontTools.ttLib import TTFont

    for name in FONT_WEIGHTS:
        original = Path(matplotlib.get_data_path(), "fonts", "ttf", name)
        before, after = TTFont(original), TTFont(BytesIO(without_shaping(original.read_bytes())))
        assert set(before.keys()) - set(after.keys()) == {"GDEF", "GPOS", "GSUB"}
        for table in ("glyf", "cmap", "name", "kern"):
            assert after.reader[table] == before.reader[table]


DRAWN = """
from adadepth.report.plots import save_drawing
save_drawing(lambda canvas: canvas.text(0.5, 0.5, "$x$"), __import__("pathlib").Path("drawn.png"))
"""


def test_nothing_of_the_users_is_in_the_way_of_matplotlib(tmp_path: Path) -> None:
    """When it is imported it reads a matplotlibrc, from one of four places, and MPLBACKEND: these end in errors."""
    for folder in ("working", "settings"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "matplotlibrc").write_bytes(b"text.usetex: True\n\xff\n")
    environment = {
        **os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3]), "MPLBACKEND": "bogus",
        "MATPLOTLIBRC": str(tmp_path / "settings"), "MPLCONFIGDIR": str(tmp_path / "settings"),
    }  # fmt: skip
    subprocess.run([sys.executable, "-c", DRAWN], cwd=tmp_path / "working", env=environment, check=True)
    assert sorted(path.name for path in (tmp_path / "working").iterdir()) == ["drawn.png", "matplotlibrc"]
