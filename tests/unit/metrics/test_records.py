"""Recorder of steps: the same records however examples are split over batches and processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from adadepth.halting.trace import DepthTrace
from adadepth.metrics.step_records import StepRecorder, StepRecords, merge
from tests.unit.report.synthetic_exits import make_records

FIELDS = ("index", "lengths", "logits", "depth", "labels", "difficulty", "step_logits", "halting_logits", "exit_steps")


def make_sequence_trace(exit_steps: Tensor, max_updates: int) -> DepthTrace:
    return DepthTrace("sequence", exit_steps.float(), torch.ones_like(exit_steps, dtype=torch.bool), max_updates)


def add_batch(recorder: StepRecorder, records: StepRecords, rows: Tensor, width: int = 64) -> None:
    """Give a recorder the batch that has these rows of known records."""
    mask = (torch.arange(width) < records.lengths[rows, None]).long()
    batch = {"index": records.index[rows], "attention_mask": mask, "labels": records.labels[rows]}
    batch["difficulty"] = records.difficulty[rows]
    steps = records.exit_steps[rows]
    outputs: Any = SimpleNamespace(
        logits=records.logits[rows], step_logits=records.step_logits[rows], exit_steps=steps,
        halting_logits=records.halting_logits[rows], trace=make_sequence_trace(steps, records.max_updates),
    )  # fmt: skip
    recorder.add(batch, outputs)


@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 99))
def test_any_split_over_batches_and_processes_gives_the_same_records(processes: int, size: int, seed: int) -> None:
    expected = make_records(size=23, steps=3)
    order = torch.randperm(23, generator=torch.Generator().manual_seed(seed))
    recorders = [StepRecorder() for _ in range(processes)]
    for number, rows in enumerate(order.split(size)):
        add_batch(recorders[number % processes], expected, rows)
    add_batch(recorders[0], expected, order[:2])  # repeated by a sampler to fill the last batch
    merged = merge([recorder.parts() for recorder in recorders])
    assert merged.max_updates == 3
    assert len(merged) == 23
    for name in FIELDS:
        assert torch.equal(getattr(merged, name), getattr(expected, name)), name


def test_a_model_without_steps_gives_logits_and_the_mean_depth_of_real_tokens() -> None:
    updates = torch.tensor([[2.0, 4.0, 0.0], [3.0, 3.0, 6.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    recorder = StepRecorder()
    trace = DepthTrace("token", updates, mask.bool(), max_updates=8)
    outputs = SimpleNamespace(logits=torch.tensor([[1.0, 2.0], [0.0, -1.0]]).bfloat16(), trace=trace)
    recorder.add({"index": torch.tensor([1, 0]), "attention_mask": mask}, outputs)
    records = merge([recorder.parts(), StepRecorder().parts()])
    assert records.depth.tolist() == [4.0, 3.0]
    assert records.lengths.tolist() == [3, 2]
    assert records.logits.dtype == torch.float32
    assert records.labels is records.step_logits is records.exit_steps is None
    assert not records.ran_every_step


def test_the_length_of_a_vector_is_its_width() -> None:
    recorder = StepRecorder()
    steps = torch.tensor([1, 2])
    outputs = SimpleNamespace(logits=torch.zeros(2, 2), trace=make_sequence_trace(steps, 2), exit_steps=steps)
    recorder.add({"index": torch.arange(2), "inputs": torch.zeros(2, 7)}, outputs)
    assert merge([recorder.parts()]).lengths.tolist() == [7, 7]


@pytest.mark.parametrize("hole", [False, True])
def test_steps_that_did_not_run_are_detected(hole: bool) -> None:
    records = make_records(size=5)
    if hole:
        records.step_logits[3, -1] = torch.nan
    assert records.ran_every_step is not hole
