"""Example sentences as a table, for trackers."""

from collections.abc import Mapping, Sequence
from typing import Any


def sentence_table(sentences: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Columns and a row a sentence: why it was chosen, its number, its mean depth, and every token with its depth.

    Args:
        sentences: The lines of sentences.jsonl; those without a depth for every token are left out.
    """
    rows = [
        [sentence.get("rule", ""), sentence.get("index"), sentence.get("mean_depth"), _depths(sentence)]
        for sentence in sentences
        if sentence.get("tokens") and len(sentence.get("updates") or []) == len(sentence["tokens"])
    ]
    return ["rule", "index", "mean_depth", "depths"], rows


def _depths(sentence: Mapping[str, Any]) -> str:
    return " ".join(f"{token}:{depth:g}" for token, depth in zip(sentence["tokens"], sentence["updates"], strict=True))
