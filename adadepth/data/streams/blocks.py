"""Packed blocks: text as independent examples of equal length. A block has several documents or part of one.

A document of n tokens is written as a start token, which is the end-of-sequence token, and its n tokens. All documents
are concatenated. Block k holds the positions [k (S - 1), k (S - 1) + S). Neighbouring blocks share a token, which is a
target in the first block and an input in the second. Each of the n tokens is therefore predicted exactly once, from the
tokens before it in its document and its block. Start tokens are never predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from adadepth.config.data import Separator
from adadepth.data.batches import IGNORE, Columns, Examples, PaddingCollator, collect_numbers, pad_columns
from adadepth.data.cache import digest, get_cache_root
from adadepth.data.held_out import HELD_OUT
from adadepth.data.randomness import split_item
from adadepth.data.run_data import RunData, describe_tokenizer, summarise_data
from adadepth.data.stores.documents import LineDocuments, LineStore, write_beginnings
from adadepth.data.stores.mmap_arrays import ensure_arrays
from adadepth.data.stores.parallel_tokenisation import ensure_texts, prepare_workers
from adadepth.data.streams.line_text import open_texts
from adadepth.data.streams.load import digest_text, load_text_tokenizer, open_line_store
from adadepth.data.streams.running_text import build_piece_encoding, mark_first_pieces, split_pieces
from adadepth.data.text.text_source import TextSource
from adadepth.data.text.tokenizer import parallel_encoding
from adadepth.errors import DataError

if TYPE_CHECKING:
    from adadepth.config import TokenizerConfig
    from adadepth.config.data import CausalConfig


class CausalExamples(Dataset[dict[str, Any]]):
    """Base class of independent examples for a causal language model, with the counts of the text that they predict.

    Args:
        counts: Number of ``tokens`` to predict, and of ``words``, ``characters`` and UTF-8 ``bytes`` of the text.
        documents: Number of documents.
    """

    def __init__(self, counts: Mapping[str, int], documents: int) -> None:
        self.tokens, self.words, self.characters = (counts[name] for name in ("tokens", "words", "characters"))
        self.bytes = counts["bytes"]
        self.documents = documents


class TextBlocks(CausalExamples):
    """Examples that are blocks of a tokenised text.

    An item has ``input_ids``, ``labels`` (-100 at start tokens and at the first position) and ``documents``, the number
    of each position's document in the block. All are (S,) int64, or shorter at the end of the text. An item also has
    its ``index``.

    Args:
        store: Tokens of the text.
        offsets: Offsets of documents, followed by the end of the text, (documents + 1,) int64. No document is empty.
        length: Number of positions of a block, S, at least 2.
        start: Id of the start token before each document.
        counts: See `CausalExamples`.
    """

    def __init__(
        self, store: LineStore, offsets: np.ndarray, length: int, start: int, counts: Mapping[str, int]
    ) -> None:
        super().__init__(counts, documents=len(offsets) - 1)
        self.store, self.offsets, self.length, self.start = store, offsets, length, start
        self._starts = offsets[:-1] + np.arange(self.documents)  # positions of the starts
        self.position_count = int(offsets[-1]) + self.documents

    def __len__(self) -> int:
        return -(-(self.position_count - 1) // (self.length - 1))

    def lengths(self) -> np.ndarray:
        """Return the number of positions of each block, (blocks,) int64."""
        firsts = np.arange(len(self)) * (self.length - 1)
        return np.minimum(self.length, self.position_count - firsts)

    def __getitem__(self, item: int | tuple[int, int]) -> dict[str, Any]:
        _, index = split_item(item)
        if not 0 <= index < len(self):
            raise IndexError(index)
        first = index * (self.length - 1)
        positions = np.arange(first, min(first + self.length, self.position_count))
        documents = np.searchsorted(self._starts, positions, side="right") - 1
        is_start = self._starts[documents] == positions
        tokens = np.asarray(self.store.tokens[np.maximum(positions - documents - 1, 0)], dtype=np.int64)
        ids = np.where(is_start, self.start, tokens)
        labels = np.where(is_start, IGNORE, ids)
        labels[0] = IGNORE
        return {"input_ids": ids, "labels": labels, "documents": documents - documents[0], "index": index}


@dataclass(frozen=True)
class BlockCollator(PaddingCollator):
    """Collator of blocks, which are padded like those of `PaddingCollator`. Padding has the document number -1."""

    def __call__(self, examples: Examples) -> dict[str, Tensor]:
        """Return ``input_ids``, ``attention_mask``, ``labels`` and ``documents``, (B, S) int64, and ``index`` (B,)."""
        columns: Columns = {
            "input_ids": (self.pad_id, np.int64),
            "attention_mask": (0, np.int64),
            "labels": (IGNORE, np.int64),
            "documents": (-1, np.int64),
        }
        return {**pad_columns(examples, self.width(examples), columns), **collect_numbers(examples, ("index",))}


def load_text_blocks(dataset: CausalConfig, tokenizer: TokenizerConfig) -> RunData:
    """Read and tokenise a text and arrange it in blocks, or load it from the cache.

    Blocks and streams of the same text share one cache of tokens, unless newlines are kept. Several processes may call
    this function at once.

    Raises:
        DataError: If the text or the tokenizer lacks something, or if the text has no tokens. The message is one line.
    """
    texts, root = open_texts(dataset), get_cache_root(dataset.cache_dir)
    with parallel_encoding():
        words = load_text_tokenizer(texts["train"], tokenizer, root)
        blocks = {name: _build_blocks(root, name, text, words, dataset) for name, text in texts.items()}
    summary = summarise_data(
        dataset,
        {name: _describe(split_blocks, dataset) for name, split_blocks in blocks.items()},
        facts={
            "sequence_length": dataset.sequence_length,
            "append_eos": dataset.append_eos,
            "keep_newlines": bool(dataset.keep_newlines),
            "sources": {name: text.key() for name, text in texts.items()},
        },
        tokenizer=describe_tokenizer(tokenizer, words, has_kind=True),
    )
    longest = max(dataset.sequence_length, dataset.evaluation_length or 0)
    return build_block_data(blocks, words, longest, summary, pad_to_length=dataset.pad_to_length)


def build_block_data(
    blocks: Mapping[str, CausalExamples],
    tokenizer: PreTrainedTokenizerFast,
    longest: int,
    summary: dict[str, Any],
    *,
    pad_to_length: bool,
) -> RunData:
    """Return the data of a run on blocks or conversations.

    Args:
        blocks: Examples of ``train`` and ``evaluation`` and, if there is one, of ``test``.
        tokenizer: Tokenizer to save with the model.
        longest: Largest width of a batch.
        summary: Description of the data.
        pad_to_length: Whether every batch has this width.
    """
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    return RunData(
        train=blocks["train"],
        evaluation={HELD_OUT: blocks["evaluation"]},
        test={name: examples for name, examples in blocks.items() if name == "test"},
        tokenizer=tokenizer,
        collate=BlockCollator(end if pad is None else pad, longest, pad_to_length),
        summary=summary,
    )


def _build_blocks(
    root: Path, name: str, text: TextSource, tokenizer: PreTrainedTokenizerFast, dataset: CausalConfig
) -> TextBlocks:
    store, documents = (_open_pieces if dataset.keep_newlines else _open_lines)(root, name, text, tokenizer, dataset)
    is_train = name == "train"
    counts = store.counts(None if is_train else dataset.max_evaluation_tokens)
    if not counts["tokens"]:
        raise DataError(f"dataset.name={dataset.name}: the {name} text has no tokens")
    length = dataset.sequence_length if is_train else dataset.evaluation_length or dataset.sequence_length
    offsets = documents.offsets(store, counts["tokens"])
    return TextBlocks(store, offsets, length, tokenizer.eos_token_id, counts)


def _open_lines(
    root: Path, name: str, text: TextSource, tokenizer: PreTrainedTokenizerFast, dataset: CausalConfig
) -> tuple[LineStore, LineDocuments]:
    """Return the tokens of lines without newlines, and the lines at which documents begin."""
    store = open_line_store(root, name, text, tokenizer, dataset)
    separator = str(dataset.document_separator)
    key = digest(text.key(), text.are_documents, separator)
    folder = ensure_arrays(
        root,
        f"{name}-documents-{key}",
        lambda folder: write_beginnings(folder, (begins for _, begins in text.marked_lines(separator))),
        text.sources,
    )
    return store, LineDocuments.open(folder)


def _open_pieces(
    root: Path, name: str, text: TextSource, tokenizer: PreTrainedTokenizerFast, dataset: CausalConfig
) -> tuple[LineStore, LineDocuments]:
    """Return the tokens of pieces with newlines, and the pieces at which documents begin; see `split_pieces`.

    With the separator `auto`, a document is a file, a row of a table, or a topic of the embedded text.
    """
    separator = "file" if dataset.document_separator is Separator.auto else str(dataset.document_separator)

    def pieces() -> Iterator[str]:
        return split_pieces(text.marked_lines(separator))

    encoding, workers = build_piece_encoding(tokenizer, dataset.append_eos), prepare_workers(dataset)
    key = digest(digest_text(text, tokenizer, dataset), separator)
    tokens = ensure_texts(root, f"{name}-pieces-bytes-{key}", pieces, encoding, workers, text.characters, text.sources)
    folder = ensure_arrays(
        root,
        f"{name}-piece-documents-{digest(text.key(), separator)}",
        lambda folder: write_beginnings(folder, mark_first_pieces(pieces())),
        text.sources,
    )
    return LineStore.open(tokens), LineDocuments.open(folder)


def _describe(blocks: TextBlocks, dataset: CausalConfig) -> dict[str, Any]:
    """Return the size of a whole text, and of the part of it that the run reads, for the data summary."""
    counts = blocks.store.counts()
    if dataset.keep_newlines:
        del counts["lines"]  # pieces
    return {
        **counts,
        "tokens_per_word": counts["tokens"] / max(counts["words"], 1),
        "tokens_used": blocks.tokens,
        "documents": blocks.documents,
        "blocks": len(blocks),
    }
