"""Rows that processes and micro-batches divide anew: every row goes where its example goes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from adadepth.data.batches import ProcessBatches
from adadepth.training.extension import select_process_rows

ROWS = 8
SHARES = [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (4, 2), (1, 4)]  # processes and micro-batches


def list_examples_by_slot(processes: int, micro: int) -> dict[tuple[int, int], list[int]]:
    """Return the examples of the first step of each micro-batch of each process, as training reads them."""
    size = ROWS // (processes * micro)
    order: Any = list(range(ROWS))
    shares = (ProcessBatches(order, size, number, processes, drop_last=False) for number in range(processes))
    return {(slot, number): rows for number, share in enumerate(shares) for slot, rows in enumerate(share)}


@pytest.mark.parametrize("before", SHARES)
@pytest.mark.parametrize("after", SHARES)
def test_rows_follow_their_examples(before: tuple[int, int], after: tuple[int, int]) -> None:
    pieces = {slot_owner: torch.tensor(rows)[None] for slot_owner, rows in list_examples_by_slot(*before).items()}
    processes, micro = after
    for process in range(processes):
        args: Any = SimpleNamespace(world_size=processes, gradient_accumulation_steps=micro, process_index=process)
        process_rows = select_process_rows(pieces, args, dim=1)
        expected = {slot: rows for (slot, owner), rows in list_examples_by_slot(*after).items() if owner == process}
        assert {slot: rows[0].tolist() for slot, rows in process_rows.items()} == expected
