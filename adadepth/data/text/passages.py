"""Texts to predict, as sequences whose every token knows where in its text it stands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerFast

from adadepth.data.text.layout import Layout, cut_longest
from adadepth.errors import DataError

Text = str | tuple[str, str]


class Place(NamedTuple):
    """Where a token stands: in the first text of a pair or the second, 0 or 1, from and to which character."""

    part: int
    span: tuple[int, int]


@dataclass(frozen=True)
class EncodedText:
    """A text, or a pair of them, as a model reads it.

    Attributes:
        example: What `Layout.build` returns.
        places: Of every token, (S,); None at special tokens.
        is_cut: Whether tokens were left out.
    """

    example: dict[str, Any]
    places: list[Place | None]
    is_cut: bool

    def __len__(self) -> int:
        return len(self.places)


def text_parts(texts: Text | Iterable[Text]) -> list[tuple[str, ...]]:
    """Return the parts of every text, one or two; a single text may come without a list around it.

    Raises:
        DataError: There is none, or something is not a text; one line.
    """
    given = [texts] if isinstance(texts, str | tuple) else list(texts)
    if not given:
        raise DataError("texts=[]: there is nothing to predict")
    found: list[tuple[str, ...]] = []
    for number, text in enumerate(given):
        parts: Any = (text,) if isinstance(text, str) else text
        if not (isinstance(parts, tuple) and len(parts) in (1, 2) and all(isinstance(part, str) for part in parts)):
            raise DataError(f"texts[{number}]={text!r:.60}: must be a text, or a tuple of two")
        if not all(map(_is_unicode, parts)):
            raise DataError(f"texts[{number}]={text!a:.60}: holds half of a surrogate pair, which is no character")
        found.append(parts)
    return found


def _is_unicode(text: str) -> bool:
    """Whether a text can be written: surrogates that stand alone cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def encode_texts(
    tokenizer: PreTrainedTokenizerFast, layout: Layout, texts: Sequence[tuple[str, ...]]
) -> list[EncodedText]:
    """Tokenise texts and pairs of texts, and lay them out as the data sets do.

    Args:
        tokenizer: A fast one, which knows the characters of its tokens.
        layout: Of its special tokens.
        texts: The parts of each, one or two.
    """
    encoded = tokenizer(
        [part for parts in texts for part in parts], add_special_tokens=False, truncation=False, verbose=False,
        return_offsets_mapping=True, return_attention_mask=False, return_token_type_ids=False,
    )  # fmt: skip
    pieces = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    return [_laid_out(layout, list(islice(pieces, len(parts)))) for parts in texts]


def _laid_out(layout: Layout, parts: list[tuple[list[int], list[tuple[int, int]]]]) -> EncodedText:
    example = layout.build([np.array(ids, dtype=np.int64) for ids, _ in parts])
    lengths = [len(ids) for ids, _ in parts]
    kept = cut_longest(lengths, layout.room(len(parts)))
    places = iter(
        Place(part, span)
        for part, ((_, spans), length) in enumerate(zip(parts, kept, strict=True))
        for span in spans[:length]
    )
    is_special = example["special_tokens_mask"].tolist()
    return EncodedText(example, [None if special else next(places) for special in is_special], kept != lengths)
