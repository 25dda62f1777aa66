"""Text corpora (embedded, local, or from the hub), and their split into training and held-out documents."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adadepth.data.cache import CACHE_FORMAT, CheckedSource, digest
from adadepth.data.text.hub import HubSource, load_hub_rows, warn_once
from adadepth.data.text.local_files import (
    TABLE_SUFFIXES,
    Files,
    estimate_characters,
    find_files_by_use,
    read_lines,
    split_documents,
)
from adadepth.data.text.sources import digest_sources, open_sources
from adadepth.data.text.table_files import read_file_rows
from adadepth.errors import DataError

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


@dataclass(frozen=True)
class Corpus:
    """Source of documents that can be read repeatedly in the same order.

    Attributes:
        documents: Function that yields the texts of part ``shard`` of ``shards``.
        fingerprint: Function that returns values which identify the content.
        characters: Approximate number of characters, or None if it is unknown before the documents are read.
        sources: Source files of the documents.
    """

    documents: Callable[[int, int], Iterator[str]]
    fingerprint: Callable[[], object]
    characters: int | None = None
    sources: Sequence[CheckedSource] = ()


def open_corpora(dataset: CorpusConfig) -> dict[str, Corpus]:
    """Return the corpus ``train`` and, if the settings or the file names define one, the corpus ``evaluation``.

    This function reads no text yet, but it raises an error for missing files.
    """
    if dataset.source == "embedded":
        return {"train": Corpus(_read_embedded, _digest_embedded)}
    if dataset.source == "local":
        return {use: _open_local_corpus(files, dataset) for use, files in find_files_by_use(dataset).items()}
    entries = {"train": dataset.hub, "evaluation": dataset.evaluation_hub}
    return {use: _open_hub_corpus(hub_entries, dataset) for use, hub_entries in entries.items() if hub_entries}


def _open_hub_corpus(entries: list[dict[str, Any]], dataset: CorpusConfig) -> Corpus:
    """Return the corpus of one or more data sets on the hub."""
    sources = list(map(HubSource, entries))
    return Corpus(
        partial(_read_hub, entries, dataset), lambda: [source.digest() for source in sources], sources=sources
    )


def _open_local_corpus(files: Files, dataset: CorpusConfig) -> Corpus:
    """Return the corpus of local text, jsonl, parquet or arrow files in sorted order."""
    separator, column = str(dataset.document_separator), dataset.text_column
    sources = open_sources(*files)
    documents, fingerprint = partial(_read_local, *files, separator, column), partial(digest_sources, sources)
    return Corpus(documents, fingerprint, estimate_characters(files.files), sources)


def _read_embedded(shard: int, shards: int) -> Iterator[str]:
    return islice(read_embedded_documents(), shard, None, shards)


@cache
def _digest_embedded() -> list[int]:
    return [hash_document(text) for text in read_embedded_documents()]


def _read_local(key: str, files: list[Path], separator: str, column: str, shard: int, shards: int) -> Iterator[str]:
    def documents(file: Path) -> Iterator[str]:
        if file.name.endswith(TABLE_SUFFIXES):
            return read_file_rows(key, file, column)
        return split_documents(read_lines(key, file), separator)

    return islice(chain.from_iterable(map(documents, files)), shard, None, shards)


def _read_hub(entries: list[dict[str, Any]], dataset: CorpusConfig, shard: int, shards: int) -> Iterator[str]:
    """Yield the documents of data sets on the hub.

    Stored sets are read one after the other. Streamed sets are read alternately, so that a short run sees all of them.
    """
    separator = str(dataset.document_separator)
    sources = []
    for entry in entries:
        rows, is_part = load_hub_rows(entry, dataset.text_column, dataset.streaming, shard, shards)
        documents = _join_rows(rows, entry, separator)
        sources.append(documents if is_part else islice(documents, shard, None, shards))
    return _take_turns(sources) if dataset.streaming else chain.from_iterable(sources)


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
            return self._with_text(self.held_out.documents(0, 1))
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
        held_out = dataset.evaluation_fraction if self.held_out is None else self.held_out.fingerprint()
        entries = [*dataset.hub, *dataset.evaluation_hub] if dataset.source == "hub" else []
        is_lines = dataset.document_separator == "heading"
        rows = ["lines" if is_lines else entry.get("rows_per_document") for entry in entries]
        options = [dataset.max_documents, str(dataset.document_separator), dataset.text_column, rows, dataset.streaming]
        return digest(CACHE_FORMAT, str(dataset.source), self.corpus.fingerprint(), held_out, options)

    def digest_sources(self) -> dict[str, str]:
        """Return digests of the training corpus and, if there is one, of a separate held-out corpus."""
        corpora = {"train": self.corpus, "evaluation": self.held_out}
        return {side: digest(corpus.fingerprint()) for side, corpus in corpora.items() if corpus is not None}

    def _documents(self, shard: int = 0, shards: int = 1) -> Iterator[str]:
        if self.dataset.max_documents is None:
            return self.corpus.documents(shard, shards)
        return islice(islice(self.corpus.documents(0, 1), self.dataset.max_documents), shard, None, shards)

    @cached_property
    def _is_held_out(self) -> Callable[[str], bool]:
        if self.held_out is not None:
            return partial(_is_among, {hash_document(text) for text in self.held_out.documents(0, 1)})
        return partial(_is_below, self._hash_limit())

    def _hash_limit(self) -> int:
        fraction = self.dataset.evaluation_fraction
        if self.dataset.streaming:
            return int(fraction * 2**64)
        hashes = np.unique(np.fromiter(map(hash_document, filter(str.strip, self._documents())), np.uint64))
        if len(hashes) < 2:
            raise DataError(
                f"dataset.name={self.dataset.name}: {len(hashes)} different document(s) found, but a held-out text "
                "needs at least 2; give dataset.evaluation_path=... or another dataset.document_separator"
            )
        return int(hashes[min(max(1, round(fraction * len(hashes))), len(hashes) - 1)])
