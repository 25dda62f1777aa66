"""Rule-based sentence splitting, and encoding of texts, pairs and word lists for prediction."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerFast

from adadepth.data.text.characters import extend_spans
from adadepth.data.text.special_tokens import Layout, cut_longest
from adadepth.data.text.tokenizer import PLAIN_IDS, encode_words
from adadepth.errors import DataError

# An end mark, closing quotes or brackets, white space, and then the start of a sentence.
_BOUNDARY = re.compile(r"[.!?][\"'”’)\]]*\s+(?=[\"'“‘(\[]*\s?[A-Z0-9])")
# Words that end in a full stop: a title, a common abbreviation, or a single capital (an initial, "U.S.").
_ABBREVIATION = re.compile(
    r"(?:\b(?:Mrs?|Ms|Dr|Prof|St|Gen|Col|Lt|Capt|Sgt|Rev|Jr|Sr|No|Fig|vs|cf|e\.g|i\.e)|\b[A-Z])$"
)


def split_sentences(document: str) -> list[str]:
    """Split a document at line ends, then at end marks followed by a capital, a digit or an opening quote.

    Full stops after titles, common abbreviations and initials do not end a sentence. Only blank lines and the white
    space around a sentence are removed.
    """
    sentences = []
    for line in document.splitlines():
        start = 0
        for boundary in _BOUNDARY.finditer(line):
            if line[boundary.start()] == "." and _ABBREVIATION.search(line, start, boundary.start()):
                continue
            sentences.append(line[start : boundary.end()].strip())
            start = boundary.end()
        sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if sentence]


Text = str | tuple[str, str] | list[str]
TextParts = tuple[str, ...] | list[str]  # one or two texts, or the words of one


class TokenLocation(NamedTuple):
    """Location of a token: the number of its text in a pair, 0 or 1, and its span of characters in that text.

    A span is the index of the first character and the index after the last one. For a list of words, `part` is the
    number of the word, and the span of its first token is the whole word.
    """

    part: int
    span: tuple[int, int]


@dataclass(frozen=True)
class EncodedText:
    """Tokenised text, or pair of texts, as the input of a model.

    Attributes:
        example: Sequence that `Layout.build` returned.
        places: Location of every token, (S,), with None at special tokens.
        is_cut: Whether tokens were removed to fit the maximum length.
    """

    example: dict[str, Any]
    places: list[TokenLocation | None]
    is_cut: bool

    def __len__(self) -> int:
        return len(self.places)


def check_texts(texts: Text | Iterable[Text], *, takes_words: bool = False) -> list[TextParts]:
    """Return every input to predict as a list of one or two texts. A single text needs no list around it.

    Args:
        texts: Single text or several texts.
        takes_words: Whether a list of words also counts as a text.

    Raises:
        DataError: If there is no text, or if any item is not a text. The message is one line.
    """
    items = [texts] if isinstance(texts, str | tuple) else list(texts)
    if not items:
        raise DataError("texts=[]: no texts to predict")
    checked: list[TextParts] = []
    for number, text in enumerate(items):
        parts: Any = (text,) if isinstance(text, str) else text
        is_right = (isinstance(parts, tuple) and len(parts) in (1, 2)) or (takes_words and isinstance(parts, list))
        if not (is_right and all(isinstance(part, str) for part in parts)):
            alternative = ", or a list of words" if takes_words else ""
            raise DataError(f"texts[{number}]={text!r:.60}: must be a text, or a tuple of two{alternative}")
        if not all(map(is_unicode, parts)):
            raise DataError(f"texts[{number}]={text!a:.60}: contains an unpaired surrogate, which is not a character")
        checked.append(parts)
    return checked


def is_unicode(text: str) -> bool:
    """Return whether a text can be encoded in UTF-8, which fails for unpaired surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def encode_texts(tokenizer: PreTrainedTokenizerFast, layout: Layout, texts: Sequence[TextParts]) -> list[EncodedText]:
    """Tokenise texts, pairs and lists of words, and arrange them in the layout of the model's training data.

    Args:
        tokenizer: Fast tokenizer, which provides the characters of its tokens.
        layout: Layout of the special tokens.
        texts: Parts of each text (one or two), or the words of each text.
    """
    whole = iter(_iter_text_pieces(tokenizer, [text for text in texts if isinstance(text, tuple)]))
    split = iter(_iter_word_pieces(tokenizer, [text for text in texts if isinstance(text, list)]))
    return [_build_encoding(layout, next(whole if isinstance(text, tuple) else split)) for text in texts]


_Pieces = list[tuple[int, TokenLocation]]  # each token of a text and its location


def _iter_text_pieces(tokenizer: PreTrainedTokenizerFast, texts: list[tuple[str, ...]]) -> Iterator[list[_Pieces]]:
    """Yield the token ids and spans of every text, part by part."""
    if not texts:
        return
    encoded = tokenizer([part for parts in texts for part in parts], return_offsets_mapping=True, **PLAIN_IDS)
    pieces = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    for parts in texts:
        yield [
            [(token, TokenLocation(part, span)) for token, span in zip(ids, extend_spans(text, spans), strict=True)]
            for part, (text, (ids, spans)) in enumerate(zip(parts, islice(pieces, len(parts)), strict=True))
        ]


def _iter_word_pieces(tokenizer: PreTrainedTokenizerFast, sentences: list[list[str]]) -> Iterator[list[_Pieces]]:
    """Yield the token ids of every list of words, encoded in the same way as tagging data."""
    if not sentences:
        return
    for words, pieces in zip(sentences, encode_words(tokenizer, sentences), strict=True):
        yield [
            [
                (token, TokenLocation(number, (len(word) if piece_number else 0, len(word))))
                for number, (word, ids) in enumerate(zip(words, pieces, strict=True))
                for piece_number, token in enumerate(ids)
            ]
        ]


def _build_encoding(layout: Layout, parts: list[_Pieces]) -> EncodedText:
    example = layout.build([np.array([token for token, _ in pieces], dtype=np.int64) for pieces in parts])
    lengths = [len(pieces) for pieces in parts]
    cut_lengths = cut_longest(lengths, layout.room(len(parts)))
    locations = iter(
        location
        for pieces, length in zip(parts, cut_lengths, strict=True)
        for _, location in pieces[layout.truncation_slice(len(pieces), length)]
    )
    is_special = example["special_tokens_mask"].tolist()
    return EncodedText(
        example, [None if special else next(locations) for special in is_special], cut_lengths != lengths
    )
