"""The tokens of a text as a reader sees them, from a row of texts.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from adadepth.report.run_files import TEXTS_FILE, RunFiles
from adadepth.report.section import Note, Placed, Section, Token, fill, steps
from adadepth.report.style import depth_color, share_color, text_on
from adadepth.report.writing import depth_styles
from adadepth.system.console import visible


class Shown(NamedTuple):
    """A token: its text, whether there is a space before it, its depth as a whole number, and what is known of it."""

    text: str
    starts: bool
    depth: int
    about: Mapping[str, Any]


def shown_tokens(row: Mapping[str, Any]) -> list[Shown]:
    """The tokens of a text as the user wrote them; special ones as the vocabulary has them."""
    found, end = [], None
    for token in row.get("tokens") or []:
        if token["span"] is None:
            found.append(Shown(token["piece"], True, round(token["updates"]), token))
            end = None
            continue
        start, stop = token["span"]
        text = row["text"][token["part"]][start:stop]
        found.append(
            Shown(text.strip() or token["piece"], start != end or text != text.lstrip(), round(token["updates"]), token)
        )
        end = stop
    return found


def said(about: Mapping[str, Any]) -> str:
    """What is predicted of a text, a token or a step: a class with its probability, or a value."""
    if about.get("value") is not None:
        return f"{about['value']:.3f}"
    if about.get("label") is None:
        return ""
    return about["label"] if about.get("score") is None else f"{about['label']} {about['score']:.2f}"


def board(cells: str) -> list[str]:
    """The cells of a puzzle as rows of a square, or in one row where they make none."""
    size = math.isqrt(len(cells))
    return [cells[start : start + size] for start in range(0, len(cells), size)] if size**2 == len(cells) else [cells]


def changed(cells: str, before: str) -> int:
    """How many cells of an answer are not those of the one before, or of the puzzle."""
    return sum(cell != other for cell, other in zip(cells, before, strict=True))


def puzzle_steps(row: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any], int]]:
    """The steps of a puzzle up to its exit: number, what was said after it, and how many cells it changed."""
    steps = (row.get("steps") or [])[: round(row["updates"])]
    answers = [row["text"][0], *(step["label"] for step in steps)]
    return [
        (number, step, changed(step["label"], before))
        for number, (step, before) in enumerate(zip(steps, answers, strict=False), start=1)
    ]


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
    max_updates = found["max_depth"]

    def shaded(text: str, depth: int) -> Text:
        if not is_colored:
            return Text(f"{visible(text)}({depth})")
        background = depth_color(depth, max_updates)
        return Text(visible(text), style=f"{text_on(background)} on {background}")

    if is_colored:
        levels = Text(" ").join(shaded(f" {depth} ", depth) for depth in range(1, max_updates + 1))
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
    console.print(Text(f"mean updates {found['mean']:.2f} of at most {max_updates}; {share}"))


def puzzle_lines(row: Mapping[str, Any]) -> list[str]:
    """A puzzle and its answer side by side, and what every step changed."""
    boards = zip(board(row["text"][0]), board(row["label"]), strict=True)
    steps = [
        f"{number}: {cells} cells" + ("" if step.get("halting") is None else f" (right {step['halting']:.2f})")
        for number, step, cells in puzzle_steps(row)
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


def texts(files: RunFiles) -> Section | None:
    """Every text with its prediction and the depth of its tokens; a token shows its iterations where one points."""
    if not files.of(TEXTS_FILE):
        return None
    found = files.of(TEXTS_FILE)
    rows = [text_row(row, found["predicts"]) for row in found["texts"]]
    tokens = [token for row in rows for token in row["tokens"]]
    styles = depth_styles(found["max_depth"])[0 if any(token.depth == 0 for token in tokens) else 1 :]
    has_notes = any(token.notes for token in tokens)
    html = fill("texts", found=found, rows=rows, styles=styles, has_notes=has_notes)
    counted = sum(len(row.get("tokens") or []) for row in found["texts"])
    of = f"n = {len(rows)} text{'s' * (len(rows) != 1)}" + (f", {counted:,} tokens" if counted else "")
    return Section("Texts", "texts", html, of=of)


def text_row(row: Mapping[str, Any], predicts: str) -> dict[str, Any]:
    """What a page shows of one text of texts.json; `predicts` is that file's."""
    depth = round(row["updates"])
    if predicts == "cells":
        return _puzzle(row, depth)
    whole = [Token(" | ".join(row["text"]), depth, starts=True)]  # of a text that halts as a whole
    return {
        "said": said(row),
        "updates": row["updates"],
        "depth": depth,
        "scores": row.get("scores") or {},
        "boards": {},
        "tokens": [_token(token, predicts) for token in shown_tokens(row)] or whole,
        "steps": [
            {"number": place, "halting": step.get("halting"), "said": said(step)}
            for place, step in enumerate(row.get("steps") or [], start=1)
        ],
        "layers": [
            {"layer": layer, "weight": weight, "color": share_color(weight), "ink": text_on(share_color(weight))}
            for layer, weight in enumerate(row.get("layers") or [])
        ],
    }


def _puzzle(row: Mapping[str, Any], depth: int) -> dict[str, Any]:
    right = row.get("score")
    return {
        "said": "" if right is None else f"right with probability {right:.2f}",
        "updates": row["updates"],
        "depth": depth,
        "scores": {},
        "tokens": [],
        "layers": [],
        "boards": {"puzzle": board(row["text"][0]), "answer": board(row["label"])},
        "steps": [
            {"number": number, "halting": step.get("halting"), "said": f"{cells} cells changed"}
            for number, step, cells in puzzle_steps(row)
        ],
    }


def _token(token: Shown, predicts: str) -> Token:
    label = None if predicts == "next" else token.about.get("label")
    return Token(token.text, token.depth, token.starts, label, notes=_notes(token.about, predicts))


def _notes(about: Mapping[str, Any], predicts: str) -> list[Note]:
    """What is predicted of a token, its own probability, its iterations, and what else could stand in its place."""
    found = [Note(said(about))] if predicts != "next" and said(about) else []
    if about.get("own_score") is not None:
        found.append(Note("its probability", share=about["own_score"]))
    done = about.get("steps") or []
    found += steps([step.get("halting") for step in done], [said(step) for step in done])
    return found + [Note(word, share=score) for word, score in (about.get("candidates") or {}).items()]


SECTIONS = (Placed(10, texts, alone=TEXTS_FILE, subtitle="Predictions"),)
