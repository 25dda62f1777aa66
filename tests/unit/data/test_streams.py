"""Rows, slots, processes and phases of streams, each compared with a plain loop over the tokens."""

from __future__ import annotations

import pickle
from math import ceil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from adadepth.data.stores.documents import LineStore
from adadepth.data.streams.contiguous import RowShare, StreamBatches, TokenStream, TwoPhase, is_architecture_step

EOS, PAD = 1, 0


def make_store(tokens: int, folder: Path | None = None) -> LineStore:
    """Return tokens that count up from 10, in lines of one token, one word, two characters and three bytes."""
    values = np.arange(10, 10 + tokens, dtype=np.uint16)
    lines = np.arange(tokens + 1)[:, None] * np.array([1, 1, 2, 3])
    if folder is None:
        return LineStore(values, lines)
    np.save(folder / "tokens.npy", values)
    np.save(folder / "lines.npy", lines)
    return LineStore.open(folder)


def make_batches(
    tokens: int, length: int, share: RowShare, two_phase: TwoPhase | None = None, store: LineStore | None = None
) -> StreamBatches:
    store = make_store(tokens) if store is None else store
    parts = {"weights": (0, tokens)}
    if two_phase is not None:
        cut = tokens - round(two_phase.share * tokens)
        parts = {"weights": (0, cut), "architecture": (cut, tokens)}
    streams = {name: TokenStream(store, *part, share.rows, length, EOS, PAD) for name, part in parts.items()}
    return StreamBatches(streams, share, store.counts(), two_phase)


def build_plain_rows(tokens: list[int], rows: int) -> list[tuple[list[int], list[int]]]:
    """Return inputs and targets of every row by the definition, token by token."""
    pairs: list[tuple[list[int], list[int]]] = [([], []) for _ in range(rows)]
    row = 0
    for position, token in enumerate(tokens):
        while position >= (row + 1) * len(tokens) // rows:
            row += 1
        pairs[row][0].append(tokens[position - 1] if position else EOS)
        pairs[row][1].append(token)
    return pairs


@pytest.mark.parametrize(
    ("tokens", "rows", "length"), [(24, 2, 4), (25, 2, 4), (50, 3, 7), (13, 4, 3), (31, 1, 8), (8, 8, 1), (103, 5, 100)]
)
def test_every_token_is_predicted_once_from_the_one_before(tokens: int, rows: int, length: int) -> None:
    batches = make_batches(tokens, length, RowShare(rows))
    items = [batches[(0, index)] for index in range(len(batches))]
    for row, (inputs, targets) in enumerate(build_plain_rows(list(range(10, 10 + tokens)), rows)):
        read = torch.cat([item["targets"][row] for item in items])
        inputs_read = torch.cat([item["input_ids"][row] for item in items])
        assert read[read != -100].tolist() == targets
        assert (read[len(targets) :] == -100).all()
        assert inputs_read.tolist() == inputs + [PAD] * (len(read) - len(inputs))
    widths = [item["input_ids"].shape[1] for item in items]
    assert widths[:-1] == [length] * (len(items) - 1)
    assert sum(widths) == -(-tokens // rows)
    assert [item["is_start"] for item in items] == [True] + [False] * (len(items) - 1)
    assert {(item["stream"], item["slot"]) for item in items} == {("weights", 0)}
    assert {(item["input_ids"].dtype, item["targets"].dtype) for item in items} == {(torch.int64, torch.int64)}


@pytest.mark.parametrize(("batch", "slots", "processes"), [(4, 2, 1), (4, 1, 2), (2, 2, 2), (1, 8, 1), (1, 2, 4)])
def test_rows_do_not_depend_on_the_number_of_processes(batch: int, slots: int, processes: int) -> None:
    whole = make_batches(203, 5, RowShare(8))
    parts = [make_batches(203, 5, RowShare(batch, slots, process, processes)) for process in range(processes)]
    assert {len(part) for part in parts} == {slots * len(whole)}
    for update in range(len(whole)):
        shared = [part[(0, update * slots + slot)] for slot in range(slots) for part in parts]
        for name in ("input_ids", "targets"):
            assert torch.equal(torch.cat([item[name] for item in shared]), whole[update][name])
        assert [item["slot"] for item in shared] == [slot for slot in range(slots) for _ in parts]
        assert {item["is_start"] for item in shared} == {update == 0}


def test_epochs_repeat_the_stream_and_an_index_beyond_them_is_refused() -> None:
    batches = make_batches(60, 5, RowShare(2, slots=2))
    assert (len(batches), batches.steps_per_epoch) == (6, 3)
    for index in range(len(batches)):
        assert torch.equal(batches[(4, index)]["targets"], batches[index]["targets"])
    assert len(list(batches)) == 6
    with pytest.raises(IndexError):
        batches[(0, 6)]


@pytest.mark.parametrize(("first", "period", "share"), [(0, 5, 0.2), (7, 3, 0.4), (4, 1, 0.5), (1000, 2, 0.5)])
def test_phases_equal_a_count_of_updates(first: int, period: int, share: float) -> None:
    batches = make_batches(200, 4, RowShare(2, slots=2), TwoPhase(first, period, share))
    cut = 200 - round(share * 200)
    steps = {name: ceil(ceil(size / 4) / 4) for name, size in (("weights", cut), ("architecture", 200 - cut))}
    assert batches.steps_per_epoch == steps["weights"]
    read, since = {"weights": 0, "architecture": 0}, 0
    for update in range(3 * steps["weights"]):
        since += update >= first
        name = "architecture" if since == period else "weights"
        since %= period
        assert is_architecture_step(update, first, period) == (name == "architecture")
        epoch, within = divmod(update, batches.steps_per_epoch)
        for slot in (0, 1):
            item = batches[(epoch, 2 * within + slot)]
            position = read[name] % steps[name]
            assert (item["stream"], item["slot"], item["is_start"]) == (name, slot, position == 0)
            begin, end = (0, cut) if name == "weights" else (cut, 200)
            row = build_plain_rows(list(range(10 + begin, 10 + end)), 4)[2 * slot]
            targets = item["targets"][0]
            assert targets[targets != -100].tolist() == row[1][4 * position : 4 * position + 4]
            assert item["input_ids"][0, : (targets != -100).sum()].tolist() == row[0][4 * position : 4 * position + 4]
        read[name] += 1


def get_first_item(items: list[dict[str, object]]) -> dict[str, object]:
    return items[0]


def test_pickled_batches_hold_no_tokens(tmp_path: Path) -> None:
    batches = make_batches(5000, 16, RowShare(4, slots=2), store=make_store(5000, tmp_path))
    assert len(pickle.dumps(batches)) < 2000
    again = pickle.loads(pickle.dumps(batches))
    loader = DataLoader(again, sampler=[(1, n) for n in range(len(batches))], num_workers=2, collate_fn=get_first_item)
    for index, item in enumerate(loader):
        expected = batches[index]
        assert torch.equal(item["targets"], expected["targets"])
        assert (item["slot"], item["is_start"]) == (index % 2, index < 2)
    in_memory = pickle.loads(pickle.dumps(make_store(7)))
    assert in_memory.tokens.tolist() == list(range(10, 17))


def test_whole_lines_are_counted() -> None:
    lines = np.array([[0, 0, 0, 0], [3, 2, 9, 9], [3, 2, 9, 9], [10, 6, 30, 31]])
    store = LineStore(np.zeros(10, np.uint16), lines)

    def count_lines(most: int | None) -> tuple[int, ...]:
        return tuple(store.counts(most).values())

    whole, first = (3, 10, 6, 30, 31), (2, 3, 2, 9, 9)
    assert [count_lines(most) for most in (None, 10, 11)] == [whole] * 3
    assert [count_lines(most) for most in (3, 4, 9)] == [first] * 3
    assert count_lines(2) == (1, 3, 2, 9, 9)  # one line at least
