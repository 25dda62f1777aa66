"""Tokenisation of a long text in parts by several processes. A later run resumes an interrupted one.

A part is a sequence of consecutive texts with at least `PART` characters in total, so the parts depend on the text
alone. One process encodes a part into a file next to the folder that is being built. The parts are then appended to the
folder in order. The arrays are therefore byte-identical for any number of processes and interruptions. Each process
holds only a few parts in memory. The file of a part contains a digest of its texts and a checksum of every array. It is
reused only if both match.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from joblib import Parallel, cpu_count, delayed, parallel_config
from numpy.typing import DTypeLike

from adadepth.data.cache import CheckedSource, digest, remove_path
from adadepth.data.stores.mmap_arrays import ArrayWriter, ensure_arrays, format_store_name
from adadepth.errors import DataError
from adadepth.runtime.console import progress
from adadepth.runtime.distributed import stop_when_parent_exits

if TYPE_CHECKING:
    from adadepth.config.data import TextConfig

PART = 2**21  # characters, a second or two of a tokenizer's time
_ALONE = 4  # parts that this process encodes before it starts others
_WAITING = 2  # parts that are read ahead for each process
_IDLE = 5  # seconds before an idle worker ends

Arrays = dict[str, np.ndarray]
Encode = Callable[[list[str]], Arrays]


class Encoding(NamedTuple):
    """Function that tokenises texts, with the names and dtypes of the arrays that it fills on disk.

    Attributes:
        encode: Function from texts to rows of every array, as in `ArrayWriter.append`. Worker processes get a copy of
            it.
        arrays: Mapping from the name of each array to its dtype and shape, as in `ArrayWriter`.
        totals: Names of the offset arrays.
    """

    encode: Encode
    arrays: Mapping[str, DTypeLike]
    totals: Collection[str]


def prepare_workers(dataset: TextConfig) -> int:
    """Return the number of processes for tokenisation: the configured number, or one for each available core."""
    return dataset.prepare_workers or cpu_count()


def ensure_texts(
    root: Path,
    name: str,
    texts: Callable[[], Iterable[str]],
    encoding: Encoding,
    workers: int,
    characters: int | None = None,
    sources: Sequence[CheckedSource] = (),
) -> Path:
    """Return the cache folder with the arrays of a tokenised text, and tokenise the text first if it is missing.

    Args:
        root: Cache folder.
        name: Name of the folder, which must identify the text and its encoding.
        texts: Function that yields the same texts in the same order on every call.
        encoding: Encoding of the texts.
        workers: Number of processes that encode.
        characters: Approximate number of characters. If it is None, the progress shows no remaining time.
        sources: Sources of the texts; see `ensure_folder`.
    """
    parts_folder = root / f"{format_store_name(name)}.parts"

    def write(folder: Path) -> None:
        progress_bar = progress("tokenising", characters, of="characters")
        with progress_bar as advance, ArrayWriter(folder, encoding.arrays, encoding.totals) as writer:
            for size, rows in encode_parts(texts(), encoding.encode, parts_folder, workers):
                writer.append(**rows)
                advance(size)

    folder = ensure_arrays(root, name, write, sources)
    shutil.rmtree(parts_folder, ignore_errors=True)
    return folder


def encode_parts(
    texts: Iterable[str], encode: Encode, parts_folder: Path, workers: int
) -> Iterator[tuple[int, Arrays]]:
    """Tokenise a text in parts by several processes; yield each part's number of characters and arrays in order.

    Args:
        texts: Texts in order.
        encode: Function from the texts of a part to its rows.
        parts_folder: Folder of encoded parts, possibly from an earlier run. It is created only for a long text.
        workers: Number of processes that encode. With 1, this process encodes.

    Raises:
        DataError: If a process was killed.
    """
    parts = cut_parts(texts, PART)
    for part in islice(parts, _ALONE):
        yield _count_characters(part), encode(part)
    following = next(parts, None)
    if following is None:
        return
    if not parts_folder.is_dir():
        remove_path(parts_folder)
    parts_folder.mkdir(parents=True, exist_ok=True)
    payload = pickle.dumps(encode)
    tasks = (
        delayed(_encode_part)(payload, part, parts_folder / f"{number}.npz")
        for number, part in enumerate(chain([following], parts), start=_ALONE)
    )
    # Workers end soon after the last part, and with this process, which may be killed.
    ends = {"idle_worker_timeout": _IDLE, "initializer": stop_when_parent_exits, "initargs": (os.getpid(),)}
    with parallel_config("loky", temp_folder=str(parts_folder), **ends):
        run = Parallel(workers, return_as="generator", pre_dispatch=_WAITING * workers, batch_size=1)
    try:
        for part in run(tasks):
            if (arrays := _read_part(part.file, part.texts)) is None:
                raise DataError(f"{part.file}: changed while the cache was built; start again")
            yield part.size, arrays
    except BrokenProcessPool as error:
        raise DataError(
            f"dataset.prepare_workers={workers}: a tokenising process was killed, perhaps for lack of memory; the "
            "same command continues the work, and fewer processes need less memory"
        ) from error


def cut_parts(texts: Iterable[str], characters: int) -> Iterator[list[str]]:
    """Group texts into parts of at least ``characters`` characters; the last part may be shorter."""
    part: list[str] = []
    size = 0
    for text in texts:
        part.append(text)
        size += len(text) + 1
        if size >= characters:
            yield part
            part, size = [], 0
    if part:
        yield part


def _count_characters(part: list[str]) -> int:
    return sum(map(len, part)) + len(part)


class _Part(NamedTuple):
    """Part of a text that is tokenised separately: its number of characters, its file, and the hash of its texts."""

    size: int
    file: Path
    texts: str


def _encode_part(payload: bytes, part: list[str], file: Path) -> _Part:
    """Tokenise a part of a text into a file, unless that file is already complete and matches the texts."""
    texts = digest(part)
    if _read_part(file, texts) is None:
        arrays = _unpickle(payload)(part)
        temporary = file.with_suffix(f".{os.getpid()}.partial")
        with temporary.open("wb") as stream:
            np.savez(stream, **arrays, **{_TEXTS: np.array(texts)})  # type: ignore[arg-type]
            stream.flush()
            os.fsync(stream.fileno())
        if file.is_dir():
            remove_path(file)
        temporary.rename(file)
    return _Part(_count_characters(part), file, texts)


@lru_cache(maxsize=1)
def _unpickle(payload: bytes) -> Encode:
    """Unpickle the encoding function once per process, because loading a tokenizer takes a tenth of a second."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for every core
    encode: Encode = pickle.loads(payload)
    return encode


_TEXTS = "digest of texts"


def _read_part(file: Path, texts: str) -> Arrays | None:
    """Load the arrays of a tokenised part, or return None if the file is missing, damaged or from other texts."""
    try:
        with np.load(file) as stored:  # an archive has a checksum of each array, which is compared
            arrays = dict(stored)
        made_of = arrays.pop(_TEXTS).item()
    except Exception:  # whatever lies there: a folder, an empty file, half an archive
        return None
    return arrays if made_of == texts else None
