"""The section of the page that shows a user's own texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadepth.analysis.files import RunFiles
from adadepth.analysis.render.colors import share_color, text_on
from adadepth.analysis.render.page import depth_styles
from adadepth.analysis.render.section import Section, fill
from adadepth.analysis.render.tokens import Note, Token, steps
from adadepth.analysis.texts.tokens import Shown, board, progress, said, shown_tokens


def texts(files: RunFiles) -> Section | None:
    """Every text with its prediction and the depth of its tokens; a token shows its iterations where one points."""
    if not files.texts:
        return None
    found = files.texts
    rows = [_row(row, found["predicts"]) for row in found["texts"]]
    tokens = [token for row in rows for token in row["tokens"]]
    styles = depth_styles(found["max_depth"])[0 if any(token.depth == 0 for token in tokens) else 1 :]
    has_notes = any(token.notes for token in tokens)
    html = fill("texts", found=found, rows=rows, styles=styles, has_notes=has_notes)
    counted = sum(len(row.get("tokens") or []) for row in found["texts"])
    of = f"n = {len(rows)} text{'s' * (len(rows) != 1)}" + (f", {counted:,} tokens" if counted else "")
    return Section("Texts", "texts", html, of=of)


def _row(row: Mapping[str, Any], predicts: str) -> dict[str, Any]:
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
            for number, step, cells in progress(row)
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
