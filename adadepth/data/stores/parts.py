"""Arrays of a long text, made in parts by several processes; a preparation that was killed goes on with its parts.

A part is a run of texts with at least `PART` characters together, which follows from the text alone. Each is encoded
by one process and kept in a file of its own beside the folder that is being made, to which the parts are appended in
their order. So the arrays are the same bytes for any number of processes and of kills, and memory holds a few parts a
process. A file of a part holds a digest of the texts that it was made of, and a checksum of every array: it is taken up
again only where both are as they were.
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
from adadepth.data.stores.arrays import ArrayWriter, cached_arrays, versioned
from adadepth.errors import DataError
from adadepth.system.console import progress
from adadepth.system.processes import end_with_parent

if TYPE_CHECKING:
    from adadepth.settings.data import TextConfig

PART = 2**21  # characters, a second or two of a tokenizer's time
_ALONE = 4  # parts that are encoded before it pays to start processes
_WAITING = 2  # parts that are read ahead, a process
_IDLE = 5  # seconds

Arrays = dict[str, np.ndarray]
Encode = Callable[[list[str]], Arrays]


class Encoding(NamedTuple):
    """How texts become arrays.

    Attributes:
        encode: From texts to rows of every array, as `ArrayWriter.append` takes them; other processes get a copy.
        arrays: Name to type and shape, as `ArrayWriter` takes them.
        totals: Names of those that say where things begin.
    """

    encode: Encode
    arrays: Mapping[str, DTypeLike]
    totals: Collection[str]


def prepare_workers(dataset: TextConfig) -> int:
    """How many processes prepare a text: those that its settings name, or one for every core of this process."""
    return dataset.prepare_workers or cpu_count()


def cached_texts(
    root: Path,
    name: str,
    texts: Callable[[], Iterable[str]],
    encoding: Encoding,
    workers: int,
    characters: int | None = None,
    sources: Sequence[CheckedSource] = (),
) -> Path:
    """Return the folder of a text's arrays in the cache, made first where it is not there.

    Args:
        root: Of the cache.
        name: Of the folder; it says which text it is, and which encoding.
        texts: Yields the same texts in the same order, each time.
        encoding: Of a part.
        workers: Processes that encode.
        characters: Of all texts, about; None: nobody knows, and how many are done is told in place of the time left.
        sources: What the texts are read from, see `cached_folder`.
    """
    parts_folder = root / f"{versioned(name)}.parts"

    def write(folder: Path) -> None:
        progress_bar = progress("tokenising", characters, of="characters")
        with progress_bar as advance, ArrayWriter(folder, encoding.arrays, encoding.totals) as writer:
            for size, rows in encoded_parts(texts(), encoding.encode, parts_folder, workers):
                writer.append(**rows)
                advance(size)

    folder = cached_arrays(root, name, write, sources)
    shutil.rmtree(parts_folder, ignore_errors=True)
    return folder


def encoded_parts(
    texts: Iterable[str], encode: Encode, parts_folder: Path, workers: int
) -> Iterator[tuple[int, Arrays]]:
    """Yield the characters and the rows of every part, in order.

    Args:
        texts: In order.
        encode: From the texts of a part to its rows.
        parts_folder: Folder of the parts that were encoded, which may be there from before; made for a long text only.
        workers: Processes that encode; 1: this one.

    Raises:
        DataError: A process was killed.
    """
    parts = cut(texts, PART)
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
    ends = {"idle_worker_timeout": _IDLE, "initializer": end_with_parent, "initargs": (os.getpid(),)}
    with parallel_config("loky", temp_folder=str(parts_folder), **ends):
        run = Parallel(workers, return_as="generator", pre_dispatch=_WAITING * workers, batch_size=1)
    try:
        for part in run(tasks):
            if (arrays := _read_part(part.file, part.texts)) is None:
                raise DataError(f"{part.file}: changed while the cache was made of it; start again")
            yield part.size, arrays
    except BrokenProcessPool as error:
        raise DataError(
            f"dataset.prepare_workers={workers}: a process was killed while it tokenised, for want of memory perhaps; "
            "the same command goes on with what is done, and fewer processes need less"
        ) from error


def cut(texts: Iterable[str], characters: int) -> Iterator[list[str]]:
    """Cut texts into parts of at least so many characters; a text is whole, and the last part may be shorter."""
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
    """A part that was encoded: its characters, its file, and the digest of its texts."""

    size: int
    file: Path
    texts: str


def _encode_part(payload: bytes, part: list[str], file: Path) -> _Part:
    """Encode a part into its file, unless the file was made of the same texts and is whole."""
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
    """What encodes, read once a process: a tokenizer takes a tenth of a second."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for every core
    encode: Encode = pickle.loads(payload)
    return encode


_TEXTS = "digest of texts"


def _read_part(file: Path, texts: str) -> Arrays | None:
    """Return the arrays of a file; None where it is missing, damaged, or was made of other texts."""
    try:
        with np.load(file) as stored:  # an archive has a checksum of each array, which is compared
            arrays = dict(stored)
        made_of = arrays.pop(_TEXTS).item()
    except Exception:  # whatever lies there: a folder, an empty file, half an archive
        return None
    return arrays if made_of == texts else None
