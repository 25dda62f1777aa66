"""Compute of recorded examples or tokens under any exit steps, in multiply-accumulates.

Shape legend: M units (tokens or sequences), S sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from adadepth.halting.exit_rules import LOGITS, ExitRule, parse_rule
from adadepth.halting.trace import DepthTrace, Execution
from adadepth.metrics.step_records import StepRecords, get_sequence_numbers
from adadepth.models.contract import DepthModel


@dataclass(frozen=True)
class ExitCost:
    """Compute of recorded examples or tokens as a function of their exit steps.

    Attributes:
        model: Model that predicts after every step.
        by_token: Whether the units that exit are tokens.
    """

    model: DepthModel
    by_token: bool

    def macs(self, records: StepRecords, exit_steps: Tensor, reads: Collection[str]) -> float:
        """Return the multiply-accumulates of all recorded examples or tokens for given exit steps, without padding.

        Args:
            records: Records of the units.
            exit_steps: Step after which each unit exits, int64, (M,).
            reads: Signals that the exit rule computes for a unit after every update until its exit. If it does not read
                predictions, only one prediction per unit is counted, at its exit.
        """
        work = float(self.model.price(self._trace(records, exit_steps)).adaptive)
        return work + count_reading_macs(self.model, records.lengths, exit_steps, reads)

    def _trace(self, records: StepRecords, exit_steps: Tensor) -> DepthTrace:
        if self.by_token:
            return _trace_tokens(records, exit_steps)
        if self.model.depth_unit == "token":
            return _trace_tokens_together(records, exit_steps)
        return _trace_sequences(records, exit_steps)


def measure_sequence_compute(model: DepthModel, records: StepRecords) -> list[float]:
    """Return the compute of recorded examples that all exit after step k, as a share of full depth, for every k.

    Args:
        model: Model that predicts one class or value for each example.
        records: Records of the examples.
    """
    cost, steps = ExitCost(model, by_token=False), range(1, records.max_updates + 1)
    macs = [cost.macs(records, torch.full((len(records),), step), ()) for step in steps]
    return [value / macs[-1] for value in macs]


def measure_block_compute(model: DepthModel, width: int) -> list[float]:
    """Return the compute of a text whose tokens all exit after step k, as a share of full depth, for every k.

    Args:
        model: Language model, whose predictions are counted, too.
        width: Number of tokens of the text.
    """
    macs = []
    for step in range(1, model.max_updates + 1):
        updates = torch.full((1, width), float(step))
        valid, execution = torch.ones_like(updates, dtype=torch.bool), Execution(step, width=width)
        trace = DepthTrace("token", updates, valid, model.max_updates, execution=execution)
        macs.append(float(model.price(trace).adaptive + sum_prediction_macs(model, trace)[0]))
    return [value / macs[-1] for value in macs]


def count_reading_macs(model: DepthModel, lengths: Tensor, exit_steps: Tensor, reads: Collection[str]) -> float:
    """Return the multiply-accumulates of the predictions and of the signals that an exit rule reads, over all units.

    Args:
        model: Model that predicts.
        lengths: Number of tokens in the text of each unit, (M,).
        exit_steps: Step after which each unit exits, int64, (M,).
        reads: Signals that the exit rule computes for a unit after every update until its exit. If it does not read
            predictions, only one prediction per unit is counted.
    """
    work = 0.0
    for signal in {LOGITS, *reads}:
        often = exit_steps.double() if signal in reads else torch.ones_like(exit_steps, dtype=torch.float64)
        work += float((often * model.reading_work(signal, lengths)).sum())
    return work


def reads_predictions(rule: str | ExitRule | None) -> bool:
    """Return whether an exit rule, or its text, needs a prediction after every update."""
    parsed = parse_rule(rule) if isinstance(rule, str) else rule
    return parsed is not None and LOGITS in parsed.reads


def sum_prediction_macs(model: DepthModel, trace: DepthTrace) -> Tensor:
    """Return the multiply-accumulates of one prediction, summed over the units of a batch, and the number of units.

    The result is float64, (2,). `DepthModel.price` leaves these predictions out.

    Args:
        model: Model that predicts.
        trace: Depths of tokens or sequences.
    """
    units, tokens = trace.valid.double(), None if trace.execution is None else trace.execution.tokens
    if units.dim() == 2:
        lengths = (units.sum(dim=1) if tokens is None else tokens).unsqueeze(1).expand_as(units)
    else:
        lengths = units if tokens is None else tokens
    macs = units.flatten() * model.reading_work(LOGITS, lengths.flatten())
    return torch.stack([macs.sum(), units.sum()])


def _trace_sequences(records: StepRecords, exit_steps: Tensor) -> DepthTrace:
    """Build the depth trace of sequences that exit at given steps (M,), each executed alone without padding."""
    lengths = records.lengths
    return DepthTrace(
        unit="sequence",
        updates=exit_steps.float(),
        valid=torch.ones_like(exit_steps, dtype=torch.bool),
        max_updates=records.max_updates,
        execution=Execution(int(exit_steps.max()), tokens=lengths, width=lengths.max()),
    )


def _trace_tokens_together(records: StepRecords, exit_steps: Tensor) -> DepthTrace:
    """Build the depth trace of tokens that all exit at the exit step of their sequence, (M,)."""
    valid = torch.arange(int(records.lengths.max())) < records.lengths.unsqueeze(1)
    return DepthTrace(
        unit="token",
        updates=exit_steps.unsqueeze(1) * valid.float(),
        valid=valid,
        max_updates=records.max_updates,
        execution=Execution(int(exit_steps.max())),
    )


def _trace_tokens(records: StepRecords, exit_steps: Tensor) -> DepthTrace:
    """Build the depth trace of recorded tokens, (M,), arranged by sequence, (S, longest sequence)."""
    _, rows, counts = get_sequence_numbers(records.index).unique_consecutive(return_inverse=True, return_counts=True)
    first = counts.cumsum(0) - counts
    columns = torch.arange(len(rows)) - first[rows]
    updates = torch.zeros(len(counts), int(counts.max()))
    updates[rows, columns] = records.updates(exit_steps).float()
    return DepthTrace(
        unit="token",
        updates=updates,
        valid=torch.zeros_like(updates, dtype=torch.bool).index_put((rows, columns), torch.tensor(True)),
        max_updates=records.max_updates,
        execution=Execution(int(exit_steps.max()), tokens=records.lengths[first]),
    )
