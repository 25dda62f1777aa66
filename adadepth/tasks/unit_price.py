"""What exit steps cost: multiply-accumulates of the units of an evaluation, as the model itself prices a trace.

Shape legend: M units, S sequences, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adadepth.analysis.exits.records import StepRecords
from adadepth.analysis.exits.study import Price
from adadepth.analysis.exits.token_units import sequences_of
from adadepth.families.contract import DepthModel, PricesReadouts
from adadepth.halting.trace import DepthTrace, Execution


def price_of(model: DepthModel, records: StepRecords, *, by_token: bool) -> Price:
    """The price of the recorded units under any exit steps.

    Args:
        model: That predicts after every step.
        records: Of the units.
        by_token: Whether these are tokens.
    """
    work = model.readout_work if isinstance(model, PricesReadouts) else 0.0

    def price(exit_steps: Tensor, lengths: Tensor) -> float:
        if by_token:
            steps, sequences = int(exit_steps.max()), sequences_of(records.index)
            trace = _tokens(records.updates(exit_steps), lengths, sequences, steps, records.max_steps)
        elif model.depth_unit == "token":
            trace = _tokens_together(exit_steps, lengths, records.max_steps)
        else:
            trace = _sequences(exit_steps, lengths, records.max_steps)
        return float(model.price(trace).adaptive) + work * float(exit_steps.sum())

    return price


def _sequences(exit_steps: Tensor, lengths: Tensor, max_steps: int) -> DepthTrace:
    """The trace of sequences that ran to these steps one by one, without padding."""
    return DepthTrace(
        unit="sequence",
        updates=exit_steps.float(),
        valid=torch.ones_like(exit_steps, dtype=torch.bool),
        max_depth=max_steps,
        execution=Execution(int(exit_steps.max()), tokens=lengths, width=lengths.max()),
    )


def _tokens_together(exit_steps: Tensor, lengths: Tensor, max_steps: int) -> DepthTrace:
    """The trace of sequences (M,) of which all tokens ran to the same step, (M, T)."""
    valid = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    return DepthTrace(
        unit="token",
        updates=exit_steps.unsqueeze(1) * valid.float(),
        valid=valid,
        max_depth=max_steps,
        execution=Execution(int(exit_steps.max())),
    )


def _tokens(updates: Tensor, lengths: Tensor, sequences: Tensor, steps: int, max_steps: int) -> DepthTrace:
    """The trace of some tokens (M,) of sequences, those of one after the other: (S, most that any has)."""
    _, rows, counts = sequences.unique_consecutive(return_inverse=True, return_counts=True)
    first = counts.cumsum(0) - counts
    columns = torch.arange(len(rows)) - first[rows]
    placed = torch.zeros(len(counts), int(counts.max()))
    placed[rows, columns] = updates.float()
    return DepthTrace(
        unit="token",
        updates=placed,
        valid=torch.zeros_like(placed, dtype=torch.bool).index_put((rows, columns), torch.tensor(True)),
        max_depth=max_steps,
        execution=Execution(steps, tokens=lengths[first]),
    )
