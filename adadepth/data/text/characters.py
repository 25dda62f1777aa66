"""Characters that consist of several code points, such as a letter and its accents or a Korean syllable."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

# Vowels and final consonants of Korean syllables in separate code points.
_SYLLABLE_PARTS = (range(0x1160, 0x1200), range(0xD7B0, 0xD800))


def is_continuation(mark: str) -> bool:
    """Return whether a code point belongs to the same character as the code point before it."""
    return unicodedata.category(mark).startswith("M") or any(ord(mark) in part for part in _SYLLABLE_PARTS)


def extend_spans(text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans of tokens, each extended to the end of its last character.

    Tokenizers that strip or compose accents count only the first code point of such a character. Without this function,
    the last accent of a word would belong to no token. It would then be missing in every answer that ends with the
    word.

    Args:
        text: Text of the tokens.
        spans: First code point of each token, and the index after its last one.
    """
    if text.isascii():
        return list(spans)
    starts = {start for start, _ in spans}

    def extend(end: int) -> int:
        while end < len(text) and end not in starts and is_continuation(text[end]):
            end += 1
        return end

    return [(start, extend(end)) for start, end in spans]
