"""Draw the architecture of every model family as SVG, with the place where its depth is decided in orange.

    python .ci/architecture_figures.py [FOLDER]     # default: docs/figures

All drawings have one style: blue parts repeat, orange parts decide the depth, a dashed outline is frozen or does not
run. A drawing has no background. Its fills follow the reader's light or dark scheme, and its lines and labels have
tones that are legible on both. Inside a text, `$...$` is italic and `_x` or `_{...}` within it a subscript.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "figures"
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


def draw_act_albert() -> Drawing:
    """Draw ACT-ALBERT: block, halting unit, sum of halting probabilities, remainder, interpolated state."""
    drawing = Drawing(
        "Architecture of ACT-ALBERT",
        "One shared ALBERT block updates every token. After each update a halting unit gives the probability p_n. "
        "A token halts once the sum of its probabilities exceeds 1 - epsilon; its last update has the remainder R as "
        "weight. Running tokens get a further update, up to a cap. The loss adds tau times updates plus remainder.",
        708,
    )
    drawing.heading("ACT-ALBERT", "depth of each token")
    drawing.column(
        (56, 40, ["Projected embeddings $x_0$,  $h$ = 0"], "plain"),
        (122, 60, ["Shared ALBERT block", "$y_n$ = Block($x_{n−1}$)"], "repeat"),
        (208, 60, ["Halting unit", "$p_n$ = σ($w$ · $y_n$ + $b$)"], "decide"),
    )
    drawing.vertical(290, 268, 290)
    drawing.diamond(290, 336, 300, 92, ["$h$ + $p_n$ > 1 − ε ?"])
    drawing.text(290, 398, "$h$: cumulative halting probability", anchor="middle")
    drawing.arrow((140, 336), (90, 336), (90, 412))
    drawing.text(98, 322, "no")
    drawing.arrow((440, 336), (476, 336), (476, 412), kind="halt")
    drawing.text(446, 322, "yes")
    drawing.box(28, 412, 226, 60, ["The token goes on", "$w_n$ = $p_n$,   $h$ ← $h$ + $p_n$"])
    drawing.box(278, 412, 234, 60, ["The token halts: remainder", "$w_n$ = $R$ = 1 − $h$"], "decide")
    drawing.vertical(190, 472, 500)
    drawing.vertical(390, 472, 500, kind="halt")
    drawing.box(130, 500, 320, 44, ["$x_n$ = $w_n$ $y_n$ + (1 − $w_n$) $x_{n−1}$"], "repeat")
    drawing.arrow((130, 522), (12, 522), (12, 152), (140, 152), kind="again")
    drawing.note(22, 118, "running tokens:", "next update", kind="label-again")
    drawing.text(22, 170, "up to the cap", "label-again")
    drawing.vertical(290, 544, 596, kind="halt")
    drawing.note(302, 560, "halted: the state is frozen,", "other tokens attend to it")
    drawing.box(140, 596, 300, 60, ["Task head on the final states", "loss = task + τ Σ (updates + $R$)"])
    drawing.legend()
    return drawing


def draw_ponder_albert() -> Drawing:
    """Draw PonderALBERT: readouts and halting probability of every step, exit rule, prior."""
    drawing = Drawing(
        "Architecture of PonderALBERT",
        "One shared ALBERT block runs step after step. After every step the first [CLS] gives the prediction logits_n "
        "and the second [CLS] the conditional halting probability lambda_n. They form the halting distribution p_n. In "
        "inference an exit rule on it stops the sequence. Training runs all N steps: it averages the loss under p and "
        "draws p to a geometric prior.",
        702,
    )
    drawing.heading("PonderALBERT", "depth of each sequence")
    drawing.column(
        (56, 40, ["Projected embeddings $h_0$, two [CLS]"], "plain"),
        (122, 60, ["Shared ALBERT block", "$h_n$ = Block($h_{n−1}$)"], "repeat"),
    )
    drawing.readouts(212, ["Classifier", "first [CLS] → $logits_n$"], ["Halting head", "second [CLS] → $λ_n$"], 182)
    drawing.box_below(272, 276, 298, 236, 60, ["Halting distribution", "$p_n$ = $λ_n$ Π$_{j<n}$ (1 − $λ_j$)"], "decide")
    drawing.vertical(394, 358, 380)
    drawing.note(68, 346, "exit rule quantile:0.5: first $n$", "with $p_1$ + … + $p_n$ > 0.5")
    drawing.exit_decision(428, ["Exit rule: stop?"], "Prediction $logits_n$", 272, (140, 152))
    drawing.note(22, 118, "next step,", "at most $N$", kind="label-again")
    drawing.box(8, 520, 504, 136, [], "plain")
    drawing.text(24, 540, "Training runs all $N$ steps", "in", BODY, True)
    masses = (0.07, 0.16, 0.27, 0.22, 0.13, 0.08, 0.04, 0.03)
    prior = [0.2 * 0.8**step for step in range(8)]
    for number, mass in enumerate(masses):
        drawing.bar(28 + 26 * number, 634 - 270 * mass, 16, 270 * mass)
    for number in range(7):
        ends = [(36.0 + 26 * step, 634 - 270 * prior[step]) for step in (number, number + 1)]
        drawing.arrow(*ends, head=False)
    drawing.text(28, 645, "steps $n$ →", "in", 13)
    drawing.text(252, 572, "$L$ = Σ $p_n$ loss($logits_n$)", "in", BODY)
    drawing.text(252, 596, "      + β KL($p$ ‖ $prior$)", "in", BODY)
    drawing.bar(252, 617, 14, 10)
    drawing.text(272, 622, "$p_n$", "in")
    drawing.horizontal(622, 306, 330, head=False)
    drawing.text(336, 622, "geometric prior", "in")
    drawing.legend()
    return drawing


def draw_adalayers() -> Drawing:
    """Draw Adalayers: frozen base, projections, learned softmax over layers, head."""
    drawing = Drawing(
        "Architecture of Adalayers",
        "A frozen transformer gives the states Z_0 to Z_N. Each state has a projection f_i. A learned softmax over the "
        "layers, one for the task, weighs them, and weights up to the cutoff become 0. Blocks after the deepest state "
        "with weight do not run. A small head reads the weighted sum.",
        648,
    )
    drawing.heading("Adalayers", "depth of a task")
    for x, name in ((98, "frozen base"), (255, "projection"), (386, "learned weight")):
        drawing.text(x, 62, name, anchor="middle")
    rows = (("Embeddings", "$f_0$", "$Z_0$", 0.09), ("Block 1", "$f_1$", "$Z_1$", 0.21),
            ("Block 2", "$f_2$", "$Z_2$", 0.44), ("Block 3", "$f_3$", "$Z_3$", 0.26),
            ("Blocks 4 to $N$", "$f_4$ … $f_N$", "", 0.0))  # fmt: skip
    drawing.vertical(326, 428, 76, kind="halt", head=False)
    for number, (name, projection, state, weight) in enumerate(rows):
        y, line = 80 + 62 * number + (0 if weight else 38), "line" if weight else "idle"
        drawing.box(28, y, 140, 38, [name], "dashed")
        if state:
            drawing.text(190, y + 7, state, anchor="middle")
        drawing.box(214, y, 82, 38, [projection], "plain" if weight else "dashed")
        drawing.horizontal(y + 19, 168, 214, kind=line)
        drawing.horizontal(y + 19, 296, 326, kind=line, head=False)
        drawing.bar(326, y + 8, 220 * weight, 22)
        drawing.text(334 + 220 * weight, y + 19, f"{weight:.2f}"[1:] if weight else "0", "label-halt", bold=True)
        if weight:
            drawing.horizontal(y + 19, 368 + 220 * weight, 490, head=False)
        if number:
            drawing.vertical(98, y - 24 if weight else y - 62, y, kind=line)
    drawing.arrow((490, 99), (490, 510), (440, 510))
    drawing.horizontal(317, 16, 478, kind="halt", head=False)
    for y, label in ((331, "deepest state with weight:"), (350, "blocks below do not run")):
        drawing.text(112, y, label, "label-halt", bold=True)
    drawing.box(28, 428, 412, 44, ["$p̃$ = softmax(α $p$),  0 where $p̃_i$ ≤ $cutoff$"], "decide")
    drawing.box(28, 488, 412, 44, ["$F$ = GELU(Σ $p̃_i$ $f_i$),   $f_i$ = LayerNorm($W_i$ GELU($Z_i$))"])
    drawing.box_below(532, 28, 556, 412, 40, ["Small head → classes or tags"])
    drawing.legend("dashed")
    return drawing


def draw_par_xl() -> Drawing:
    """Draw PAR-XL: a block of the supernet with its gates, and the derived network."""
    drawing = Drawing(
        "Architecture of PAR-XL",
        "Every block of a Transformer-XL supernet has three branches: attention, feed-forward and skip. Gates weigh "
        "them with a softmax over learned logits, with Gumbel noise and a temperature in training. After the search "
        "the most probable operation of every block makes a network, which is trained again.",
        672,
    )
    drawing.heading("PAR-XL", "depth of the architecture")
    drawing.box(140, 56, 240, 40, ["Word embeddings"])
    drawing.box(8, 122, 504, 294, [], "frame")
    drawing.text(20, 140, "block of the supernet, $N$ in a row", "label-again")
    drawing.vertical(260, 96, 160, head=False)
    details = ("with memory", "per position", "identity")
    branches = zip((88, 260, 432), ("Attention", "Feed-forward", "Skip"), details, "sf−", strict=True)
    for x, name, detail, letter in branches:
        drawing.arrow((260, 160), *([] if x == 260 else [(x, 160)]), (x, 182))
        drawing.box(x - 72, 182, 144, 58, [name, detail], "repeat")
        drawing.vertical(x, 240, 266)
        drawing.vertical(x, 324, 366, kind="halt")
        drawing.text(x + 10, 342, f"× $w_{letter}$", "label-halt", BODY, True)
    gates = ["Gates of this block", "$w$ = softmax(($a$ + $g$) / τ),  $g$: Gumbel noise in training"]
    drawing.box(16, 266, 488, 58, gates, "decide")
    drawing.box(16, 366, 488, 38, ["weighted sum: input of the next block"], "repeat")
    derive = ["Derive", "most probable operation of each block"]
    drawing.box_below(416, 78, 446, 364, 58, derive, "decide", arrow="halt")
    drawing.vertical(260, 504, 530, kind="halt")
    for number, letter in enumerate("sfffs−f"):
        drawing.box(78 + 53 * number, 530, 46, 40, [letter], "dashed" if letter == "−" else "plain")
    drawing.text(260, 590, "derived network, trained again, with an adaptive softmax", anchor="middle")
    drawing.text(260, 610, "s attention,  f feed-forward,  − skip", anchor="middle")
    drawing.legend()
    return drawing


def draw_trm() -> Drawing:
    """Draw TRM: reasoning z and answer y, inner and outer loops, halt logit."""
    drawing = Drawing(
        "Architecture of the tiny recursive model",
        "One tiny network f updates the reasoning z n times from z, y and the puzzle x, then the answer y once from y "
        "and z. A supervision step has T such cycles, of which the last has gradients. After each step one head gives "
        "the answer and another the halt logit q. A puzzle halts at q > 0 or after N steps; otherwise y and z go on.",
        692,
    )
    drawing.heading("TRM", "depth of each puzzle (sequence)")
    drawing.box(130, 56, 280, 40, ["Embedded puzzle $x$;  start $y$, $z$"])
    drawing.vertical(270, 96, 176)
    drawing.box(28, 118, 484, 294, [], "frame")
    drawing.text(40, 136, "supervision step", "label-again", bold=True)
    drawing.box(50, 154, 440, 196, [], "frame")
    drawing.box(130, 176, 280, 60, ["Reasoning", "$z$ ← $f$($z$ + ($y$ + $x$))"], "repeat")
    drawing.arrow((410, 222), (450, 222), (450, 190), (410, 190), kind="again")
    drawing.text(420, 240, "$n$ times", "label-again")
    drawing.box_below(236, 130, 266, 280, 60, ["Answer", "$y$ ← $f$($y$ + $z$)"], "repeat")
    drawing.text(420, 296, "once", "label-again")
    drawing.arrow((130, 296), (64, 296), (64, 206), (130, 206), kind="again")
    drawing.text(72, 190, "cycle", "label-again")
    drawing.text(72, 224, "$T$ times", "label-again")
    drawing.text(270, 371, "$f$: one network of two blocks for both updates", anchor="middle")
    drawing.text(270, 391, "gradients through the last of the $T$ cycles only", anchor="middle")
    halt_logit = ["Halt logit: is it right?", "$q$ = $w$ · $y$[0] + $b$"]
    drawing.readouts(438, ["Answer head", "$logits$ = $W$ $y$"], halt_logit, 412)
    drawing.vertical(394, 498, 520)
    drawing.exit_decision(568, ["$q$ > 0 ?"], "Answer of this step", 498, (28, 265))
    drawing.text(22, 622, "$y$, $z$ go on, without gradients; at most $N$ steps", "label-again")
    drawing.legend()
    return drawing


def draw_looped() -> Drawing:
    """Draw looped language models: prelude, looped core, coda, halting unit, exit rule per token."""
    drawing = Drawing(
        "Architecture of looped language models",
        "The layers of the prelude run once and give e. The layers of the core are applied again and again to the "
        "state and, if it is injected, to e. After a loop the coda and the head can predict, and an optional halting "
        "unit gives lambda_n. An exit rule decides for every token after which loop its prediction is read.",
        688,
    )
    drawing.heading("Looped language models", "depth of each token")
    drawing.column(
        (56, 40, ["Token embeddings"], "plain"),
        (118, 40, ["Prelude: layers that run once → $e$"], "plain"),
        (184, 84, ["Core: looped layers", "$z$ = inject($s_{n−1}$, $e$)", "$s_n$ = core($z$)"], "repeat"),
    )
    halting_unit = ["Halting unit (optional)", "$λ_n$ = σ($g$ · rms($s_n$) + $b$)"]
    drawing.readouts(298, ["Coda and LM head", "$r_n$ = rms(coda($s_n$))"], halting_unit, 268)
    drawing.vertical(394, 358, 392)
    drawing.arrow((190, 358), (190, 376), (340, 376), (340, 413))
    drawing.exit_decision(440, ["Exit rule:", "exit?"], "Next token from $r_n$", 358, (140, 226))
    drawing.note(22, 188, "next loop,", "at most $N$", kind="label-again")
    drawing.panel(
        530,
        "Start $s_0$: $e$, zeros or drawn",
        "Injection $z$: $s_{n−1}$, $s_{n−1}$ + $e$, $A$ [$s_{n−1}$, $e$] or $e$",
        "Exit rules read predictions, states $s_n$ or $λ_n$",
        "Without a cache, loops end once all tokens have exited",
    )
    drawing.legend()
    return drawing


def draw_overview() -> Drawing:
    """Draw all families in small: what repeats, what decides, and the unit that has a depth."""
    drawing = Drawing(
        "Model families and where their depth is decided",
        "ACT-ALBERT: one shared layer repeats, a halting unit decides for each token. PonderALBERT: one shared layer "
        "repeats, a halting distribution and an exit rule decide for each sequence. Adalayers: nothing repeats, a "
        "softmax over the layers of a frozen base decides for a task. PAR-XL: blocks with three branches, gates decide "
        "on the architecture. Looped language models: the core layers repeat, an exit rule decides for each token. "
        "TRM: one tiny network repeats in nested loops, a halt logit decides for each sequence.",
        670,
    )
    cells: list[tuple[str, str, Sequence[str], Callable[[Drawing, float, float], None]]] = [
        ("ACT-ALBERT", "token", ["one shared layer", "a halting unit, by the sum", "of its probabilities"], _mini_act),
        ("PonderALBERT", "sequence", ["one shared layer", "a halting distribution", "and an exit rule"], _mini_ponder),
        ("Adalayers", "task", ["nothing: a frozen base", "a learned softmax", "over its layers"], _mini_adalayers),
        ("PAR-XL", "architecture", ["a block of three branches", "gates: one branch", "for every block"], _mini_par),
        ("Looped LMs", "token", ["the core's layers", "an exit rule", "after every loop"], _mini_looped),
        ("TRM", "sequence", ["a tiny network, nested loops", "a halt logit:", "is the answer right?"], _mini_trm),
    ]
    for number, (name, unit, lines, draw) in enumerate(cells):
        x, y = 2 + 264 * (number % 2), 2 + 212 * (number // 2)
        drawing.box(x, y, 252, 200, [], "card")
        drawing.heading(name, unit, x + 12, 230, y + 24, "in")
        draw(drawing, x + 6, y + 84)
        for row, (line, kind) in enumerate(zip(lines, ("repeat", "decide", ""), strict=True)):
            if kind:
                drawing.box(x + 12, y + 136 + 20 * row, 13, 13, [], kind)
            drawing.text(x + 33, y + 143 + 20 * row, line, "in")
    drawing.legend()
    drawing.text(WIDTH - 4, drawing.height - 16, "top right: unit of depth", anchor="end")
    return drawing


def _mini_loop(drawing: Drawing, x: float, y: float, width: float, name: str) -> None:
    """Draw a small box with a loop over it, and an arrow into it; (x, y) is the middle of its left side."""
    drawing.horizontal(y, x - 20, x)
    drawing.box(x, y - 17, width, 34, [name], "repeat")
    drawing.arrow((x + width - 14, y - 17), (x + width - 14, y - 36), (x + 14, y - 36), (x + 14, y - 17), kind="again")


def _mini_exit(drawing: Drawing, x: float, y: float, start: float, question: str) -> None:
    """Draw an arrow from `start` to a small decision, and one out of it; (x, y) is the decision's centre."""
    drawing.horizontal(y, start, x - 30)
    drawing.diamond(x, y, 60, 46, [question])
    drawing.horizontal(y, x + 30, x + 50, kind="halt")


def _mini_act(drawing: Drawing, x: float, y: float) -> None:
    _mini_loop(drawing, x + 26, y, 96, "layer")
    _mini_exit(drawing, x + 182, y, x + 122, "Σ $p$")


def _mini_ponder(drawing: Drawing, x: float, y: float) -> None:
    _mini_loop(drawing, x + 26, y, 56, "layer")
    drawing.horizontal(y, x + 82, x + 97)
    for number, height in enumerate((8, 18, 32, 22, 12, 6)):
        drawing.bar(x + 100 + 7 * number, y + 16 - height, 5, height)
    _mini_exit(drawing, x + 188, y, x + 143, "exit?")


def _mini_adalayers(drawing: Drawing, x: float, y: float) -> None:
    for number, weight in enumerate((12, 34, 58, 2)):
        top = y - 37 + 20 * number
        drawing.box(x + 26, top, 76, 15, [], "dashed")
        drawing.horizontal(top + 7.5, x + 102, x + 126)
        drawing.bar(x + 128, top + 2, weight, 11)
    drawing.horizontal(y, x + 194, x + 236, kind="halt")


def _mini_par(drawing: Drawing, x: float, y: float) -> None:
    for offset, letter in ((-27, "s"), (0, "f"), (27, "−")):
        corners = [(x + 20, y), (x + 20, y + offset)] if offset else []
        drawing.arrow((x + 6, y), *corners, (x + 40, y + offset))
        drawing.box(x + 40, y + offset - 11, 62, 22, [letter], "repeat")
        drawing.horizontal(y + offset, x + 102, x + 126)
    drawing.box(x + 126, y - 38, 70, 76, ["gates"], "decide")
    drawing.horizontal(y, x + 196, x + 236, kind="halt")


def _mini_looped(drawing: Drawing, x: float, y: float) -> None:
    for left in (x + 6, x + 117):
        drawing.box(left, y - 17, 16, 34, [])
    _mini_loop(drawing, x + 42, y, 58, "core")
    drawing.horizontal(y, x + 100, x + 117)
    _mini_exit(drawing, x + 184, y, x + 133, "exit?")


def _mini_trm(drawing: Drawing, x: float, y: float) -> None:
    _mini_loop(drawing, x + 26, y, 96, "$z$, $y$ ← $f$")
    drawing.arrow((x + 92, y - 17), (x + 92, y - 27), (x + 56, y - 27), (x + 56, y - 17), kind="again")
    _mini_exit(drawing, x + 182, y, x + 122, "$q$")


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "act_albert": draw_act_albert,
    "ponder_albert": draw_ponder_albert,
    "adalayers": draw_adalayers,
    "par_xl": draw_par_xl,
    "trm": draw_trm,
    "looped": draw_looped,
    "overview": draw_overview,
}


def write_figures(folder: Path) -> list[Path]:
    """Write all drawings into a folder; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in DRAWINGS.items():
        paths.append(folder / f"architecture_{name}.svg")
        paths[-1].write_text(draw().to_svg(), encoding="utf-8", newline="\n")
    return paths


if __name__ == "__main__":
    for written in write_figures(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER):
        print(written)
