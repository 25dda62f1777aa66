"""The section of the page that shows a user's own texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadepth.analysis.files import RunFiles
from adadepth.analysis.render.colors import share_color, text_on
from adadepth.analysis.render.page import depth_styles
from adadepth.analysis.render.section import Section, fill
from adadepth.analysis.texts.tokens import Shown, said, shown_tokens


def texts(files: RunFiles) -> Section | None:
    """Every text with its prediction and the depth of its tokens; a token shows its iterations where one points."""
    if not files.texts:
        return None
    found = files.texts
    styles = depth_styles(found["max_depth"])
    rows = [_row(row, found["predicts"]) for row in found["texts"]]
    is_zero_used = any(token["depth"] == 0 for row in rows for token in row["tokens"])
    html = fill("texts", found=found, rows=rows, styles=styles[0 if is_zero_used else 1 :], depth_styles=styles)
    return Section("Texts", "texts", html)


def _row(row: Mapping[str, Any], predicts: str) -> dict[str, Any]:
    return {
        "text": " | ".join(row["text"]),
        "said": said(row),
        "updates": row["updates"],
        "depth": round(row["updates"]),
        "scores": row.get("scores") or {},
        "tokens": [_token(token, predicts) for token in shown_tokens(row)],
        "steps": _steps(row),
        "layers": [
            {"layer": layer, "weight": weight, "color": share_color(weight), "ink": text_on(share_color(weight))}
            for layer, weight in enumerate(row.get("layers") or [])
        ],
    }


def _token(token: Shown, predicts: str) -> dict[str, Any]:
    about = token.about
    is_told = about.get("label") is not None and predicts != "next"
    return {
        "text": token.text,
        "starts": token.starts,
        "depth": token.depth,
        "label": about["label"] if is_told else None,
        "said": said(about) if predicts != "next" else "",
        "own_score": about.get("own_score"),
        "candidates": about.get("candidates") or {},
        "steps": _steps(about),
    }


def _steps(about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Iterations with what they decided, numbered from 1."""
    return [
        {"number": number, "halting": step.get("halting"), "said": said(step)}
        for number, step in enumerate(about.get("steps") or [], start=1)
    ]
