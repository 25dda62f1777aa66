"""Stores of tokenised text as flat arrays, with the sentences and documents of a corpus or the lines of a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike
from transformers import PreTrainedTokenizerFast

from adadepth.data.stores.mmap_arrays import ArrayWriter, StoredArrays, choose_token_type
from adadepth.data.stores.parallel_tokenisation import Arrays, Encoding
from adadepth.data.text.passages import split_sentences
from adadepth.data.text.tokenizer import encode_sentences

_DOCUMENTS_AT_ONCE = 256
_LINES_AT_ONCE = 1024
_TOKENS_AT_ONCE = 2**22


@dataclass(frozen=True)
class TokenStore(StoredArrays):
    """Store of a corpus: token ids, and the offsets of sentences and documents in them.

    Attributes:
        tokens: Token ids, (tokens,) uint16, or uint32 if the vocabulary needs it.
        sentences: Offset of each sentence's first token in ``tokens``, followed by the number of tokens, (sentences +
            1,) int64.
        documents: Offset of each document's first token, followed by the number of tokens, (documents + 1,) int64.
            Every entry is also in ``sentences``.
    """

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray

    def counts(self) -> dict[str, int]:
        """Return the number of documents, sentences and tokens."""
        return {name: len(getattr(self, name)) - (name != "tokens") for name in ("documents", "sentences", "tokens")}


def tokenise_documents(texts: Iterable[str], tokenizer: PreTrainedTokenizerFast) -> Iterator[list[list[int]]]:
    """Yield the token ids of each document, grouped by sentence. Empty sentences and documents are skipped."""
    texts = iter(texts)
    while batch := list(islice(texts, _DOCUMENTS_AT_ONCE)):
        documents = [split_sentences(text) for text in batch]
        encoded = iter(encode_sentences(tokenizer, [sentence for document in documents for sentence in document]))
        for document in documents:
            sentences = [ids for ids in islice(encoded, len(document)) if ids]
            if sentences:
                yield sentences


def build_document_encoding(tokenizer: PreTrainedTokenizerFast) -> Encoding:
    """Return the `Encoding` that tokenises documents into the arrays of a `TokenStore`."""
    arrays = {"tokens": choose_token_type(tokenizer), "sentences": np.int64, "documents": np.int64}
    return Encoding(partial(_encode_documents, tokenizer), arrays, ("sentences", "documents"))


def _encode_documents(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> Arrays:
    documents = [
        (np.fromiter(chain.from_iterable(sentences), choose_token_type(tokenizer)), [len(ids) for ids in sentences])
        for sentences in tokenise_documents(texts, tokenizer)
    ]
    tokens = [np.empty(0, choose_token_type(tokenizer)), *(ids for ids, _ in documents)]
    return {
        "tokens": np.concatenate(tokens),
        "sentences": np.array([size for _, sizes in documents for size in sizes], dtype=np.int64),
        "documents": np.array([len(ids) for ids, _ in documents], dtype=np.int64),
    }


def store_in_memory(documents: Iterable[list[list[int]]]) -> TokenStore:
    """Build a `TokenStore` in memory from a few documents, each a list of sentences of token ids."""
    documents = list(documents)
    lengths = [len(ids) for document in documents for ids in document]
    sentences = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    firsts = np.concatenate([[0], np.cumsum([len(document) for document in documents])]).astype(np.int64)
    tokens = np.array([token for document in documents for ids in document for token in ids], dtype=np.uint32)
    return TokenStore(tokens, sentences, sentences[firsts])


@dataclass(frozen=True)
class LineStore(StoredArrays):
    """Store of a text: token ids, and cumulative counts of tokens, words, characters and bytes for its lines.

    Attributes:
        tokens: Token ids, (tokens,) uint16, or uint32 if the vocabulary needs it.
        lines: Number of tokens, words, characters and UTF-8 bytes before each line, followed by the totals,
            (lines + 1, 4) int64.
    """

    tokens: np.ndarray
    lines: np.ndarray

    def counts(self, most_tokens: int | None = None) -> dict[str, int]:
        """Return the number of lines, tokens, words, characters and UTF-8 bytes of the text.

        With ``most_tokens``, only the first whole lines with at most that many tokens are counted, but at least one
        line.
        """
        last = len(self.lines) - 1
        if most_tokens is not None:
            last = min(max(int(np.searchsorted(self.lines[:, 0], most_tokens, side="right")) - 1, 1), last)
        tokens, words, characters, size = self.lines[last].tolist()
        return {"lines": last, "tokens": tokens, "words": words, "characters": characters, "bytes": size}

    def word_counts(self, size: int) -> np.ndarray:
        """Return the number of occurrences in the text of each token id below ``size``, (size,) int64."""
        counts = np.zeros(size, dtype=np.int64)
        for first in range(0, len(self.tokens), _TOKENS_AT_ONCE):  # bincount makes 64 bits of every token
            counts += np.bincount(self.tokens[first : first + _TOKENS_AT_ONCE], minlength=size)
        return counts


@dataclass(frozen=True)
class LineDocuments(StoredArrays):
    """Store of the line numbers at which the documents of a text begin.

    Attributes:
        firsts: Numbers of these lines, (documents,) int64. The first line is included only if it is marked as a
            beginning.
    """

    firsts: np.ndarray

    def offsets(self, store: LineStore, tokens: int) -> np.ndarray:
        """Return the offsets of documents in the first ``tokens`` tokens, and their end, (documents + 1,) int64.

        Documents without tokens are skipped. The text before the first marked line is a document, too.
        """
        begins = store.lines[self.firsts, 0]
        return np.unique(np.concatenate([[0], begins[begins < tokens], [tokens]])).astype(np.int64)


def write_beginnings(folder: Path, begins: Iterable[bool]) -> None:
    """Write the numbers of the lines at which documents begin to a file, with constant memory."""
    numbered = (number for number, is_first in enumerate(begins) if is_first)
    with ArrayWriter(folder, {"firsts": np.int64}) as writer:
        while batch := list(islice(numbered, _LINES_AT_ONCE)):
            writer.append(firsts=batch)


def count_text(text: str) -> tuple[int, int, int]:
    """Return the number of words, characters and UTF-8 bytes of a text."""
    return len(text.split()), len(text), len(text.encode())


def build_line_encoding(tokenizer: PreTrainedTokenizerFast, append_eos: bool) -> Encoding:
    """Return the `Encoding` that tokenises lines, without their line ends, into the arrays of a `LineStore`.

    Args:
        tokenizer: Tokenizer with an end-of-sequence token.
        append_eos: Whether the end-of-sequence token follows every line and counts as a word, a character and a byte.
    """
    arrays: dict[str, DTypeLike] = {"tokens": choose_token_type(tokenizer), "lines": (np.int64, 4)}
    return Encoding(partial(_encode_lines, tokenizer, append_eos), arrays, ("lines",))


def _encode_lines(tokenizer: PreTrainedTokenizerFast, append_eos: bool, lines: list[str]) -> Arrays:
    end = [tokenizer.eos_token_id] if append_eos else []
    encoded = [ids + end for ids in encode_sentences(tokenizer, lines)]
    sizes = [
        (len(ids), *(count + len(end) for count in count_text(line))) for ids, line in zip(encoded, lines, strict=True)
    ]
    tokens = np.fromiter(chain.from_iterable(encoded), choose_token_type(tokenizer))
    return {"tokens": tokens, "lines": np.array(sizes, dtype=np.int64).reshape(-1, 4)}
