"""Draw the architecture of every model family as SVG, with the place where its depth is decided in orange.

    python .ci/architecture_figures.py [FOLDER]     # default: docs/figures

All drawings have one style: blue parts repeat, orange parts decide the depth, a dashed outline is frozen or does not
run. See `svg_drawing` for the markup of texts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from svg_drawing import BODY, WIDTH, Drawing

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "figures"


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


def draw_early_exit() -> Drawing:
    """Draw early exits: layers of a transformer, the exit after each, the exit rule."""
    drawing = Drawing(
        "Architecture of early-exit models",
        "The layers of a transformer run one after the other. After layer l, an exit reads the state h_l with a norm "
        "and a head and gives the prediction z_l. An exit rule decides on the predictions: yes, and this prediction is "
        "the result; no, and the next layer runs. Layers after the exit do not run once a text has left the batch.",
        636,
    )
    drawing.heading("Early exit", "depth of each token or text")
    drawing.box(28, 56, 148, 40, ["Embeddings → $h_0$"])
    drawing.vertical(102, 96, 126)
    for top, number, before in ((126, "1", "0"), (222, "2", "1")):
        middle = top + 28
        state = f"$h_{number}$ = $layer_{number}$($h_{before}$)"
        drawing.box(28, top, 148, 56, [f"Layer {number}", state])
        drawing.horizontal(middle, 176, 206)
        drawing.box(206, top, 130, 56, [f"Exit {number}", f"$z_{number}$ = $head_{number}$($h_{number}$)"])
        drawing.horizontal(middle, 336, 360)
        drawing.diamond(420, middle, 120, 64, ["exit?"])
        drawing.text(493, middle - 12, "yes", anchor="middle")
        drawing.arrow((420, top + 60), (420, top + 78), (102, top + 78), (102, top + 96))
        drawing.text(428, top + 70, "no")
    drawing.horizontal(250, 480, 506, kind="halt", head=False)
    drawing.box(28, 318, 148, 56, ["Layers 3 to $L$", "$h_L$ = $layer_L$($h_{L−1}$)"], "dashed")
    drawing.horizontal(346, 176, 206, kind="idle")
    drawing.box(206, 318, 130, 56, ["Exit $L$", "$z_L$ = $head_L$($h_L$)"], "dashed")
    drawing.horizontal(346, 336, 506, kind="idle", head=False)
    drawing.text(420, 334, "always", anchor="middle")
    drawing.box(28, 406, 412, 40, ["Prediction $z_l$ of the exit"])
    drawing.arrow((480, 154), (506, 154), (506, 426), (440, 426), kind="halt")
    drawing.panel(
        472,
        "All layers or some have an exit, the last one always",
        "Heads: shared, own norm, own head, or own feed-forward layer",
        "Exit rules read the predictions $z_1$ … $z_l$",
        "A text leaves the batch when all its tokens have exited",
    )
    drawing.legend("dashed")
    return drawing


def draw_routing() -> Drawing:
    """Draw routing: the router of a part, the choice of tokens, the part, and the way around it."""
    drawing = Drawing(
        "Architecture of routed models",
        "All tokens run the prelude. Before each routed part s, a router computes a logit z from the state of each "
        "token. Chosen tokens are packed, and part B_s processes them; a gate g weights its output. Other tokens skip "
        "the part and keep their state. Then the router of the next part decides: parts are recursions of the same "
        "layers, or single layers. All tokens run the coda and the head.",
        712,
    )
    drawing.heading("Routing", "depth of each token")
    drawing.column(
        (56, 40, ["Embeddings, prelude → $x_0$"], "plain"),
        (126, 60, ["Router of part $s$", "$z$ = $w$ · $x_{s−1}$,  $g$ = $a$ σ($z$)"], "decide"),
    )
    drawing.vertical(290, 186, 212)
    drawing.diamond(290, 258, 260, 92, ["token chosen?"])
    drawing.vertical(290, 304, 338)
    drawing.text(302, 319, "yes")
    drawing.box(140, 338, 300, 60, ["Part $B_s$: one or more layers", "run for the chosen tokens, packed"], "repeat")
    drawing.box_below(398, 140, 426, 300, 44, ["$x_s$ = $x_{s−1}$ + $g$ $B_s$($x_{s−1}$)"], "repeat")
    drawing.arrow((420, 258), (490, 258), (490, 448), (440, 448), kind="halt")
    drawing.text(430, 244, "no")
    drawing.note(450, 474, "skipped:", "$x_s$ = $x_{s−1}$")
    drawing.arrow((140, 448), (12, 448), (12, 156), (140, 156), kind="again")
    drawing.note(22, 118, "next part", kind="label-again")
    drawing.note(22, 180, "recursion", "or layer", kind="label-again")
    drawing.box_below(470, 140, 504, 300, 40, ["Coda, norm, head: one prediction"])
    drawing.panel(
        568,
        "Training, expert choice: the top $k$ tokens of a text",
        "Evaluation: tokens with $z$ > 0, independent of later tokens",
        "Token choice: the number of recursions, chosen once",
        "Keys and values: of chosen tokens, all, or the first part",
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
        "TRM: one tiny network repeats in nested loops, a halt logit decides for each sequence. Early exit: the layers "
        "of a transformer run in a row, an exit rule after every layer decides for each token or sequence. Routing: a "
        "router before each part decides which tokens the part processes, and the others skip it.",
        882,
    )
    cells: list[tuple[str, str, Sequence[str], Callable[[Drawing, float, float], None]]] = [
        ("ACT-ALBERT", "token", ["one shared layer", "a halting unit, by the sum", "of its probabilities"], _mini_act),
        ("PonderALBERT", "sequence", ["one shared layer", "a halting distribution", "and an exit rule"], _mini_ponder),
        ("Adalayers", "task", ["nothing: a frozen base", "a learned softmax", "over its layers"], _mini_adalayers),
        ("PAR-XL", "architecture", ["a block of three branches", "gates: one branch", "for every block"], _mini_par),
        ("Looped LMs", "token", ["the core's layers", "an exit rule", "after every loop"], _mini_looped),
        ("TRM", "sequence", ["a tiny network, nested loops", "a halt logit:", "is the answer right?"], _mini_trm),
        (
            "Early exit",
            "token, sequence",
            ["nothing: layers in a row", "an exit rule", "after every layer"],
            _mini_exits,
        ),
        ("Routing", "token", ["recursions or layers", "a router", "before every part"], _mini_routing),
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


def _mini_exits(drawing: Drawing, x: float, y: float) -> None:
    drawing.horizontal(y, x + 6, x + 26)
    drawing.box(x + 26, y - 17, 58, 34, ["layer"])
    drawing.horizontal(y, x + 84, x + 104)
    drawing.diamond(x + 134, y, 60, 46, ["exit?"])
    drawing.vertical(x + 134, y + 23, y + 43, kind="halt")
    drawing.horizontal(y, x + 164, x + 182)
    drawing.box(x + 182, y - 17, 56, 34, ["layer"], "dashed")


def _mini_routing(drawing: Drawing, x: float, y: float) -> None:
    drawing.horizontal(y, x + 6, x + 26)
    drawing.diamond(x + 60, y, 68, 46, ["run?"])
    drawing.horizontal(y, x + 94, x + 124)
    drawing.box(x + 124, y - 17, 66, 34, ["part"], "repeat")
    drawing.horizontal(y, x + 190, x + 236)
    drawing.arrow((x + 60, y + 23), (x + 60, y + 38), (x + 212, y + 38), (x + 212, y), kind="halt", head=False)


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "act_albert": draw_act_albert,
    "ponder_albert": draw_ponder_albert,
    "adalayers": draw_adalayers,
    "par_xl": draw_par_xl,
    "trm": draw_trm,
    "looped": draw_looped,
    "early_exit": draw_early_exit,
    "routing": draw_routing,
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
