"""A user's own texts in the terminal: tokens on the colour of their depth, or with its number where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadepth.analysis.render.colors import depth_color, text_on
from adadepth.analysis.texts.tokens import board, progress, said, shown_tokens
from adadepth.console import visible


def print_texts(found: Mapping[str, Any], *, color: bool | None = None) -> None:
    """Print what texts.json holds.

    Args:
        found: See `adadepth.tasks.predict`.
        color: Whether to use colours; None: on a terminal that has them.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(force_terminal=color, soft_wrap=True, highlight=False)
    is_colored = console.is_terminal and not console.no_color
    deepest = found["max_depth"]

    def shaded(text: str, depth: int) -> Text:
        if not is_colored:
            return Text(f"{visible(text)}({depth})")
        background = depth_color(depth, deepest)
        return Text(visible(text), style=f"{text_on(background)} on {background}")

    if is_colored:
        levels = Text(" ").join(shaded(f" {depth} ", depth) for depth in range(1, deepest + 1))
        console.print(Text("updates: "), levels, sep="")
    for row in found["texts"]:
        console.print(Text(visible(_heading(row, found["predicts"]))))
        if found["predicts"] == "cells":
            for each in puzzle_lines(row):
                console.print(Text(visible(f"  {each}")))
            continue
        tokens = shown_tokens(row)
        line = Text("  ")
        for number, token in enumerate(tokens):
            is_next = found["predicts"] == "next"
            label = "" if is_next or token.about.get("label") is None else f"[{token.about['label']}]"
            line.append(" " if number and token.starts else "").append_text(shaded(token.text + label, token.depth))
        if not tokens:
            line.append_text(shaded(" | ".join(row["text"]), round(row["updates"])))
        console.print(line)
        for each in _further(row):
            console.print(Text(visible(f"  {each}")))
    share = f"{found['work']:.0%} of the work of full depth"
    console.print(Text(f"mean updates {found['mean']:.2f} of at most {deepest}; {share}"))


def puzzle_lines(row: Mapping[str, Any]) -> list[str]:
    """A puzzle and its answer side by side, and what every step changed."""
    boards = zip(board(row["text"][0]), board(row["label"]), strict=True)
    steps = [
        f"{number}: {cells} cells" + ("" if step.get("halting") is None else f" (right {step['halting']:.2f})")
        for number, step, cells in progress(row)
    ]
    return [*("   ".join(pair) for pair in boards), *([f"changed in step {'; '.join(steps)}"] if steps else [])]


def _heading(row: Mapping[str, Any], predicts: str) -> str:
    if predicts == "cells":
        right = "" if row.get("score") is None else f"right with probability {row['score']:.2f}, "
        return f"{right}{row['updates']:.0f} updates"
    about = said(row)
    lead = f"next: {about}, " if predicts == "next" else f"{about}, " if about else ""
    return f"{lead}{row['updates']:.2f} updates"


def _further(row: Mapping[str, Any]) -> list[str]:
    """What there is to say besides: the fillings of masks, the steps, the weights of layers."""
    lines = [
        f"{token['piece']}: {', '.join(f'{word} {score:.2f}' for word, score in token['candidates'].items())}"
        for token in row.get("tokens") or []
        if token.get("candidates") and token.get("own_score") is None
    ]
    steps = [
        f"{number}: {said(step)}" + ("" if step.get("halting") is None else f" (halts {step['halting']:.2f})")
        for number, step in enumerate(row.get("steps") or [], start=1)
    ]
    layers = [f"{layer}: {weight:.2f}" for layer, weight in enumerate(row.get("layers") or [])]
    lines += [f"after step {'; '.join(steps)}"] if steps else []
    return lines + ([f"weights of layers {', '.join(layers)}"] if layers else [])
