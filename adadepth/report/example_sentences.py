"""Report section on example sentences with the depth of every token, and their table for trackers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adadepth.report.page_writer import depth_styles
from adadepth.report.run_files import GRIDS, RunFiles, describe_set_and_step, get_run_unit, halts, max_updates
from adadepth.report.section import Note, Section, SectionEntry, Token, absent, fill, steps
from adadepth.report.table import number


def build_sentence_table(sentences: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Build a table for trackers: one row per example sentence, with the depth of every token.

    Args:
        sentences: Lines of sentences.jsonl. A sentence is skipped if some of its tokens have no depth.
    """
    rows = [
        [sentence.get("rule", ""), sentence.get("index"), sentence.get("mean_depth"), _format_depths(sentence)]
        for sentence in sentences
        if _has_depths(sentence)
    ]
    return ["rule", "index", "mean_depth", "depths"], rows


def _has_depths(sentence: Mapping[str, Any]) -> bool:
    """Return whether a sentence has a depth for every token."""
    return bool(sentence.get("tokens")) and len(sentence.get("updates") or []) == len(sentence["tokens"])


def _format_depths(sentence: Mapping[str, Any]) -> str:
    return " ".join(f"{token}:{depth:g}" for token, depth in zip(sentence["tokens"], sentence["updates"], strict=True))


_MAX_TOKENS, _MAX_SENTENCES = 128, 12


def sentences(files: RunFiles) -> Section | None:
    """Build the report section on example sentences, as many as a page can show.

    It is None if the report draws example grids instead.
    """
    if not halts(files) or any(files.of(GRIDS).get("sets", {}).values()):
        return None
    built = [_build_sentence(sentence) for sentence in files.sentences[:_MAX_SENTENCES] if _has_depths(sentence)]
    if built:
        is_zero_used = any(token.depth == 0 for sentence in built for token in sentence["tokens"])
        styles = depth_styles(max_updates(files))[0 if is_zero_used else 1 :]
        has_notes = any(
            sentence["distribution"] or any(token.notes for token in sentence["tokens"]) for sentence in built
        )
        html = fill("sentences", sentences=built, unit=get_run_unit(files), styles=styles, has_notes=has_notes)
        sample = f"n = {len(built)} sequences{describe_set_and_step(files)}"
        return Section("Sentences", "sentences", html, of=sample)
    if get_run_unit(files) == "sequence":
        return None
    otherwise = "sentences.jsonl holds none"
    return Section("Sentences", "sentences", absent("Example sentences", files, "sentences.jsonl", otherwise))


def _build_sentence(sentence: Mapping[str, Any]) -> dict[str, Any]:
    is_masked = any(sentence.get("mask_kind") or [])
    return {
        "rule": sentence.get("rule", ""),
        "index": sentence.get("index"),
        "mean": sum(sentence["updates"]) / len(sentence["updates"]),
        "tokens": [_build_token(sentence, position) for position in range(min(len(sentence["tokens"]), _MAX_TOKENS))],
        "masked": is_masked,
        "tagged": any(sentence.get("original") or []) and not is_masked,
        "distribution": steps(sentence.get("distribution") or []),
        "left_out": max(len(sentence["tokens"]) - _MAX_TOKENS, 0),
    }


def _build_token(sentence: Mapping[str, Any], position: int) -> Token:
    """Build a token for the report page, with its text but without the tokenizer's word-start mark."""

    def entry(key: str) -> Any:
        values = sentence.get(key) or []
        return values[position] if position < len(values) else None

    text = str(sentence["tokens"][position])
    marked = any(str(token).startswith("▁") for token in sentence["tokens"])
    starts = not text.startswith("##") and (not marked or text.startswith(("▁", "[", "<")))
    after, is_marked = _format_label(entry("original"), entry("predicted"), is_masked=bool(entry("mask_kind")))
    facts_by_name = {"fed": entry("mask_kind"), "loss": entry("loss"), "remainder": entry("remainders"), "ran": None}
    if entry("iterations"):
        facts_by_name["ran"] = ", ".join(map(str, entry("iterations")))
    facts = [Note(name, number(value, 2)) for name, value in facts_by_name.items() if value not in (None, "")]
    if facts_by_name["loss"] is None and facts_by_name["ran"] is None:
        facts = []  # nothing is known but by what it halted
    depth = round(sentence["updates"][position])
    return Token(
        _strip_word_start(text), depth, starts, after, is_marked, [*steps(entry("probabilities") or []), *facts]
    )


def _format_label(original: str | None, predicted: str | None, *, is_masked: bool) -> tuple[str | None, bool]:
    """Return the label text after a token, and whether to outline the token: it was masked, or its label is wrong."""
    if original is None:
        return None, is_masked
    if not is_masked and original == predicted:
        return _strip_word_start(original), False
    return f"{_strip_word_start(original)} → {'' if predicted is None else _strip_word_start(predicted)}", True


def _strip_word_start(token: str) -> str:
    return token.removeprefix("▁").removeprefix("##") or "▁"


SECTIONS = (SectionEntry(260, sentences),)
