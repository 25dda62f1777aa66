"""Export of figures from SVG to PNG, PDF and GIF files. Only this module imports typst."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Literal

from adadepth.report.figure import Figure, Panel
from adadepth.report.svg import document
from adadepth.runtime.files import replace_atomically

_PIXELS_PER_INCH = 144.0  # of which typst takes 96 for those of an SVG: 1.5 pixels each
_FRAME_MILLISECONDS = 250
# One page as large as the drawing. Without a date the files are a function of the figure.
_PAGE = b"""
#set document(date: none)
#set page(width: auto, height: auto, margin: 0pt)
#image(bytes(sys.inputs.figure), format: "svg")
"""


def save_figure(figure: Figure, folder: Path) -> list[Path]:
    """Write `NAME.png` and `NAME.pdf` of a figure into a folder and return their paths."""
    png, pdf = folder / f"{figure.name}.png", folder / f"{figure.name}.pdf"
    _write(png, _convert(figure, "png"))
    _write(pdf, _convert(figure, "pdf"))
    return [png, pdf]


def save_panel(panel: Panel, path: Path) -> None:
    """Write one panel to a PNG file."""
    _write(path, _convert(Figure("panel", [panel]), "png"))


def save_film(panels: Sequence[Panel], path: Path) -> None:
    """Write panels to an animated GIF file, one frame per panel."""
    from PIL import Image

    drawings = (_convert(Figure("film", [panel]), "png") for panel in panels)
    first, *rest = (Image.open(BytesIO(drawing)).convert("RGB") for drawing in drawings)
    film = BytesIO()
    first.save(film, "GIF", save_all=True, append_images=rest, duration=_FRAME_MILLISECONDS, loop=0)
    _write(path, film.getvalue())


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically, and create its folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_atomically(path) as temporary:
        temporary.write_bytes(content)


def _convert(figure: Figure, kind: Literal["png", "pdf"]) -> bytes:
    """Convert an SVG figure to another format, with the fonts that typst contains."""
    import typst

    inputs = {"figure": document(figure)}
    return typst.compile(_PAGE, format=kind, ppi=_PIXELS_PER_INCH, ignore_system_fonts=True, sys_inputs=inputs)
