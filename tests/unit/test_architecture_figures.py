"""Drawings of the families' architectures: those of their script, with descriptions and without overlaps."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tests.scripts_support import ROOT, load_script

FIGURES = sorted((ROOT / "docs" / "figures").glob("architecture_*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / ".ci")  # as when the script is run
    return load_script(".ci/architecture_figures.py", monkeypatch)


def test_the_committed_drawings_are_those_of_the_script(script: ModuleType, tmp_path: Path) -> None:
    new_drawings = {path.name: path.read_text(encoding="utf-8") for path in script.write_figures(tmp_path)}
    committed = {path.name: path.read_text(encoding="utf-8") for path in FIGURES}
    assert new_drawings.keys() == committed.keys()
    assert [name for name in new_drawings if new_drawings[name] != committed[name]] == [], "run `make figures`"


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_a_drawing_has_a_title_and_a_description(path: Path) -> None:
    image = ElementTree.parse(path).getroot()
    for name in ("title", "desc"):
        assert (image.findtext(f"{SVG}{name}") or "").strip()
    assert image.get("aria-labelledby") == "title desc"


def test_texts_lie_on_the_canvas_without_overlap(script: ModuleType) -> None:
    for draw in script.DRAWINGS.values():
        drawing = draw()
        for space, text in drawing.texts:
            inside = (
                space.left >= 0 and space.right <= script.WIDTH and 0 <= space.top <= space.bottom <= drawing.height
            )
            assert inside, f"{drawing.title}: {text!r} leaves the canvas"
        clashes = [
            (one, other) for (space, one), (taken, other) in combinations(drawing.texts, 2) if space.overlaps(taken)
        ]
        assert clashes == [], drawing.title


def test_a_text_that_does_not_fit_its_box_is_refused(script: ModuleType) -> None:
    with pytest.raises(ValueError, match="too long a line"):
        script.Drawing("A title", "A description", 100).box(0, 0, 40, 40, ["too long a line"])
