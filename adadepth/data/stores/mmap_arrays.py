"""Folders of named arrays: written row by row, read through memory maps.

Every array is a NumPy file, ``<name>.npy``, with its type and shape. A folder of `ensure_arrays` appears whole or not
at all, with a manifest as `ensure_folder` writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import ArrayLike, DTypeLike
from transformers import PreTrainedTokenizerFast

from adadepth.data.cache import CheckedSource, ensure_folder

STORE_FORMAT = 2  # raise it when the content of such a folder changes


def ensure_arrays(root: Path, name: str, write: Callable[[Path], None], sources: Sequence[CheckedSource] = ()) -> Path:
    """Return the cache folder of some arrays; make it with ``write(empty folder)`` where it is missing.

    For ``sources`` see `ensure_folder`.
    """
    return ensure_folder(root, format_store_name(name), write, sources)


def format_store_name(name: str) -> str:
    """Return the name of a folder of arrays in the cache, with the format; names of format 1 had none."""
    return f"{name}-v{STORE_FORMAT}"


def choose_token_type(tokenizer: PreTrainedTokenizerFast) -> type[np.unsignedinteger[Any]]:
    """Return the smallest type for the ids of a tokenizer, uint16 or uint32."""
    return np.uint16 if len(tokenizer) <= 2**16 else np.uint32


class ArrayWriter(ExitStack):
    """Writer that appends rows to the arrays of a folder, in constant memory; they are readable after the block.

    Args:
        folder: Existing folder without these arrays.
        arrays: Name to the type of an array, or to the type and the shape of a row.
        totals: Names of offset arrays: their input are sizes, their content the running sums, from a first row of zeros
            to a last one of the totals.
    """

    def __init__(self, folder: Path, arrays: Mapping[str, DTypeLike], totals: Collection[str] = ()) -> None:
        super().__init__()
        self._types = {name: np.dtype(kind) for name, kind in arrays.items()}
        self._files = {name: self.enter_context((folder / f"{name}.npy").open("wb")) for name in arrays}
        self._rows = dict.fromkeys(arrays, 0)
        self._totals = {name: np.zeros(self._types[name].shape, self._types[name].base) for name in totals}
        for name, file in self._files.items():
            self._write_header(name, file)
            self.callback(self._write_header, name, file)  # again, with the number of rows
        for name, zeros in self._totals.items():
            self._write(name, zeros[None])

    def append(self, **parts: ArrayLike) -> None:
        """Append rows to some of the arrays."""
        for name, part in parts.items():
            rows = np.asarray(part, self._types[name].base).reshape(-1, *self._types[name].shape)
            if name in self._totals and len(rows):
                rows = self._totals[name] + rows.cumsum(axis=0)
                self._totals[name] = rows[-1]
            self._write(name, rows)

    def _write(self, name: str, rows: np.ndarray) -> None:
        self._files[name].write(rows.tobytes())
        self._rows[name] += len(rows)

    def _write_header(self, name: str, file: BinaryIO) -> None:
        """Write NumPy's header, which leaves room for any number of rows."""
        file.seek(0)
        kind, rows = self._types[name], self._rows[name]
        shape = (rows, *kind.shape)
        npy.write_array_header_1_0(file, {"descr": kind.base.str, "fortran_order": False, "shape": shape})


def create_array(folder: Path, name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> None:
    """Create an array of zeros, to be filled in any order; the file takes no space before that."""
    npy.open_memmap(folder / f"{name}.npy", "w+", dtype, shape)


def open_arrays(folder: Path) -> dict[str, Any]:
    """Map the arrays of a folder by name; an array without dimensions is returned as a number.

    Slices of plain arrays are several times faster than those of NumPy's memory-map objects.

    Raises:
        ValueError: A file is no NumPy file or is truncated; the message names it.
    """
    arrays = {}
    for file in folder.glob("*.npy"):
        try:
            array = np.asarray(np.load(file, mmap_mode="r"))
        except (ValueError, EOFError) as error:
            raise ValueError(f"{file.name} is truncated or not an array") from error
        arrays[file.stem] = array if array.ndim else array.item()
    return arrays


@dataclass(frozen=True)
class StoredArrays:
    """Base class of views of a folder of arrays: a field for each array, by its name.

    Attributes:
        folder: Folder of the mapped arrays; None in memory.
    """

    folder: Path | None = field(default=None, kw_only=True)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Map the arrays of a folder; other files are ignored."""
        names = {entry.name for entry in fields(cls)}
        arrays = {name: array for name, array in open_arrays(folder).items() if name in names}
        return cls(**arrays, folder=folder)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Send a loader worker the folder, not a copy of its content."""
        return super().__reduce_ex__(protocol) if self.folder is None else (type(self).open, (self.folder,))
