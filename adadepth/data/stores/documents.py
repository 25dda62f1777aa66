"""Tokenised text as flat arrays, written to disk as it comes and read through memory maps.

A `TokenStore` knows the sentences and documents of a corpus, a `LineStore` the lines of a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from transformers import PreTrainedTokenizerFast

from adadepth.data.text.passages import split_sentences
from adadepth.data.text.tokenizer import encode_sentences

_DOCUMENTS_AT_ONCE = 256
_LINES_AT_ONCE = 1024
_TOKENS_AT_ONCE = 2**22
_TYPES = {"tokens_16": np.uint16, "tokens_32": np.uint32, "sentences": np.int64, "documents": np.int64,
          "lines": np.int64}  # fmt: skip


@dataclass(frozen=True)
class TokenStore:
    """Token ids of a corpus and where its sentences and documents begin.

    Attributes:
        tokens: ids, (tokens,) uint16, or uint32 when the vocabulary needs it.
        sentences: offset into ``tokens`` of each sentence's first token, then their number, (sentences + 1,) int64.
        documents: the same for documents, (documents + 1,) int64; every entry is also in ``sentences``.
        folder: where the arrays are mapped from, None in memory.
    """

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    folder: Path | None = None

    def counts(self) -> dict[str, int]:
        """Return the number of documents, sentences and tokens."""
        return {
            "documents": len(self.documents) - 1, "sentences": len(self.sentences) - 1, "tokens": len(self.tokens)
        }  # fmt: skip

    def __reduce__(self) -> Any:
        """Send a loader worker the folder, not a copy of its content."""
        if self.folder is not None:
            return open_store, (self.folder,)
        return TokenStore, (self.tokens, self.sentences, self.documents)


def tokenised_documents(texts: Iterable[str], tokenizer: PreTrainedTokenizerFast) -> Iterator[list[list[int]]]:
    """Yield each document as its sentences' token ids. Sentences and documents without a token are left out."""
    texts = iter(texts)
    while batch := list(islice(texts, _DOCUMENTS_AT_ONCE)):
        documents = [split_sentences(text) for text in batch]
        encoded = iter(encode_sentences(tokenizer, [sentence for document in documents for sentence in document]))
        for document in documents:
            sentences = [ids for ids in islice(encoded, len(document)) if ids]
            if sentences:
                yield sentences


def write_store(folder: Path, texts: Iterable[str], tokenizer: PreTrainedTokenizerFast) -> None:
    """Tokenise ``texts`` into files in ``folder``; memory does not grow with the corpus."""
    kind = _tokens_file(tokenizer)
    with (
        (folder / kind).open("wb") as tokens,
        (folder / "sentences").open("wb") as sentences,
        (folder / "documents").open("wb") as documents,
    ):
        total = 0
        for document in tokenised_documents(texts, tokenizer):
            documents.write(np.int64(total).tobytes())
            ends = total + np.cumsum([len(ids) for ids in document], dtype=np.int64)
            sentences.write(np.concatenate([[total], ends[:-1]]).astype(np.int64).tobytes())
            tokens.write(np.array([token for ids in document for token in ids], dtype=_TYPES[kind]).tobytes())
            total = int(ends[-1])
        for offsets in (sentences, documents):
            offsets.write(np.int64(total).tobytes())


def open_store(folder: Path) -> TokenStore:
    """Map the files that `write_store` left in ``folder``."""
    return TokenStore(**_mapped(folder), folder=folder)


def map_file(file: Path, dtype: DTypeLike) -> np.ndarray:
    """Map a flat array; an empty file, which cannot be mapped, is an empty array."""
    return np.memmap(file, dtype, mode="r") if file.stat().st_size else np.empty(0, dtype)


def _mapped(folder: Path) -> dict[str, np.ndarray]:
    there = {name: folder / name for name in _TYPES if (folder / name).exists()}
    return {name.split("_")[0]: map_file(file, _TYPES[name]) for name, file in there.items()}


def store_in_memory(documents: Iterable[list[list[int]]]) -> TokenStore:
    """Return the same arrays for a few documents of sentences of token ids."""
    documents = list(documents)
    lengths = [len(ids) for document in documents for ids in document]
    sentences = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    firsts = np.concatenate([[0], np.cumsum([len(document) for document in documents])]).astype(np.int64)
    tokens = np.array([token for document in documents for ids in document for token in ids], dtype=np.uint32)
    return TokenStore(tokens, sentences, sentences[firsts])


@dataclass(frozen=True)
class LineStore:
    """Token ids of a text and what each of its lines adds.

    Attributes:
        tokens: ids, (tokens,) uint16, or uint32 when the vocabulary needs it.
        lines: tokens, words and characters before each line, then their totals, (3 (lines + 1),) int64, row by row.
        folder: where the arrays are mapped from, None in memory.
    """

    tokens: np.ndarray
    lines: np.ndarray
    folder: Path | None = None

    def counts(self, most_tokens: int | None = None) -> dict[str, int]:
        """Return the number of lines, tokens, words and characters of the text.

        With ``most_tokens``, of as many whole lines as have no more tokens, but of one line at least.
        """
        totals = self.lines.reshape(-1, 3)
        last = len(totals) - 1
        if most_tokens is not None:
            last = min(max(int(np.searchsorted(totals[:, 0], most_tokens, side="right")) - 1, 1), last)
        tokens, words, characters = totals[last].tolist()
        return {"lines": last, "tokens": tokens, "words": words, "characters": characters}

    def word_counts(self, size: int) -> np.ndarray:
        """How often each id below ``size`` occurs, (size,) int64."""
        counts = np.zeros(size, dtype=np.int64)
        for first in range(0, len(self.tokens), _TOKENS_AT_ONCE):  # bincount makes 64 bits of every token
            counts += np.bincount(self.tokens[first : first + _TOKENS_AT_ONCE], minlength=size)
        return counts

    def __reduce__(self) -> Any:
        """Send a loader worker the folder, not a copy of its content."""
        if self.folder is not None:
            return open_lines, (self.folder,)
        return LineStore, (self.tokens, self.lines)


def write_lines(folder: Path, lines: Iterable[str], tokenizer: PreTrainedTokenizerFast, append_eos: bool) -> None:
    """Tokenise ``lines`` into files in ``folder``; memory does not grow with the text.

    Args:
        folder: Where to.
        lines: Without their line ends.
        tokenizer: Has an end-of-sequence token.
        append_eos: It stands after every line, empty ones too, and counts as a word and as a character.
    """
    lines, kind = iter(lines), _tokens_file(tokenizer)
    end = [tokenizer.eos_token_id] if append_eos else []
    totals = np.zeros((1, 3), np.int64)
    with (folder / kind).open("wb") as tokens, (folder / "lines").open("wb") as offsets:
        offsets.write(totals.tobytes())
        while batch := list(islice(lines, _LINES_AT_ONCE)):
            encoded = [ids + end for ids in encode_sentences(tokenizer, batch)]
            sizes = [
                (len(ids), len(line.split()) + len(end), len(line) + len(end))
                for ids, line in zip(encoded, batch, strict=True)
            ]
            totals = totals[-1] + np.cumsum(np.array(sizes, np.int64), axis=0)
            offsets.write(totals.tobytes())
            tokens.write(np.array(list(chain.from_iterable(encoded)), dtype=_TYPES[kind]).tobytes())


def open_lines(folder: Path) -> LineStore:
    """Map the files that `write_lines` left in ``folder``."""
    return LineStore(**_mapped(folder), folder=folder)


def _tokens_file(tokenizer: PreTrainedTokenizerFast) -> str:
    return "tokens_16" if len(tokenizer) <= 2**16 else "tokens_32"
