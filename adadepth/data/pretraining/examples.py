"""ALBERT pretraining examples (Lan et al. 2020): packed spans of sentences, sentence order, masked tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset

from adadepth.data.cache import digest
from adadepth.data.pretraining.masking import Vocabulary, mask_tokens
from adadepth.data.randomness import Purpose, random_generator, split_item
from adadepth.data.stores.documents import TokenStore
from adadepth.data.stores.mmap_arrays import ArrayWriter, StoredArrays, ensure_arrays

if TYPE_CHECKING:
    from adadepth.config import CorpusConfig


_DOCUMENTS_AT_ONCE = 2**16
_TOKENS_IN_MEMORY = 2**24

IN_ORDER, SWAPPED, NO_PAIR = 0, 1, -100  # values of sentence_order_label


def pack_spans(
    store: TokenStore, length: int, short_probability: float, shortest: int, generator: np.random.Generator
) -> Iterator[np.ndarray]:
    """Cut every document into consecutive spans of whole sentences with up to ``length`` tokens.

    A span takes sentences as long as they fit. With ``short_probability`` its target length is a random shorter one. It
    takes at least one sentence. A sentence longer than ``length`` is cut, and its rest begins the next span. Spans of
    fewer than ``shortest`` tokens are dropped. No other tokens are lost.

    The documents of a block are cut in parallel. They are cut twice, first to count the spans of each document and then
    to write them.

    Yields:
        First token and end of every span of a block of documents, (spans, 2) int64, in the order of the text.
    """
    for begin in range(0, len(store.documents) - 1, _DOCUMENTS_AT_ONCE):
        # Pages of a memory map stay in memory until the map is closed.
        block = store if store.folder is None else TokenStore.open(store.folder)
        borders = block.documents[begin : begin + _DOCUMENTS_AT_ONCE + 1]
        state = generator.bit_generator.state
        counts = np.zeros(len(borders) - 1, np.int64)
        for documents, _ in _iter_span_rounds(block.sentences, borders, length, short_probability, shortest, generator):
            counts[documents] += 1
        generator.bit_generator.state = state
        positions = counts.cumsum() - counts
        packed = np.empty((int(counts.sum()), 2), np.int64)
        for documents, spans in _iter_span_rounds(
            block.sentences, borders, length, short_probability, shortest, generator
        ):
            packed[positions[documents]] = spans
            positions[documents] += 1
        yield packed


def _iter_span_rounds(
    sentences: np.ndarray,
    borders: np.ndarray,
    length: int,
    short_probability: float,
    shortest: int,
    generator: np.random.Generator,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the next span of every document with text left, as document numbers, (n,), and token spans, (n, 2)."""
    first, stop, documents = np.array(borders[:-1]), np.array(borders[1:]), np.arange(len(borders) - 1)
    while first.size:
        target = np.full(first.size, length)
        short = generator.random(first.size) < short_probability
        target[short] = generator.integers(2, length + 1, int(short.sum()))
        last = np.searchsorted(sentences, first + target, side="right") - 1
        last += sentences[last] <= first
        end = np.minimum(np.minimum(sentences[last], first + length), stop)
        is_long_enough, is_unfinished = end - first >= shortest, end < stop
        yield documents[is_long_enough], np.stack([first[is_long_enough], end[is_long_enough]], axis=1)
        first, stop, documents = end[is_unfinished], stop[is_unfinished], documents[is_unfinished]


def cut_in_two(
    tokens: np.ndarray, boundaries: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, int]:
    """Cut a text span at a random sentence boundary, and swap the two parts with probability 1/2.

    A span without a boundary is cut at a random token.

    Args:
        tokens: Token ids of the span, at least 2.
        boundaries: First tokens of the sentences inside the span, each in [1, len(tokens) - 1].
        generator: Generator of the random numbers of the example.

    Returns:
        Segment A, segment B, and the label, which is 0 in order or 1 swapped.
    """
    cut = generator.choice(boundaries) if len(boundaries) else generator.integers(1, len(tokens))
    parts = tokens[:cut], tokens[cut:]
    swapped = int(generator.random() < 0.5)
    return parts[swapped], parts[1 - swapped], SWAPPED if swapped else IN_ORDER


@dataclass(frozen=True)
class Spans(StoredArrays):
    """Token spans of all pretraining examples, as offsets into a store of tokenised documents.

    Attributes:
        spans: First token and end of each example, (spans, 2) int64.
    """

    spans: np.ndarray


def compute_spans(store: TokenStore, dataset: CorpusConfig, generator: np.random.Generator) -> Spans:
    """Return the token spans of all examples, short enough to leave room for the special tokens."""
    return Spans(np.concatenate([np.empty((0, 2), np.int64), *_iter_span_blocks(store, dataset, generator)]))


def ensure_spans(root: Path, store: TokenStore, dataset: CorpusConfig, seed: int) -> Spans:
    """Return the spans of all examples for a seed. For a long text, they are stored in the cache and memory-mapped."""
    generator = random_generator(seed, Purpose.PACKING, 0, 0)
    if store.folder is None or len(store.tokens) <= _TOKENS_IN_MEMORY:
        return compute_spans(store, dataset, generator)

    def write(folder: Path) -> None:
        with ArrayWriter(folder, {"spans": (np.int64, 2)}) as writer:
            for spans in _iter_span_blocks(store, dataset, generator):
                writer.append(spans=spans)

    cut = [dataset.sequence_length, dataset.short_sequence_probability, dataset.sentence_order]
    return Spans.open(ensure_arrays(root, f"spans-{digest(store.folder.name, cut, seed)}", write))


def _iter_span_blocks(store: TokenStore, dataset: CorpusConfig, generator: np.random.Generator) -> Iterator[np.ndarray]:
    shortest = 2 if dataset.sentence_order else 1
    length = dataset.sequence_length - count_special_tokens(dataset)
    return pack_spans(store, length, dataset.short_sequence_probability, shortest, generator)


def count_special_tokens(dataset: CorpusConfig) -> int:
    """Return the number of special tokens that `make_example` adds."""
    return 3 if dataset.sentence_order else 2


def make_example(
    store: TokenStore, span: np.ndarray, vocabulary: Vocabulary, dataset: CorpusConfig, generator: np.random.Generator
) -> dict[str, Any]:
    """Return the example ``[CLS] A [SEP] B [SEP]`` (or ``[CLS] A [SEP]``) with masked tokens.

    Returns:
        ``input_ids``, ``token_type_ids``, ``labels`` (S,) int64; ``mask_kind``, ``special_tokens_mask`` (S,) uint8;
        ``sentence_order_label`` int (0 in order, 1 swapped, -100 no pair). The arrays are not padded.
    """
    start, end = int(span[0]), int(span[1])
    tokens = np.asarray(store.tokens[start:end], dtype=np.int64)
    cls, sep = [vocabulary.cls], [vocabulary.sep]
    if dataset.sentence_order:
        low = np.searchsorted(store.sentences, start, side="right")
        high = np.searchsorted(store.sentences, end, side="left")
        first, second, label = cut_in_two(tokens, store.sentences[low:high] - start, generator)
        ids = np.concatenate([cls, first, sep, second, sep])
    else:
        first, label = tokens, NO_PAIR
        ids = np.concatenate([cls, tokens, sep])
    types, special = np.zeros_like(ids), np.zeros(len(ids), dtype=np.uint8)
    types[len(first) + 2 :] = 1
    special[[0, len(first) + 1, -1]] = 1
    corrupted, labels, kinds = mask_tokens(ids, vocabulary, dataset.masking, generator)
    columns = {"input_ids": corrupted, "token_type_ids": types, "labels": labels, "mask_kind": kinds}
    return {**columns, "special_tokens_mask": special, "sentence_order_label": label}


class PretrainingExamples(Dataset[dict[str, Any]]):
    """Pretraining examples of a text. ``examples[(epoch, index)]`` is a pure function of (seed, epoch, index).

    The seed determines the tokens of an example. The cut, the order and the masks are redrawn in every epoch. An index
    without an epoch belongs to epoch -1, which is that of evaluation. An example has its ``index`` and the content of
    `make_example`.
    """

    def __init__(
        self, store: TokenStore, spans: Spans, vocabulary: Vocabulary, dataset: CorpusConfig, seed: int
    ) -> None:
        self.store = store
        self._stored_spans = spans
        self.vocabulary = vocabulary
        self.dataset = dataset
        self.seed = seed

    def keep(self, count: int | None) -> None:
        """Reduce the data set to ``count`` examples, evenly spread over the text."""
        if count is not None and count < len(self.spans):
            self._stored_spans = Spans(self.spans[np.arange(count) * len(self.spans) // count])

    @property
    def spans(self) -> np.ndarray:
        """First token and end of every example, (examples, 2) int64."""
        return self._stored_spans.spans

    def __len__(self) -> int:
        return len(self.spans)

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each sequence, (examples,) int64."""
        return np.diff(self.spans, axis=1)[:, 0] + count_special_tokens(self.dataset)

    def __getitem__(self, item: int | tuple[int, int]) -> dict[str, Any]:
        epoch, index = split_item(item)
        generator = random_generator(self.seed, Purpose.EXAMPLE, epoch, index)
        example = make_example(self.store, self.spans[index], self.vocabulary, self.dataset, generator)
        return {**example, "index": index}
