"""Compute of predictions, counted by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from adadepth.evaluation.exit_cost import sum_prediction_macs
from adadepth.halting.trace import DepthTrace, DepthUnit, Execution


def _compute_read(signal: str, lengths: Tensor) -> Tensor:
    """Return the compute of a prediction that attends to all tokens of its text, and takes 10 more."""
    assert signal == "logits"
    return lengths.double() + 10


@pytest.mark.parametrize(("unit", "valid", "tokens", "total"), [
    ("token", [[1, 1, 1], [1, 0, 0]], None, 3 * 13 + 11),
    ("token", [[1, 1, 1], [1, 0, 0]], [5, 2], 3 * 15 + 12),  # some tokens of a text are units
    ("sequence", [1, 1, 0], [4, 6, 9], 14 + 16),
])  # fmt: skip
def test_every_unit_has_a_prediction(unit: DepthUnit, valid: list[Any], tokens: list[int] | None, total: float) -> None:
    mask = torch.tensor(valid, dtype=torch.bool)
    execution = Execution(2, tokens=None if tokens is None else torch.tensor(tokens))
    trace = DepthTrace(unit, 2.0 * mask, mask, 2, execution=execution)
    sums = sum_prediction_macs(cast(Any, SimpleNamespace(reading_work=_compute_read)), trace)
    assert sums.tolist() == [total, mask.sum().item()]
    constant = SimpleNamespace(reading_work=lambda signal, lengths: 7.0)
    assert sum_prediction_macs(cast(Any, constant), trace).tolist() == [7.0 * mask.sum().item(), mask.sum().item()]
