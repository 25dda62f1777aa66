"""Streamed training examples, which are read from the corpus without preparation or storage."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerFast

from adadepth.data.cache import CheckedSource, check_sources, require_unchanged
from adadepth.data.pretraining.examples import compute_spans, make_example
from adadepth.data.pretraining.masking import Vocabulary
from adadepth.data.randomness import Purpose, random_generator
from adadepth.data.stores.documents import TokenStore, store_in_memory, tokenise_documents

if TYPE_CHECKING:
    from adadepth.config import CorpusConfig

_DOCUMENTS_AT_ONCE = 64


class StreamedExamples(IterableDataset[dict[str, Any]]):
    """Training examples that are read from a corpus in each epoch, in its order except for a shuffle buffer.

    Every loader worker of every process reads its own shard of the documents and numbers its own examples. The sequence
    is therefore the same for the same seed, epoch, and number of processes and workers. Before and after every epoch,
    the source files are checked for changes.
    """

    def __init__(
        self,
        documents: Callable[[int, int], Iterator[str]],
        tokenizer: PreTrainedTokenizerFast,
        vocabulary: Vocabulary,
        dataset: CorpusConfig,
        seed: int,
        sources: Sequence[CheckedSource] = (),
    ) -> None:
        self.documents = documents
        self.sources = sources
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary
        self.dataset = dataset
        self.seed = seed
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # seen by persistent workers

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration over the examples yields.

        Raises:
            DataError: If a source file of the documents has changed since the run began.
        """
        check_sources(self.sources)
        self._epoch.fill_(epoch)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with require_unchanged(self.sources):
            yield from self._iter_examples(int(self._epoch))

    def _iter_examples(self, epoch: int) -> Iterator[dict[str, Any]]:
        shard, shards = get_reader_number()
        packing = random_generator(self.seed, Purpose.PACKING, epoch, shard)
        spans = self._iter_spans(self.documents(shard, shards), packing)
        buffer = random_generator(self.seed, Purpose.BUFFER, epoch, shard)
        for count, (store, span) in enumerate(shuffle_items(spans, self.dataset.shuffle_buffer, buffer)):
            generator = random_generator(self.seed, Purpose.EXAMPLE, epoch, count * shards + shard)
            yield make_example(store, span, self.vocabulary, self.dataset, generator)

    def _iter_spans(
        self, texts: Iterator[str], packing: np.random.Generator
    ) -> Iterator[tuple[TokenStore, np.ndarray]]:
        documents = tokenise_documents(texts, self.tokenizer)
        while batch := list(islice(documents, _DOCUMENTS_AT_ONCE)):
            store = store_in_memory(batch)
            yield from ((store, span) for span in compute_spans(store, self.dataset, packing).spans)


def get_reader_number() -> tuple[int, int]:
    """Return the number of this data reader and the count of readers, over all processes and their loader workers."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    rank = torch.distributed.get_rank() if distributed else int(os.environ.get("RANK", 0))
    world = torch.distributed.get_world_size() if distributed else int(os.environ.get("WORLD_SIZE", 1))
    worker = get_worker_info()
    worker_id, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
    return rank * workers + worker_id, world * workers


def shuffle_items(items: Iterator[Any], size: int, generator: np.random.Generator) -> Iterator[Any]:
    """Yield ``items`` in random order, shuffled within a buffer of ``size`` items."""
    buffer = list(islice(items, size))
    for item in items:
        position = int(generator.integers(size))
        yield buffer[position]
        buffer[position] = item
    yield from (buffer[int(position)] for position in generator.permutation(len(buffer)))


def take_documents(texts: Iterator[str], tokenizer: PreTrainedTokenizerFast, dataset: CorpusConfig) -> TokenStore:
    """Collect held-out documents until they fill ``max_evaluation_examples`` examples, and hold them in memory.

    If this setting is None, return all documents.
    """
    limit = dataset.max_evaluation_examples
    missing = float("inf") if limit is None else limit * dataset.sequence_length
    documents = []
    for document in tokenise_documents(texts, tokenizer):
        documents.append(document)
        missing -= sum(map(len, document))
        if missing <= 0:
            break
    return store_in_memory(documents)
