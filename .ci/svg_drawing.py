"""Build SVG images of boxes, decisions, arrows and labels in the style of the architecture drawings.

A drawing has no background. Its fills follow the reader's light or dark scheme, and its lines and labels have tones
that are legible on both. Inside a text, `$...$` is italic and `_x` or `_{...}` within it a subscript.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

WIDTH = 520
BODY, LABEL = 15, 14  # font sizes; a drawing that is 390 pixels wide shows 3/4 of them
SUBSCRIPT = 0.74  # of the font size

STYLE = """
.plain{fill:#f3f4f6;stroke:#7d8590}.repeat{fill:#dcebf7;stroke:#2180c0}.decide{fill:#fde8d8;stroke:#d5650a}
.dashed{fill:#f3f4f6;stroke:#7d8590;stroke-dasharray:5 4}.frame{fill:none;stroke:#2180c0;stroke-dasharray:2 4}
.card{fill:#fbfcfd;stroke:#b3bac2}.in{fill:#1b1f24}
.line,.idle,.again,.halt{fill:none;stroke-width:1.8}
.line,.idle{stroke:#757c85}.idle{stroke-dasharray:3 4}.again{stroke:#2180c0}.halt{stroke:#d5650a}
.label,.head-line,.head-idle{fill:#757c85}.label-again,.head-again{fill:#2180c0}
.label-halt,.head-halt,.bar{fill:#d5650a}
@media (prefers-color-scheme:dark){
.plain,.dashed{fill:#22272e}.repeat{fill:#12314a}.decide{fill:#4a2a10}
.card{fill:#15191f;stroke:#4b535d}.in{fill:#e9eef4}}
"""
MEANINGS = {"repeat": "repeats", "decide": "decides the depth", "dashed": "frozen, or does not run"}

Point = tuple[float, float]


class Span(NamedTuple):
    """A part of a text in one font."""

    text: str
    italic: bool = False
    subscript: bool = False


class Rectangle(NamedTuple):
    """The space that an element takes."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Rectangle) -> bool:
        """Return whether two rectangles share an area."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


def parse_spans(content: str) -> Iterator[Span]:
    """Split a text into its spans; see the module's docstring for the markup."""
    for number, part in enumerate(content.split("$")):
        if number % 2 == 0:
            yield from [Span(part)] if part else []
            continue
        for piece in re.findall(r"_\{[^}]*\}|_.|[^_]+", part):
            yield Span(piece.lstrip("_").strip("{}") if piece[0] == "_" else piece, True, piece[0] == "_")


def measure_text(content: str, size: float, bold: bool = False) -> float:
    """Return the estimated width of a text in a sans-serif font, rounded up where fonts differ."""
    widths = 0.0
    for span in parse_spans(content):
        for letter in span.text:
            wide = letter in "mw" or (letter.isupper() and letter != "I")
            width = 1.0 if letter in "…←→" else 0.31 if letter in " ijltfrI.,:;!|'()[]-/" else 0.76 if wide else 0.6
            widths += width * (SUBSCRIPT if span.subscript else 1.0)
    return widths * size * (1.06 if bold else 1.0)


class Drawing:
    """An SVG image built of boxes, decisions, arrows and labels.

    Attributes:
        texts: Space of every text, with the text.
    """

    def __init__(self, title: str, description: str, height: float) -> None:
        self.title, self.description, self.height = title, description, height
        self.texts: list[tuple[Rectangle, str]] = []
        self._shapes: list[str] = []

    def text(
        self, x: float, y: float, content: str, kind: str = "label", size: float = LABEL, bold: bool = False,
        anchor: str = "start",
    ) -> None:  # fmt: skip
        """Write a line of text, vertically centred at y; `anchor` is the SVG attribute."""
        width = measure_text(content, size, bold)
        left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * width
        self.texts.append((Rectangle(left, y - 0.5 * size, left + width, y + 0.5 * size), content))
        spans, lowered = [], False
        for span in parse_spans(content):
            shift = 0.28 * size * (span.subscript - lowered)
            lowered = span.subscript
            style = ' font-style="italic"' if span.italic else ""
            style += f' font-size="{size * SUBSCRIPT:.1f}"' if span.subscript else ""
            style += f' dy="{shift:.1f}"' if shift else ""
            spans.append(f"<tspan{style}>{escape(span.text)}</tspan>" if style else escape(span.text))
        weight = ' font-weight="bold"' if bold else ""
        self._shapes.append(
            f'<text class="{kind}" x="{x:g}" y="{y + 0.35 * size:.1f}" font-size="{size:g}" text-anchor="{anchor}"'
            f'{weight} xml:space="preserve">{"".join(spans)}</text>'
        )

    def _lines(self, x: float, y: float, lines: Sequence[str], space: Callable[[float], float]) -> None:
        """Write centred lines around (x, y), the first bold if there are several; `space` is the width at a height."""
        leading = BODY + 6.0
        for number, line in enumerate(lines):
            offset, bold = leading * (number - (len(lines) - 1) / 2), number == 0 and len(lines) > 1
            width = measure_text(line, BODY, bold)
            if width > space(abs(offset) + BODY / 2):
                raise ValueError(f"{self.title}: {line!r} is {width:.0f} wide, of {space(abs(offset) + BODY / 2):.0f}")
            self.text(x, y + offset, line, "in", BODY, bold, "middle")

    def box(self, x: float, y: float, width: float, height: float, lines: Sequence[str], kind: str = "plain") -> None:
        """Draw a box with lines of text; (x, y) is its upper left corner."""
        self._shapes.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            f'rx="{min(7.0, height / 4):g}" stroke-width="1.6"/>'
        )
        self._lines(x + width / 2, y + height / 2, lines, lambda _: width - 8)

    def diamond(self, x: float, y: float, width: float, height: float, lines: Sequence[str] = ()) -> None:
        """Draw a decision with lines of text; (x, y) is its centre."""
        a, b = width / 2, height / 2
        self._shapes.append(
            f'<path class="decide" stroke-width="1.8" stroke-linejoin="round" '
            f'd="M{x - a:g} {y:g}L{x:g} {y - b:g}L{x + a:g} {y:g}L{x:g} {y + b:g}Z"/>'
        )
        self._lines(x, y, lines, lambda offset: width * (1 - offset / b))

    def arrow(self, *points: Point, kind: str = "line", head: bool = True) -> None:
        """Draw a line through points, with round corners and a head at its end; all its segments are straight."""
        path, radius = [f"M{points[0][0]:g} {points[0][1]:g}"], 9.0
        for before, corner, after in zip(points, points[1:], points[2:], strict=False):
            enter, leave = _towards(corner, before, radius), _towards(corner, after, radius)
            path.append(f"L{enter[0]:g} {enter[1]:g}Q{corner[0]:g} {corner[1]:g} {leave[0]:g} {leave[1]:g}")
        tip, neck = points[-1], _towards(points[-1], points[-2], 9.0)
        end = neck if head else tip
        self._shapes.append(f'<path class="{kind}" d="{"".join(path)}L{end[0]:g} {end[1]:g}"/>')
        if head:
            across, down = (neck[1] - tip[1]) * 0.5, (tip[0] - neck[0]) * 0.5
            self._shapes.append(
                f'<path class="head-{kind}" d="M{tip[0]:g} {tip[1]:g}L{neck[0] + across:g} {neck[1] + down:g}'
                f'L{neck[0] - across:g} {neck[1] - down:g}Z"/>'
            )

    def vertical(self, x: float, start: float, end: float, kind: str = "line", head: bool = True) -> None:
        """Draw a vertical arrow from one height to another."""
        self.arrow((x, start), (x, end), kind=kind, head=head)

    def horizontal(self, y: float, start: float, end: float, kind: str = "line", head: bool = True) -> None:
        """Draw a horizontal arrow from one position to another."""
        self.arrow((start, y), (end, y), kind=kind, head=head)

    def bar(self, x: float, y: float, width: float, height: float) -> None:
        """Draw a bar that stands for a probability."""
        self._shapes.append(f'<rect class="bar" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="1.5"/>')

    def note(self, x: float, y: float, *lines: str, kind: str = "label") -> None:
        """Write lines of a label, the first vertically centred at y."""
        for number, line in enumerate(lines):
            self.text(x, y + 19 * number, line, kind)

    def box_below(
        self, source: float, x: float, y: float, width: float, height: float, lines: Sequence[str],
        kind: str = "plain", arrow: str = "line",
    ) -> None:  # fmt: skip
        """Draw a box and an arrow to the middle of its top, from a bottom at `source`."""
        self.vertical(x + width / 2, source, y, arrow)
        self.box(x, y, width, height, lines, kind)

    def panel(self, y: float, *lines: str) -> None:
        """Draw a box of full width with lines of details."""
        self.box(8, y, WIDTH - 16, 20 + 23 * len(lines), [])
        for number, line in enumerate(lines):
            self.text(24, y + 22 + 23 * number, line, "in", BODY)

    def column(self, *boxes: tuple[float, float, Sequence[str], str]) -> None:
        """Draw boxes below each other with arrows between them: top, height, lines of text and kind of each."""
        for above, (y, *_) in pairwise(boxes):
            self.vertical(290, above[0] + above[1], y)
        for y, height, lines, kind in boxes:
            self.box(140, y, 300, height, lines, kind)

    def readouts(self, y: float, left: Sequence[str], right: Sequence[str], source: float) -> None:
        """Draw what reads a step: the prediction at the left, the halting at the right, from a bottom at `source`."""
        for x in (170, 394):
            self.vertical(x, source, y)
        self.box(28, y, 226, 60, left)
        self.box(276, y, 236, 60, right, "decide")

    def exit_decision(self, y: float, question: Sequence[str], result: str, source: float, again: Point) -> None:
        """Draw the decision whether to exit: yes leads to the result, no back to the point `again`.

        Args:
            y: Height of the decision.
            question: Lines of text in the decision.
            result: Text of the result.
            source: Bottom of the box that predicts.
            again: Point at which a further step begins.
        """
        self.diamond(394, y, 236, 96, question)
        self.horizontal(y, 276, 216, kind="halt")
        self.text(246, y - 14, "yes", anchor="middle")
        self.vertical(52, source, y - 20)
        self.box(28, y - 20, 188, 40, [result])
        self.arrow((394, y + 48), (394, y + 68), (12, y + 68), (12, again[1]), again, kind="again")
        self.text(404, y + 58, "no")

    def heading(
        self, name: str, unit: str, x: float = 8, width: float = WIDTH - 16, y: float = 24, kind: str = "label"
    ) -> None:
        """Write the family's name, and at the right the unit that has a depth."""
        self.text(x, y, name, kind, 17, True)
        pill = measure_text(unit, BODY) + 14
        self.box(x + width - pill, y - 14, pill, 28, [unit], "decide")

    def legend(self, first: str = "repeat") -> None:
        """Explain the colours at the bottom; the first is that of what repeats, unless it is `dashed`."""
        x, y = 8.0, self.height - 16
        for kind in (first, "decide"):
            self.box(x, y - 7, 14, 14, [], kind)
            self.text(x + 22, y, MEANINGS[kind])
            x += 44 + measure_text(MEANINGS[kind], LABEL)

    def to_svg(self) -> str:
        """Return the image as SVG."""
        return "\n".join((
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height:g}" width="{WIDTH}" '
            f'height="{self.height:g}" role="img" aria-labelledby="title desc" '
            'font-family="Helvetica, Arial, sans-serif">',
            f'<title id="title">{escape(self.title)}</title>',
            f'<desc id="desc">{escape(self.description)}</desc>',
            f"<style>{STYLE}</style>",
            *self._shapes,
            "</svg>\n",
        ))  # fmt: skip


def _towards(start: Point, end: Point, distance: float) -> Point:
    """Return the point at a distance from `start` on the way to `end`, at most half of the way."""
    length = ((end[0] - start[0]) ** 2 + (end[1] - start[1]) ** 2) ** 0.5
    share = min(distance / length, 0.5)
    return start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1])
