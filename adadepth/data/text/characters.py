"""Characters as a reader sees them, which may be several code points: a letter and its accents, a Korean syllable."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

# Vowels and final consonants of Korean syllables that are written letter by letter.
_SYLLABLE_PARTS = (range(0x1160, 0x1200), range(0xD7B0, 0xD800))


def continues_character(mark: str) -> bool:
    """Return whether a code point belongs to the character before it."""
    return unicodedata.category(mark).startswith("M") or any(ord(mark) in part for part in _SYLLABLE_PARTS)


def whole_spans(text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans of tokens, each up to where its last character ends.

    Tokenizers that strip or compose accents count only the first code point of such a character: the last accent of a
    word would be in no token, and missing in every answer that ends with it.

    Args:
        text: What the tokens are of.
        spans: First code point of each token and the one after its last.
    """
    if text.isascii():
        return list(spans)
    starts = {start for start, _ in spans}

    def extend(end: int) -> int:
        while end < len(text) and end not in starts and continues_character(text[end]):
            end += 1
        return end

    return [(start, extend(end)) for start, end in spans]
