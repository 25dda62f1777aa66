"""Folders of named arrays, which are written row by row and read through memory maps.

Every array is a NumPy file, ``<name>.npy``, which contains its dtype and shape. A folder of `ensure_arrays` is never
incomplete, and it has the manifest that `ensure_folder` writes.
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
    """Return a cache folder of named arrays; if it does not exist, ``write`` creates the arrays first.

    See `ensure_folder` for ``sources``.
    """
    return ensure_folder(root, format_store_name(name), write, sources)


def format_store_name(name: str) -> str:
    """Return the name of a cache folder of arrays, including the version of the format.

    Names of format 1 had no version.
    """
    return f"{name}-v{STORE_FORMAT}"


def choose_token_type(tokenizer: PreTrainedTokenizerFast) -> type[np.unsignedinteger[Any]]:
    """Return the smallest dtype that can hold the ids of a tokenizer, uint16 or uint32."""
    return np.uint16 if len(tokenizer) <= 2**16 else np.uint32


class ArrayWriter(ExitStack):
    """Writer that appends rows to the arrays of a folder with constant memory.

    The arrays are readable after the block.

    Args:
        folder: Existing folder that does not contain these arrays.
        arrays: Mapping from the name of each array to its dtype, or to the dtype and the shape of a row.
        totals: Names of offset arrays. Their input is sizes, and their content is the cumulative sums, from a first row
            of zeros to a last row with the totals.
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
        """Write NumPy's header with enough space for any number of rows."""
        file.seek(0)
        kind, rows = self._types[name], self._rows[name]
        shape = (rows, *kind.shape)
        npy.write_array_header_1_0(file, {"descr": kind.base.str, "fortran_order": False, "shape": shape})


def create_array(folder: Path, name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> None:
    """Create an array of zeros that can be filled in any order. The file takes no disk space before that."""
    npy.open_memmap(folder / f"{name}.npy", "w+", dtype, shape)


def open_arrays(folder: Path) -> dict[str, Any]:
    """Open the arrays of a folder as memory maps, by name. An array without dimensions is returned as a number.

    The result consists of plain arrays, because slicing them is several times faster than slicing NumPy's memory maps.

    Raises:
        ValueError: If a file is not a NumPy file or is truncated. The message names the file.
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
    """Base class of classes whose fields are the memory-mapped arrays of a folder, one field per array file.

    Attributes:
        folder: Folder of the mapped arrays, or None if the arrays are in memory.
    """

    folder: Path | None = field(default=None, kw_only=True)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a folder of arrays as memory maps. Other files in the folder are ignored."""
        names = {entry.name for entry in fields(cls)}
        arrays = {name: array for name, array in open_arrays(folder).items() if name in names}
        return cls(**arrays, folder=folder)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle only the path of the folder for a loader worker, not a copy of the arrays."""
        return super().__reduce_ex__(protocol) if self.folder is None else (type(self).open, (self.folder,))
