r"""Text with its newlines, in pieces that can be tokenised apart and give the tokens of the whole document.

A tokenizer divides white space by the character after it: GPT-2 reads ``a\n\nb`` as ``a``, ``\n``, ``\n``, ``b``, but
``\n\n`` as one token at the end of a text. Others put a blank before every text. A piece therefore ends with a newline,
and is tokenised between a letter with a newline and another letter, which stand for the text before and after it. The
tokens of both are then dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

import numpy as np
from numpy.typing import DTypeLike
from transformers import PreTrainedTokenizerFast

from adadepth.data.stores.documents import count_text
from adadepth.data.stores.mmap_arrays import choose_token_type
from adadepth.data.stores.parallel_tokenisation import Arrays, Encoding
from adadepth.data.text.tokenizer import encode_sentences

_FIRST_LINE = re.compile(r"( ?)[^\s/]")  # o200k reads slashes after a newline as one token with it
_NEWLINE, _BOUND = "\n", "\x1f"
_BEFORE, _AFTER = "A\n", ("A", " A")  # context of a piece, the latter without and with a blank


def split_pieces(lines: Iterable[tuple[str, bool]]) -> Iterator[str]:
    """Yield the documents of a text as pieces, each with the context in which it is tokenised.

    A document is its lines, joined by newlines, without empty lines at both ends. It is cut before every line that
    begins with at most one blank.

    Args:
        lines: Lines without line ends, and whether each begins a document.

    Yields:
        Context before the piece, the piece and the context after it, separated by the control character U+001F. The
        context before the first piece of a document and after its last piece is empty.
    """
    before, piece = "", list[str]()
    for line, begins in chain(lines, [("", True)]):
        if begins and piece:
            yield _BOUND.join([before, _NEWLINE.join(piece).rstrip(_NEWLINE), ""])
            before, piece = "", []
        elif piece and (match := _FIRST_LINE.match(line)):
            yield _BOUND.join([before, _NEWLINE.join([*piece, ""]), _AFTER[len(match[1])]])
            before, piece = _BEFORE, []
        if piece or line:
            piece.append(line)


def mark_first_pieces(pieces: Iterable[str]) -> Iterator[bool]:
    """Yield for each piece of `split_pieces` whether it begins a document."""
    return (piece.startswith(_BOUND) for piece in pieces)


def build_piece_encoding(tokenizer: PreTrainedTokenizerFast, append_eos: bool) -> Encoding:
    """Return the `Encoding` that tokenises the pieces of `split_pieces` into the arrays of a `LineStore`.

    Args:
        tokenizer: Tokenizer with an end-of-sequence token.
        append_eos: Whether the end-of-sequence token follows every document, as a word, a character and a byte.
    """
    arrays: dict[str, DTypeLike] = {"tokens": choose_token_type(tokenizer), "lines": (np.int64, 4)}
    return Encoding(partial(_encode_pieces, tokenizer, append_eos), arrays, ("lines",))


def _encode_pieces(tokenizer: PreTrainedTokenizerFast, append_eos: bool, texts: list[str]) -> Arrays:
    # A tokenizer that reads newlines as blanks has no token between the letter of the context and the piece.
    *starts, letter, letter_after_blank = encode_sentences(
        tokenizer, [_BEFORE, _BEFORE.removesuffix(_NEWLINE), *(_BEFORE + after for after in _AFTER)]
    )
    after_sizes = dict(
        zip(_AFTER, (len(_drop_start(ids, starts)) for ids in (letter, letter_after_blank)), strict=True)
    )
    fields = [_split_context(text) for text in texts]
    tokens, sizes = [], []
    for (before, piece, after), ids in zip(
        fields, encode_sentences(tokenizer, ["".join(text) for text in fields]), strict=True
    ):
        end = [] if after or not append_eos else [tokenizer.eos_token_id]
        ids = _drop_start(ids, starts) if before else ids
        tokens.append(ids[: len(ids) - after_sizes.get(after, 0)] + end)
        sizes.append((len(tokens[-1]), *(count + len(end) for count in count_text(piece))))
    return {
        "tokens": np.fromiter(chain.from_iterable(tokens), choose_token_type(tokenizer)),
        "lines": np.array(sizes, dtype=np.int64).reshape(-1, 4),
    }


def _split_context(text: str) -> tuple[str, str, str]:
    """Return the context before a piece, the piece, in which the separator may occur, and the context after it."""
    before, _, rest = text.partition(_BOUND)
    piece, _, after = rest.rpartition(_BOUND)
    return before, piece, after


def _drop_start(ids: list[int], starts: Sequence[list[int]]) -> list[int]:
    """Return tokens without the first of the starts with which they begin."""
    return next((ids[len(start) :] for start in starts if ids[: len(start)] == start), ids)
