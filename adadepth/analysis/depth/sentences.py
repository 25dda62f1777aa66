"""Example sentences with the depth of every token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adadepth.analysis.files import RunFiles, halts, max_depth, run_unit
from adadepth.analysis.render.formats import number
from adadepth.analysis.render.page import depth_styles
from adadepth.analysis.render.section import Section, absent, fill

_MAX_TOKENS, _MAX_SENTENCES = 128, 12


def sentences(files: RunFiles) -> Section | None:
    """The example sentences, cut to what a page can show; grids of cells have drawings instead."""
    if not halts(files) or any(files.grids.get("sets", {}).values()):
        return None
    found = [
        _sentence(sentence)
        for sentence in files.sentences[:_MAX_SENTENCES]
        if sentence.get("tokens") and len(sentence.get("updates") or []) == len(sentence["tokens"])
    ]
    if found:
        is_zero_used = any(token["depth"] == 0 for sentence in found for token in sentence["tokens"])
        styles = depth_styles(max_depth(files))[0 if is_zero_used else 1 :]
        return Section(
            "Sentences", "sentences",
            fill("sentences", sentences=found, unit=run_unit(files), styles=styles, has_probabilities=_has_any(found)),
        )  # fmt: skip
    if run_unit(files) == "sequence":
        return None
    otherwise = "sentences.jsonl holds none"
    return Section("Sentences", "sentences", absent("Example sentences", files, "sentences.jsonl", otherwise))


def _has_any(sentences: Sequence[Mapping[str, Any]]) -> bool:
    """Whether there are probabilities to show."""
    return any(one["distribution"] or any(token["probabilities"] for token in one["tokens"]) for one in sentences)


def _sentence(sentence: Mapping[str, Any]) -> dict[str, Any]:
    is_masked = any(sentence.get("mask_kind") or [])
    return {
        "rule": sentence.get("rule", ""),
        "index": sentence.get("index"),
        "mean": sum(sentence["updates"]) / len(sentence["updates"]),
        "tokens": [_token(sentence, position) for position in range(min(len(sentence["tokens"]), _MAX_TOKENS))],
        "masked": is_masked,
        "tagged": any(sentence.get("original") or []) and not is_masked,
        "distribution": sentence.get("distribution") or [],
        "left_out": max(len(sentence["tokens"]) - _MAX_TOKENS, 0),
    }


def _token(sentence: Mapping[str, Any], position: int) -> dict[str, Any]:
    """One token: its text without the word-start mark, and whether a word starts there."""

    def entry(key: str) -> Any:
        values = sentence.get(key) or []
        return values[position] if position < len(values) else None

    text = str(sentence["tokens"][position])
    marked = any(str(token).startswith("▁") for token in sentence["tokens"])
    starts = not text.startswith("##") and (not marked or text.startswith(("▁", "[", "<")))
    told = [(entry("mask_kind") or "", ""), ("loss", entry("loss")), ("remainder", entry("remainders"))]
    facts = [f"{name} {number(value, 2)}".strip() if value != "" else name for name, value in told if value is not None]
    if entry("iterations"):
        facts.append(f"ran {', '.join(map(str, entry('iterations')))}")
    return {
        "text": _plain(text),
        "depth": round(sentence["updates"][position]),
        "starts": starts,
        "kind": entry("mask_kind") or "",
        "original": None if entry("original") is None else _plain(str(entry("original"))),
        "predicted": None if entry("predicted") is None else _plain(str(entry("predicted"))),
        "facts": ", ".join(filter(None, facts)) if entry("loss") is not None or entry("iterations") else "",
        "probabilities": entry("probabilities") or [],
    }


def _plain(token: str) -> str:
    return token.removeprefix("▁").removeprefix("##") or "▁"
