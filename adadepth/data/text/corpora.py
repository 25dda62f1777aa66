"""Text corpora (embedded, local, or from the hub), and their split into training and held-out documents."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property, partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from adadepth.data.cache import CACHE_FORMAT, CheckedSource, digest
from adadepth.data.held_out import count_held_out
from adadepth.data.text.hub import HubSource, load_hub_rows, warn_once
from adadepth.data.text.local_files import TABLE_SUFFIXES, estimate_characters, read_lines, split_documents
from adadepth.data.text.sources import SourceFile, digest_sources
from adadepth.data.text.table_files import read_file_rows
from adadepth.data.text.text_source import TextSource, find_sources_by_use

if TYPE_CHECKING:
    from adadepth.config import CorpusConfig


_RULE = re.compile(r"^[*=\-~^\"#+| ]{3,}$")  # heading underlines and table borders
_ROW = re.compile(r"^\|(.*)\|$")  # of a table
_EMPHASIS = re.compile(r"(?<![\w*])\*{1,2}(?=\S)([^*\n]+?)(?<=\S)\*{1,2}(?![\w*])")
_VERBATIM = re.compile(r">>>|::=|^\s*\|", re.MULTILINE)  # sessions, grammar and tables keep their lines
_SHORTEST = 200  # characters of a topic's own text; shorter topics are dropped


def _clean(paragraph: str) -> str:
    """Remove heading underlines and emphasis marks from a text, and join its hard-wrapped lines."""
    lines = [" ".join(line.split()) for line in paragraph.splitlines() if not _RULE.match(line)]
    if _VERBATIM.search(paragraph):
        rows = (_ROW.sub(lambda row: " ".join(row[1].replace("|", " ").split()), line) for line in lines)
        return "\n".join(row for row in rows if row)
    return _EMPHASIS.sub(r"\1", " ".join(lines))


def read_embedded_documents() -> Iterator[str]:
    """Yield the documents of the package's text, one for each topic, in an order that depends only on the texts."""
    yield from _clean_topics()


@cache
def _clean_topics() -> tuple[str, ...]:
    """Return the cleaned documents of the text in the package, cached because they are read several times.

    Long topics quote short ones in full (``specialnames`` contains ``customization``). Every paragraph is kept only in
    the shortest topic that has it. No text is therefore in both the training and the held-out documents.
    """
    from pydoc_data.topics import topics

    seen: set[str] = set()
    documents = []
    for name in sorted(topics, key=lambda name: (len(topics[name]), name)):
        cleaned = (_clean(paragraph) for paragraph in re.split(r"\n\s*\n", topics[name]))
        paragraphs = [text for text in cleaned if text and text not in seen]
        seen.update(paragraphs)
        document = "\n".join(paragraphs)
        if len(document) >= _SHORTEST:
            documents.append(document)
    return tuple(documents)


def open_corpora(dataset: CorpusConfig) -> dict[str, TextSource]:
    """Return the corpus ``train`` and, if the settings or the file names define one, the corpus ``evaluation``.

    The rows of a corpus are its documents. This function reads no text yet, but it raises an error for missing files.
    """
    if dataset.source == "embedded":
        return {"train": TextSource(_read_embedded, _digest_embedded)}
    return {use: _open_corpus(sources, dataset) for use, sources in find_sources_by_use(dataset).items()}


def _open_corpus(sources: list[Any], dataset: CorpusConfig) -> TextSource:
    """Return the corpus of local text, jsonl, parquet or arrow files in sorted order, or of data sets on the hub."""
    is_local = dataset.source == "local"
    characters = estimate_characters(file.path for file in sources) if is_local else None
    read = partial(_read_local if is_local else _read_hub, sources, dataset)
    return TextSource(read, partial(digest_sources, sources), characters=characters, sources=sources)


def _read_embedded(shard: int = 0, shards: int = 1) -> Iterator[str]:
    return islice(read_embedded_documents(), shard, None, shards)


@cache
def _digest_embedded() -> list[int]:
    return [hash_document(text) for text in read_embedded_documents()]


def _read_local(sources: list[SourceFile], dataset: CorpusConfig, shard: int = 0, shards: int = 1) -> Iterator[str]:
    separator, column = str(dataset.document_separator), dataset.text_column

    def documents(source: SourceFile) -> Iterator[str]:
        if source.path.name.endswith(TABLE_SUFFIXES):
            return read_file_rows(source.key, source.path, column)
        return split_documents(read_lines(source.key, source.path), separator)

    return islice(chain.from_iterable(map(documents, sources)), shard, None, shards)


def _read_hub(sources: list[HubSource], dataset: CorpusConfig, shard: int = 0, shards: int = 1) -> Iterator[str]:
    """Yield the documents of data sets on the hub.

    Stored sets are read one after the other. Streamed sets are read alternately, so that a short run sees all of them.
    """
    separator = str(dataset.document_separator)
    parts = []
    for entry in (source.entry for source in sources):
        rows, is_part = load_hub_rows(entry, dataset.text_column, dataset.streaming, shard, shards)
        documents = _join_rows(rows, entry, separator)
        parts.append(documents if is_part else islice(documents, shard, None, shards))
    return _take_turns(parts) if dataset.streaming else chain.from_iterable(parts)


def _join_rows(rows: Iterator[str], entry: Mapping[str, Any], separator: str) -> Iterator[str]:
    """Join table rows into documents: single rows, all rows up to the next title (WikiText), or n rows (BookCorpus)."""
    if separator == "heading":
        return split_documents(chain.from_iterable(row.removesuffix("\n").split("\n") for row in rows), separator)
    size = int(entry.get("rows_per_document") or 1)
    return iter(lambda: "\n".join(islice(rows, size)), "") if size > 1 else rows


def _take_turns(sources: Iterable[Iterator[str]]) -> Iterator[str]:
    waiting = list(sources)
    while waiting:
        for source in list(waiting):
            document = next(source, None)
            if document is None:
                waiting.remove(source)
            else:
                yield document


def hash_document(text: str) -> int:
    """Return a 64-bit hash of a text that ignores differences in white space."""
    return int.from_bytes(hashlib.blake2b(" ".join(text.split()).encode(), digest_size=8).digest(), "big")


def _is_among(hashes: set[int], text: str) -> bool:
    return hash_document(text) in hashes


def _is_below(limit: int, text: str) -> bool:
    return hash_document(text) < limit


class Split:
    """Split of a corpus into training and held-out documents.

    The hash of a text identifies a document, so that a text that occurs twice is on one side only. The held-out
    documents are

    * those that ``evaluation_path``, ``evaluation_hub`` or the names of files in a folder define (the same texts are
      removed from training); or otherwise
    * the ``evaluation_fraction`` of distinct documents with the smallest hashes, at least one. If the corpus is
      streamed, the number of documents is unknown. Then all documents with a hash in the lowest ``evaluation_fraction``
      of the range of hashes are held out.
    """

    def __init__(self, dataset: CorpusConfig) -> None:
        self.dataset = dataset
        corpora = open_corpora(dataset)
        self.corpus, self.held_out = corpora["train"], corpora.get("evaluation")

    def train(self, shard: int = 0, shards: int = 1) -> Iterator[str]:
        """Yield the training documents, or part ``shard`` of ``shards`` parts of them."""
        is_held_out = self._is_held_out
        return (text for text in self._with_text(self._documents(shard, shards)) if not is_held_out(text))

    def evaluation(self) -> Iterator[str]:
        """Yield the held-out documents that are not blank."""
        if self.held_out is not None:
            return self._with_text(self.held_out.rows())
        is_held_out = self._is_held_out
        return (text for text in self._with_text(self._documents()) if is_held_out(text))

    @property
    def sources(self) -> list[CheckedSource]:
        """Source files of the training and the held-out documents."""
        return [source for corpus in (self.corpus, self.held_out) if corpus is not None for source in corpus.sources]

    @property
    def characters(self) -> int | None:
        """Approximate number of characters of the training documents, or None if it is unknown before they are read."""
        return self.corpus.characters if self.dataset.max_documents is None else None

    def _with_text(self, documents: Iterator[str]) -> Iterator[str]:
        """Yield the documents that contain text, and log a warning about blank ones."""
        seen = blank = 0
        try:
            for text in documents:
                seen, blank = seen + 1, blank + (not text.strip())
                if text.strip():
                    yield text
        finally:  # the reader may stop early
            if blank:
                warn_once(f"dataset.name={self.dataset.name}", f"{blank} of {seen} documents are blank and are skipped")

    @cached_property
    def key(self) -> str:
        """Hash of the split settings and of the corpora's content, which identifies the split in a cache."""
        dataset = self.dataset
        held_out = dataset.evaluation_fraction if self.held_out is None else self.held_out.key()
        entries = [*dataset.hub, *dataset.evaluation_hub] if dataset.source == "hub" else []
        is_lines = dataset.document_separator == "heading"
        rows = ["lines" if is_lines else entry.get("rows_per_document") for entry in entries]
        options = [dataset.max_documents, str(dataset.document_separator), dataset.text_column, rows, dataset.streaming]
        return digest(CACHE_FORMAT, str(dataset.source), self.corpus.key(), held_out, options)

    def digest_sources(self) -> dict[str, str]:
        """Return digests of the training corpus and, if there is one, of a separate held-out corpus."""
        corpora = {"train": self.corpus, "evaluation": self.held_out}
        return {side: digest(corpus.key()) for side, corpus in corpora.items() if corpus is not None}

    def _documents(self, shard: int = 0, shards: int = 1) -> Iterator[str]:
        if self.dataset.max_documents is None:
            return self.corpus.rows(shard, shards)
        return islice(islice(self.corpus.rows(), self.dataset.max_documents), shard, None, shards)

    @cached_property
    def _is_held_out(self) -> Callable[[str], bool]:
        if self.held_out is not None:
            return partial(_is_among, {hash_document(text) for text in self.held_out.rows()})
        return partial(_is_below, self._hash_limit())

    def _hash_limit(self) -> int:
        fraction = self.dataset.evaluation_fraction
        if self.dataset.streaming:
            return int(fraction * 2**64)
        hashes = np.unique(np.fromiter(map(hash_document, filter(str.strip, self._documents())), np.uint64))
        count = count_held_out(
            len(hashes),
            fraction,
            subject=f"dataset.name={self.dataset.name}",
            unit="different document(s)",
            advice="give dataset.evaluation_path=... or another dataset.document_separator",
        )
        return int(hashes[count])
