"""Hidden states of texts as named arrays on disk, one array for each state, without padding.

A row is one text. State b is the hidden state of the base model after b blocks. The rows are sorted from the longest to
the shortest. A batch of similar lengths is therefore one contiguous piece of every file, and the offsets of rows follow
from the lengths alone.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from adadepth.data.batches import order_longest_first
from adadepth.data.stores.mmap_arrays import StoredArrays, create_array, open_arrays
from adadepth.errors import DataError
from adadepth.runtime.files import write_atomic

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DESCRIPTION = "features.json"
_BITS: dict[int, tuple[torch.dtype, type[np.generic]]] = {2: (torch.int16, np.int16), 4: (torch.int32, np.int32)}
_SAVE_SECONDS = 10.0  # waiting for the disk after every batch would take longer than computing it

Description = dict[str, Any]  # rows, tokens, states, width, precision, and what the states were computed from


@dataclass(frozen=True)
class FeatureStore(StoredArrays):
    """Stored hidden states of a set of texts, read through memory maps.

    Attributes:
        states: Mapping from state numbers to the bits of the values, (tokens, K) int16 or int32. Integers are used
            because numpy has no bfloat16.
        dtype: Floating-point type of the stored bits.
        lengths: Number of tokens of each row, (rows,) int64.
        starts: Offset of each row in the files, (rows,) int64.
    """

    states: dict[int, np.ndarray]
    dtype: torch.dtype
    lengths: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    def read(self, rows: np.ndarray, states: Iterable[int], width: int) -> dict[int, Tensor]:
        """Return states of some rows as a padded batch, (B, width, K), in the stored dtype and with 0 at padding.

        Only the files of these states are read.
        """
        pieces = list(zip(self.starts[rows].tolist(), self.lengths[rows].tolist(), strict=True))
        batch = {}
        for state in states:
            stored = self.states[state]
            values = torch.empty((len(rows), width, stored.shape[1]), dtype=self.dtype)
            bits = values.view(_BITS[values.itemsize][0]).numpy()
            for row, (start, length) in zip(bits, pieces, strict=True):
                row[:length] = stored[start : start + length]
                row[length:] = 0
            batch[state] = values
        return batch

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a folder of stored states as memory maps. The states of all rows must be finished.

        Raises:
            DataError: If anything is missing, truncated or unfinished. The folder is not changed.
        """
        description, arrays = _check_arrays(folder)
        if not arrays["finished"].all():
            raise _make_damage_error(folder, "some rows have not been computed")
        order, lengths = order_longest_first(arrays["lengths"]), arrays["lengths"]
        starts = np.empty_like(lengths)
        starts[order] = lengths[order].cumsum() - lengths[order]
        states = {state: arrays[_format_state_name(state)] for state in description["states"]}
        return cls(states, PRECISIONS[description["precision"]], lengths, starts, folder=folder)


class FeatureWriter(ExitStack):
    """Writer of stored hidden states. Several processes may write at once, each its own rows.

    Positions follow the order of the rows in the files. A row is marked as finished only after its values have reached
    the disk. The marks therefore stay correct if the process is killed or the disk is full. The end of the block saves
    all values, also after a failure.

    Attributes:
        order: Row number of the row at each position of the files, (rows,) int64.
        lengths: Number of tokens at each position, (rows,) int64, the longest first.
        finished: Mark of each row, (rows,) uint8: 1 if the row is finished. The array is shared with the other
            processes.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        description, arrays = _check_arrays(folder)
        self.order = order_longest_first(arrays["lengths"])
        self.lengths = arrays["lengths"][self.order]
        self.finished = np.load(folder / "finished.npy", mmap_mode="r+")
        self._dtype = PRECISIONS[description["precision"]]
        self._width = description["width"]
        self._starts = self.lengths.cumsum() - self.lengths
        files = {state: folder / f"{_format_state_name(state)}.npy" for state in description["states"]}
        self._first = {state: np.load(file, mmap_mode="r").offset for state, file in files.items()}
        self._files = {state: self.enter_context(file.open("r+b", buffering=0)) for state, file in files.items()}
        self._unsaved: list[slice] = []
        self._saved_at = time.monotonic()
        self.callback(self.save)  # before the files are closed

    def write(self, rows: slice, states: Mapping[int, Tensor]) -> None:
        """Write the hidden states of consecutive rows.

        Args:
            rows: Positions of the rows in the files.
            states: Mapping from state numbers to values (B, T, K) on any device, padded on the right.

        Raises:
            DataError: If a value is not finite, or if it is too large for the stored precision.
        """
        lengths = torch.from_numpy(self.lengths[rows])
        for state, file in self._files.items():
            values = states[state]
            assert values.shape[2] == self._width, "the width of a state"
            real = torch.arange(values.shape[1]) < lengths.unsqueeze(1)
            stored = _convert(values[real.to(values.device)], self._dtype, state)
            content = stored.cpu().contiguous().view(torch.uint8).numpy().data.cast("B")
            first = self._first[state] + int(self._starts[rows.start]) * self._width * stored.itemsize
            _write_all(file.fileno(), content, first)
        self._unsaved.append(rows)
        if time.monotonic() - self._saved_at >= _SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Wait until all written states have reached the disk, then mark their rows as finished."""
        for file in self._files.values():
            os.fsync(file.fileno())
        for rows in self._unsaved:
            self.finished[rows] = 1
        self.finished.flush()
        self._unsaved.clear()
        self._saved_at = time.monotonic()


def create_store(folder: Path, description: Description, lengths: np.ndarray) -> None:
    """Create the array files of a feature store with all rows unfinished. They take no disk space until filled."""
    shutil.rmtree(folder, ignore_errors=True)  # of a process killed in this very function
    folder.mkdir()
    for name, (kind, shape) in _describe_arrays(description).items():
        create_array(folder, name, kind, shape)
    np.save(folder / "lengths.npy", lengths)
    write_atomic(folder / DESCRIPTION, json.dumps(description, indent=2) + "\n")  # last: with it the folder is usable


def check_description(folder: Path, expected: Description) -> None:
    """Raise an error if a feature store was built from another model or other texts, or if its files are damaged.

    Raises:
        DataError: If they differ. The message is one line with the first difference.
    """
    description, _ = _check_arrays(folder)
    for name, value in json.loads(json.dumps(expected)).items():
        if description.get(name) != value:
            raise _make_damage_error(folder, f"it was built with {name} {description.get(name)}, not {value}")


def count_finished_tokens(folder: Path) -> int:
    """Return the number of tokens whose hidden states have been computed."""
    arrays = _check_arrays(folder)[1]
    lengths = arrays["lengths"]
    return int(lengths[order_longest_first(lengths)] @ arrays["finished"].astype(np.int64))


def count_bytes(description: Description, tokens: int | None = None) -> int:
    """Return the size in bytes of the stored hidden states of ``tokens`` tokens, by default of all tokens."""
    token_bytes = len(description["states"]) * description["width"] * PRECISIONS[description["precision"]].itemsize
    return int(token_bytes * (description["tokens"] if tokens is None else tokens))


def _check_arrays(folder: Path) -> tuple[Description, dict[str, np.ndarray]]:
    """Load the description and arrays of a feature store, and raise an error if they contradict each other."""
    try:
        description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        expected = _describe_arrays(description)
        arrays = open_arrays(folder)
    except FileNotFoundError as error:
        raise _make_damage_error(folder, f"{Path(error.filename).name} is missing") from error
    except (KeyError, TypeError, json.JSONDecodeError, UnicodeError) as error:
        raise _make_damage_error(folder, f"{DESCRIPTION} is unreadable") from error
    except ValueError as error:
        raise _make_damage_error(folder, str(error)) from error
    for name, (kind, shape) in expected.items():
        if name not in arrays:
            raise _make_damage_error(folder, f"{name}.npy is missing")
        if (arrays[name].dtype, arrays[name].shape) != (kind, shape):
            raise _make_damage_error(folder, f"{name}.npy belongs to other texts")
    if arrays["lengths"].sum() != description["tokens"]:
        raise _make_damage_error(folder, "lengths.npy belongs to other texts")
    return description, arrays


def _describe_arrays(description: Description) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Return the dtype and shape that each array file of a feature store must have, by name."""
    bits = np.dtype(_BITS[PRECISIONS[description["precision"]].itemsize][1])
    states = {
        _format_state_name(state): (bits, (description["tokens"], description["width"]))
        for state in description["states"]
    }
    rows = (description["rows"],)
    return {"lengths": (np.dtype(np.int64), rows), "finished": (np.dtype(np.uint8), rows), **states}


def _make_damage_error(folder: Path, what: str) -> DataError:
    return DataError(f"features={folder}: not a complete cache of this base and these texts: {what}")


def _format_state_name(state: int) -> str:
    return f"state_{state:02d}"


def _convert(values: Tensor, dtype: torch.dtype, state: int) -> Tensor:
    stored = values.to(dtype)
    if not stored.isfinite().all():
        if values.isfinite().all():
            largest = f"{values.abs().max().item():.3g}, above the {torch.finfo(dtype).max:.3g} of fp16"
            raise DataError(f"features.precision=fp16: hidden state {state} reaches {largest}; use bf16 or fp32")
        raise DataError(f"features: hidden state {state} of the base model has values that are not finite")
    return stored


def _write_all(file: int, rest: memoryview, position: int) -> None:
    while rest:  # a system call may write less than it is given
        written = os.pwrite(file, rest, position)
        rest, position = rest[written:], position + written
