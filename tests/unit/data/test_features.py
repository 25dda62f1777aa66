"""Cache of a frozen base's hidden states: stored states, interrupted and shared computations, refusals."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader

from adadepth.data.features import states as features
from adadepth.data.features import store as feature_store
from adadepth.data.features.states import FeatureReader, FeatureStore, RowNumbers, ensure_features
from adadepth.data.labelled.collators import SequenceCollator
from adadepth.errors import DataError
from tests.marks_support import keep_one_quick

WIDTH = 5
STATES = (0, 2, 3)
LENGTHS = (3, 9, 1, 4, 9, 2, 7, 5)


class Examples(list[dict[str, Any]]):
    """List that also takes (epoch, index), as data sets do."""

    def __getitem__(self, item: Any) -> Any:
        return super().__getitem__(item[1] if isinstance(item, tuple) else item)

    def gold(self, index: int) -> list[int]:
        return [index]


def make_examples(lengths: Sequence[int] = LENGTHS, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return Examples(
        {
            "input_ids": rng.integers(1, 50, length), "token_type_ids": np.arange(length) % 2,
            "special_tokens_mask": np.zeros(length, np.uint8), "index": row,
        }
        for row, length in enumerate(lengths)
    )  # fmt: skip


def compute_states(ids: Tensor, types: Tensor, state: int) -> Tensor:
    """Return states of the pretended base: exact in bfloat16, unlike for every id, position, state and column."""
    position = torch.arange(ids.shape[-1])
    return (ids / 8 + types * 8 + position % 4 - state).unsqueeze(-1) * torch.tensor([1.0, -1.0, 0.5, 2.0, 4.0])


class Base:
    """Base that counts its computations, and fails at some batch on request."""

    def __init__(self, fail_at: int | None = None, failure: Callable[[], Any] | None = None) -> None:
        self.batches: list[tuple[int, ...]] = []
        self.rows: list[int] = []
        self.fail_at = fail_at
        self.failure = failure

    def __call__(self, batch: dict[str, Tensor], states: Sequence[int]) -> Mapping[int, Tensor]:
        if len(self.batches) == self.fail_at:
            assert self.failure is not None
            self.failure()
        self.batches.append(tuple(batch["input_ids"].shape))
        self.rows += batch["index"].tolist()
        return {state: compute_states(batch["input_ids"], batch["token_type_ids"], state) for state in states}


def build(root: Path, examples: Any = None, base: Any = None, **changes: Any) -> FeatureStore:
    settings: dict[str, Any] = {
        "states": STATES, "width": WIDTH, "precision": "fp32", "base_key": "weights", "compute": base or Base(),
        "collate": SequenceCollator(0, 64), "batch_tokens": 10,
    }  # fmt: skip
    return ensure_features(root, make_examples() if examples is None else examples, **{**settings, **changes})


def expect_all(store: FeatureStore, examples: Any, dtype: torch.dtype = torch.float32) -> None:
    """Compare every row with the base's values for that row alone."""
    for row, example in enumerate(examples):
        ids, types = torch.from_numpy(example["input_ids"]), torch.from_numpy(example["token_type_ids"])
        states = store.read(np.array([row]), STATES, len(ids) + 2)
        for state in STATES:
            assert torch.equal(states[state][0, :-2], compute_states(ids, types, state).to(dtype))
            assert not states[state][0, -2:].any()


def list_folders(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.is_dir())


def check_one_line(caught: pytest.ExceptionInfo[DataError]) -> str:
    message = str(caught.value)
    assert "\n" not in message
    return message


def interrupt() -> None:
    raise KeyboardInterrupt


def kill_at_third_batch(root: Path) -> None:
    """Compute in another process, which ends without cleaning up."""
    child = os.fork()
    if child == 0:
        try:
            build(root, base=Base(fail_at=2, failure=lambda: os._exit(9)))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def build_together(root: Path, count: int, base: Callable[[int], Any] = lambda rank: Base()) -> list[FeatureStore]:
    """Compute in so many processes that share the work, for which threads stand."""
    barrier = threading.Barrier(count, timeout=600)
    with ThreadPoolExecutor(count) as pool:
        return list(
            pool.map(
                lambda rank: build(root, base=base(rank), processes=(rank, count), barrier=barrier.wait), range(count)
            )
        )


# --- stored states


@pytest.mark.parametrize(("precision", "dtype"), feature_store.PRECISIONS.items())
def test_stored_states_are_the_computed_ones_without_padding(
    tmp_path: Path, precision: str, dtype: torch.dtype
) -> None:
    examples = make_examples()
    store = build(tmp_path, examples, precision=precision)
    expect_all(store, examples, dtype)
    assert len(store) == len(examples)
    for state in STATES:
        stored = np.load(store.folder / f"state_{state:02d}.npy")
        assert stored.nbytes == sum(LENGTHS) * WIDTH * dtype.itemsize


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_a_read_batch_is_the_padded_stack_of_its_rows(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    lengths = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=9))
    rows = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=12))
    examples = make_examples(lengths)
    store = build(tmp_path_factory.mktemp("cache"), examples, batch_tokens=data.draw(st.integers(1, 40)))
    states = store.read(np.array(rows), (2,), 12)
    assert states.keys() == {2}
    for position, row in enumerate(rows):
        expected = torch.zeros(12, WIDTH)
        ids, types = torch.from_numpy(examples[row]["input_ids"]), torch.from_numpy(examples[row]["token_type_ids"])
        expected[: lengths[row]] = compute_states(ids, types, 2)
        assert torch.equal(states[2][position], expected)


def test_batches_hold_rows_of_similar_length_and_few_enough_tokens(tmp_path: Path) -> None:
    base = Base()
    build(tmp_path, base=base, batch_tokens=10, collate=SequenceCollator(0, 64))
    assert sorted(base.rows) == list(range(len(LENGTHS)))
    lengths = [LENGTHS[row] for row in base.rows]
    assert lengths == sorted(LENGTHS, reverse=True)
    longest = iter(lengths)
    for rows, _ in base.batches:
        batch_lengths = [next(longest) for _ in range(rows)]
        assert rows == 1 or rows * batch_lengths[0] <= 10


# --- keys of a cache


def test_the_same_states_are_computed_once(tmp_path: Path) -> None:
    build(tmp_path)
    base = Base()
    expect_all(build(tmp_path, base=base, batch_tokens=100), make_examples())
    assert not base.batches


@pytest.mark.parametrize("change", keep_one_quick(3, ["base", "ids", "types", "cut", "states", "precision", "library"]))
def test_everything_that_changes_a_state_makes_a_new_cache(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path)
    examples, changes = make_examples(), {}
    if change == "base":
        changes["base_key"] = "other weights"
    elif change == "ids":
        examples[4]["input_ids"][3] += 1
    elif change == "types":
        examples[4]["token_type_ids"][3] ^= 1
    elif change == "cut":
        examples = make_examples([min(length, 8) for length in LENGTHS])
    elif change == "states":
        changes["states"] = (0, 1, 2, 3)
    elif change == "precision":
        changes["precision"] = "bf16"
    else:
        monkeypatch.setattr(features.transformers, "__version__", "0")
    base = Base()
    build(tmp_path, examples, base, **changes)
    assert base.batches
    assert len(list_folders(tmp_path)) == 2


def test_the_description_names_base_rows_and_states(tmp_path: Path) -> None:
    store = build(tmp_path, base_key={"weights": "ab12"})
    description = json.loads((store.folder / "features.json").read_text())
    assert description["base"] == {"weights": "ab12"}
    assert (description["rows"], description["tokens"], description["states"]) == (
        len(LENGTHS),
        sum(LENGTHS),
        list(STATES),
    )
    assert (description["width"], description["precision"]) == (WIDTH, "fp32")
    assert {"examples", "torch", "transformers", "format"} <= description.keys()


# --- interrupted and shared computations


@pytest.mark.parametrize("again", [{}, {"batch_tokens": 17}, {"processes": 2}], ids=str)
def test_an_interrupted_computation_is_continued(tmp_path: Path, again: dict[str, int]) -> None:
    first, second = Base(fail_at=3, failure=interrupt), Base()
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, base=first)
    assert list_folders(tmp_path)[0].endswith(".partial")
    stores = build_together(tmp_path, 2) if "processes" in again else [build(tmp_path, base=second, **again)]
    for store in stores:
        expect_all(store, make_examples())
    assert again or sorted(first.rows + second.rows) == list(range(len(LENGTHS)))
    assert not list_folders(tmp_path)[0].endswith(".partial")


def test_saved_states_survive_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_store, "_SAVE_SECONDS", 0.0)
    kill_at_third_batch(tmp_path)
    base = Base()
    expect_all(build(tmp_path, base=base), make_examples())
    assert sorted(LENGTHS[row] for row in base.rows) == sorted(LENGTHS)[:-2]  # the two longest came first


def test_no_batch_is_marked_before_it_reached_the_disk(tmp_path: Path) -> None:
    kill_at_third_batch(tmp_path)  # before the first save
    base = Base()
    expect_all(build(tmp_path, base=base), make_examples())
    assert len(base.rows) == len(LENGTHS)


def test_a_process_killed_while_preparing_does_not_block_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(feature_store, "write_atomic", lambda *_: interrupt())
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path)
    expect_all(build(tmp_path), make_examples())


def test_processes_share_the_work(tmp_path: Path) -> None:
    bases = [Base(), Base(), Base()]
    for store in build_together(tmp_path, 3, bases.__getitem__):
        expect_all(store, make_examples())
    assert all(base.rows for base in bases)
    assert sorted(row for base in bases for row in base.rows) == list(range(len(LENGTHS)))


def test_all_processes_raise_the_same_error(tmp_path: Path) -> None:
    barrier = threading.Barrier(2, timeout=600)

    def run(rank: int) -> str:
        with pytest.raises(DataError) as caught:
            build(tmp_path, limit_gib=0, processes=(rank, 2), barrier=barrier.wait)
        return str(caught.value)

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(run, range(2)))) == 1


def test_only_one_of_several_runs_computes(tmp_path: Path) -> None:
    bases = [Base(), Base()]
    with ThreadPoolExecutor(2) as pool:
        for store in pool.map(lambda base: build(tmp_path, base=base), bases):
            expect_all(store, make_examples())
    assert sum(len(base.rows) for base in bases) == len(LENGTHS)


def test_a_disk_that_processes_do_not_share_is_detected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="have not been computed"):
        build(tmp_path, processes=(0, 2))
    assert list_folders(tmp_path)[0].endswith(".partial")


# --- refusals


def set_free_space(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(features.shutil, "disk_usage", lambda _: SimpleNamespace(free=count))


SIZE = sum(LENGTHS) * WIDTH * 4 * len(STATES)


def test_the_size_is_checked_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = Base()
    with pytest.raises(DataError) as caught:
        build(tmp_path, base=base, limit_gib=(SIZE - 1) / 2**30)
    assert check_one_line(caught).startswith("features.limit_gib=")
    set_free_space(monkeypatch, SIZE - 1)
    with pytest.raises(DataError) as caught:
        build(tmp_path, base=base, limit_gib=SIZE / 2**30)
    assert check_one_line(caught).startswith(f"dataset.cache_dir={tmp_path}: ")
    assert not base.batches
    assert not list_folders(tmp_path)
    set_free_space(monkeypatch, SIZE)
    build(tmp_path)


def test_states_of_an_earlier_run_need_no_more_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, base=Base(fail_at=2, failure=interrupt))
    missing = SIZE - 2 * max(LENGTHS) * WIDTH * 4 * len(STATES)
    set_free_space(monkeypatch, missing - 1)
    with pytest.raises(DataError, match="not yet written"):
        build(tmp_path)
    set_free_space(monkeypatch, missing)
    expect_all(build(tmp_path), make_examples())


def test_finished_states_survive_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = os.pwrite, []

    def write_until_full(file: int, data: Any, position: int) -> int:
        calls.append(position)
        if len(calls) > 3 * len(STATES) + 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data, position)

    first = Base()
    with monkeypatch.context() as patch:
        patch.setattr(feature_store.os, "pwrite", write_until_full)
        with pytest.raises(DataError) as caught:
            build(tmp_path, base=first)
    line = rf"dataset\.cache_dir={tmp_path}: No space left on device \([\d.,]+ MiB are free\); finished states"
    assert re.match(line, check_one_line(caught))
    second = Base()
    expect_all(build(tmp_path, base=second), make_examples())
    assert len(first.batches) == 4
    assert len(second.rows) == len(LENGTHS) - sum(rows for rows, _ in first.batches[:3])


def test_partial_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(feature_store.os, "pwrite", lambda file, data, position: write(file, data[:7], position))
    expect_all(build(tmp_path), make_examples())


def truncate(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, size)


def lengthen(folder: Path) -> None:
    np.save(folder / "lengths.npy", np.load(folder / "lengths.npy") + 1)


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize(
    ("damage", "whole", "unfinished"),
    [
        (truncate("state_02.npy", 8), "state_02.npy is damaged (8 bytes of ", "state_02.npy is "
                                                                              "truncated or not an array"),
        (truncate("features.json", 1), "features.json is damaged (1 bytes of ", "features.json is unreadable"),
        (lambda folder: (folder / "lengths.npy").unlink(), "lengths.npy is missing", "lengths.npy is missing"),
        (lengthen, "lengths.npy has changed since it was written", "lengths.npy belongs to other texts"),
    ],
)  # fmt: skip
def test_a_damaged_cache_is_named_and_rebuilt(
    tmp_path: Path,
    damage: Callable[[Path], None],
    whole: str,
    unfinished: str,
    is_whole: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if is_whole:
        build(tmp_path)
    else:
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path, base=Base(fail_at=2, failure=interrupt))
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    damage(folder)
    base = Base()
    expect_all(build(tmp_path, base=base), make_examples())
    assert len(base.rows) == len(LENGTHS)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert (f"{folder}: damaged (its {whole}" if is_whole else unfinished) in warning


def test_a_cache_copied_to_another_key_is_refused(tmp_path: Path) -> None:
    first = build(tmp_path / "one").folder
    second = build(tmp_path / "two", base_key="other weights").folder
    shutil.rmtree(second)
    shutil.copytree(first, second)
    with pytest.raises(DataError, match="built with base weights, not other weights"):
        build(tmp_path / "two", base_key="other weights")


@pytest.mark.parametrize(
    ("large", "precision", "says"),
    [
        (
            7e4,
            "fp16",
            "features.precision=fp16: hidden state 2 reaches 7e+04, above the 6.55e+04 of fp16; use bf16 or fp32",
        ),
        (float("nan"), "fp32", "features: hidden state 2 of the base model has values that are not finite"),
        (float("inf"), "bf16", "features: hidden state 2 of the base model has values that are not finite"),
    ],
)
def test_values_that_cannot_be_stored_are_refused(tmp_path: Path, large: float, precision: str, says: str) -> None:
    def compute(batch: dict[str, Tensor], states: Sequence[int]) -> dict[int, Tensor]:
        values = dict(Base()(batch, states))
        values[2][0, 0, 0] = large
        return values

    with pytest.raises(DataError) as caught:
        build(tmp_path, base=compute, precision=precision)
    assert check_one_line(caught) == says


def test_states_of_padding_are_ignored(tmp_path: Path) -> None:
    def compute(batch: dict[str, Tensor], states: Sequence[int]) -> dict[int, Tensor]:
        padding = batch["attention_mask"].unsqueeze(2) == 0
        return {state: values.masked_fill(padding, float("nan")) for state, values in Base()(batch, states).items()}

    expect_all(build(tmp_path, base=compute), make_examples())


# --- reading for a model


def test_a_store_is_pickled_as_its_folder(tmp_path: Path) -> None:
    store = build(tmp_path, make_examples([60] * 50))
    sent = pickle.dumps(store)
    assert len(sent) < 1000
    copy = pickle.loads(sent)
    for state, values in copy.read(np.arange(3), STATES, 60).items():
        assert torch.equal(values, store.read(np.arange(3), STATES, 60)[state])


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_get_the_states_of_their_rows(tmp_path: Path, workers: int) -> None:
    train, held_out = make_examples(), make_examples((4, 2, 6), seed=1)
    reader = FeatureReader([build(tmp_path, train), build(tmp_path, held_out, precision="bf16")])
    collate = SequenceCollator(0, 64)

    def collate_rows(examples: Any) -> dict[str, Tensor]:
        return {**collate(examples), "feature_row": torch.tensor([example["feature_row"] for example in examples])}

    for examples, first in ((train, 0), (held_out, len(train))):
        numbered = RowNumbers(examples, first)
        assert numbered[(7, 1)]["feature_row"] == first + 1
        assert numbered.gold(2) == [2]
        loader = DataLoader(numbered, 3, shuffle=True, collate_fn=collate_rows, num_workers=workers)
        for batch in loader:
            extended = reader(batch, (3, 0))
            assert extended.keys() == batch.keys() | {"states"}
            assert tuple(extended["states"]) == (3, 0)
            for state, values in extended["states"].items():
                expected = compute_states(batch["input_ids"], batch["token_type_ids"], state)
                assert values.dtype == torch.float32
                assert torch.equal(values, expected * batch["attention_mask"].unsqueeze(2))
