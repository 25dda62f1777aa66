"""Compute of ALBERTs whose units leave the batch: against executed products and products counted in a loop."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from adadepth import AlbertActModel
from adadepth.halting.trace import ComputedSteps, DepthTrace, Execution
from adadepth.models.albert_act.modeling import price_tokens
from adadepth.models.shared.albert.pricing import price_sequences
from tests.models_support import make_padded_batch, make_small_config, make_small_ponder, spread_depths

HIDDEN, INNER, ENTRY = 32, 64, 16 * 32
UPDATES = torch.tensor([[3.0, 1.0, 2.0, 0.0], [5.0, 5.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])


@pytest.mark.parametrize("execution", ["dense", "ragged"])
def test_macs_equal_the_executed_products(execution: str):
    torch.manual_seed(0)
    config = make_small_config(execution=execution)
    model = AlbertActModel._from_config(config, attn_implementation="eager", add_pooling_layer=False).eval()
    spread_depths(model)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        outputs = model(**make_padded_batch())
    work = model.price(outputs.trace)
    assert counter.get_total_flops() == 2 * work.executed.item()
    assert (work.executed < work.dense) == (execution == "ragged")


def count_products(*sizes: int) -> int:
    """Count the multiply-accumulates of (n, m) times (m, k), one by one."""
    rows, shared, columns = sizes
    return sum(shared for _ in range(rows) for _ in range(columns))


def count_token_loop() -> tuple[ComputedSteps, int]:
    """Count the products of a loop over running tokens, with keys only where a state has changed."""
    counts, macs = [], 3 * 4 * count_products(1, 16, HIDDEN)
    for step in range(1, 6):
        queries = keys = pairs = 0
        for row in UPDATES.int().tolist():
            running = [n for n in row if n >= step]
            changed = [n for n in row if n >= max(step - 1, 1)] if running else []
            visible = sum(n > 0 for n in row)
            for _ in running:
                macs += 2 * count_products(1, HIDDEN, HIDDEN)  # query, output of attention
                macs += (
                    count_products(1, HIDDEN, INNER) + count_products(1, INNER, HIDDEN) + count_products(1, HIDDEN, 1)
                )
                macs += count_products(1, HIDDEN, visible) + count_products(
                    1, visible, HIDDEN
                )  # scores, mean of the values
            macs += len(changed) * 2 * count_products(1, HIDDEN, HIDDEN)
            queries, keys, pairs = queries + len(running), keys + len(changed), pairs + len(running) * visible
        counts.append((queries, keys, pairs))
    return ComputedSteps(*torch.tensor(counts).unbind(dim=1)), macs


def test_macs_of_tokens_that_leave():
    computed, macs = count_token_loop()
    trace = DepthTrace("token", UPDATES, UPDATES > 0, max_updates=6, execution=Execution(5))
    dense = price_tokens(make_small_config(), trace)
    ragged = price_tokens(make_small_config(), replace(trace, execution=Execution(5, computed=computed)))
    assert ragged.executed.item() == macs < dense.executed.item()
    assert ragged[1:] == dense[1:]
    assert dense.executed == dense.dense
    padding = 6 * ENTRY
    assert ragged.executed == ragged.adaptive + padding, "only updates of running tokens were executed"


def test_macs_of_staying_tokens_are_those_of_dense_execution():
    trace = DepthTrace("token", UPDATES, UPDATES > 0, max_updates=6, execution=Execution(5))
    rows = torch.full((5,), 3 * 4)
    computed = ComputedSteps(queries=rows, keys=rows, pairs=rows * 4)
    work = price_tokens(make_small_config(), replace(trace, execution=Execution(5, computed=computed)))
    assert work.executed == work.dense


@pytest.mark.parametrize("shortened", [False, True])
def test_macs_of_sequences_that_leave(shortened: bool):
    """Count rows of 4 and 2 tokens, the longer one for one step of three; the shorter may run without its padding."""
    model = make_small_ponder(num_labels=3, halting_head="linear_cat")
    widths = [4, 2, 2] if shortened else [4, 4, 4]
    rows = torch.tensor([2, 1, 1])
    units = rows * torch.tensor(widths)
    trace = DepthTrace(
        unit="sequence", updates=torch.tensor([1.0, 3.0]), valid=torch.ones(2, dtype=torch.bool), max_updates=6,
        execution=Execution(3, tokens=torch.tensor([4, 2]), rows=rows, width=torch.tensor(widths)),
    )  # fmt: skip
    computed = ComputedSteps(units, units, units * torch.tensor(widths))
    packed = replace(trace, execution=replace(trace.execution, computed=computed))
    by_rows = price_sequences(model.config, trace, each_step=model.head_work)
    assert price_sequences(model.config, packed, each_step=model.head_work) == by_rows
    macs = 2 * 4 * ENTRY
    for count, width in zip(rows.tolist(), widths, strict=True):
        macs += count * width * (4 * count_products(1, HIDDEN, HIDDEN) + 2 * count_products(1, HIDDEN, INNER))
        macs += count * 2 * count_products(width, HIDDEN, width)
        macs += int(count * model.head_work)
    assert by_rows.executed.item() == macs
    assert by_rows.dense.item() == pytest.approx(
        2 * 4 * ENTRY + 3 * 2 * (4 * (4 * HIDDEN**2 + 2 * HIDDEN * INNER + 2 * 4 * HIDDEN) + model.head_work)
    )


def test_queries_without_padding_save_their_macs():
    """Count a step of one layer with 6 real of 8 units, without two queries, two keys and their pairs."""
    trace = DepthTrace(
        unit="sequence", updates=torch.tensor([1.0, 1.0]), valid=torch.ones(2, dtype=torch.bool), max_updates=6,
        execution=Execution(1, tokens=torch.tensor([4, 2]), rows=torch.tensor([2]), width=4),
    )  # fmt: skip
    computed = ComputedSteps(*torch.tensor([[6], [6], [4 * 4 + 2 * 2]]))
    packed = replace(trace, execution=replace(trace.execution, computed=computed))
    config = make_small_config()
    whole, saved = (price_sequences(config, one, each_step=7.0, once=3.0) for one in (trace, packed))
    left_out = 2 * (4 * HIDDEN**2 + 2 * HIDDEN * INNER) + 12 * 2 * HIDDEN
    assert (whole.executed - saved.executed).item() == left_out
    assert whole.executed == whole.dense == saved.dense
