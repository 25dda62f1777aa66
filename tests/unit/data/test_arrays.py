"""Named arrays on disk, appended in parts and read as a whole."""

from __future__ import annotations

import os
import pickle
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adadepth.data.stores.mmap_arrays import ArrayWriter, StoredArrays, create_array, open_arrays


@dataclass(frozen=True)
class Pair(StoredArrays):
    ids: np.ndarray
    starts: np.ndarray


def write_pair(folder: Path) -> None:
    with ArrayWriter(folder, {"ids": np.uint16, "starts": np.int64}, totals=("starts",)) as writer:
        writer.append(ids=[5, 6, 7], starts=[2, 1])


@settings(max_examples=25, deadline=None)
@given(parts=st.lists(st.lists(st.tuples(*[st.integers(0, 2**16 - 1)] * 3), max_size=9), max_size=5))
def test_parts_are_read_as_one_array(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[tuple[int, int, int]]]
) -> None:
    folder = tmp_path_factory.mktemp("arrays")
    rows = np.array([row for part in parts for row in part], np.int64).reshape(-1, 3)
    kinds = {"flat": np.uint16, "rows": (np.int32, 3), "sums": np.int64, "sums_of_rows": (np.int64, 3)}
    with ArrayWriter(folder, kinds, totals=("sums", "sums_of_rows")) as writer:
        for part in parts:
            first = [row[0] for row in part]
            writer.append(flat=first, rows=part, sums=first, sums_of_rows=part)
    before = np.concatenate([np.zeros((1, 3), np.int64), rows.cumsum(axis=0)])
    expected = {"flat": rows[:, 0].astype(np.uint16), "rows": rows.astype(np.int32), "sums": before[:, 0]}
    arrays = open_arrays(folder)
    assert arrays.keys() == kinds.keys()
    for name, values in {**expected, "sums_of_rows": before}.items():
        assert (arrays[name].dtype, arrays[name].shape) == (values.dtype, values.shape)
        np.testing.assert_array_equal(arrays[name], values)
        np.testing.assert_array_equal(np.load(folder / f"{name}.npy"), values)


def test_arrays_are_mapped_and_cannot_be_written_to(tmp_path: Path) -> None:
    write_pair(tmp_path)
    ids = open_arrays(tmp_path)["ids"]
    assert isinstance(ids.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 1


def test_memory_does_not_grow_with_the_written_arrays(tmp_path: Path) -> None:
    part = np.zeros(2**16, np.int64)
    tracemalloc.start()
    with ArrayWriter(tmp_path, {"ids": np.int64}) as writer:
        for _ in range(40):
            writer.append(ids=part)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * part.nbytes
    assert open_arrays(tmp_path)["ids"].nbytes == 40 * part.nbytes


def test_an_id_beyond_its_type_is_refused(tmp_path: Path) -> None:
    with ArrayWriter(tmp_path, {"ids": np.uint16}) as writer, pytest.raises(OverflowError):
        writer.append(ids=[2**16])


def test_a_view_of_a_file_is_pickled_as_its_folder(tmp_path: Path) -> None:
    write_pair(tmp_path)
    stored = Pair.open(tmp_path)
    in_memory = Pair(np.arange(3), np.array([0, 3]))
    for pair in (stored, in_memory):
        sent = pickle.loads(pickle.dumps(pair))
        assert sent.folder == pair.folder
        assert sent.ids.tolist() == pair.ids.tolist()
        assert sent.starts.tolist() == pair.starts.tolist()
    assert isinstance(pickle.loads(pickle.dumps(stored)).ids.base, np.memmap)


@pytest.mark.parametrize("size", [0, 60, 130])
def test_a_truncated_file_is_named(tmp_path: Path, size: int) -> None:
    write_pair(tmp_path)
    os.truncate(tmp_path / "ids.npy", size)
    with pytest.raises(ValueError, match=r"^ids\.npy is truncated or not an array$"):
        open_arrays(tmp_path)


def test_an_unfilled_array_is_zeros_without_disk_space(tmp_path: Path) -> None:
    create_array(tmp_path, "states", np.int16, (2**20, 8))
    assert (tmp_path / "states.npy").stat().st_blocks * 512 < 2**20
    states = open_arrays(tmp_path)["states"]
    assert (states.dtype, states.shape) == (np.int16, (2**20, 8))
    assert not states[:: 2**16].any()
