"""Depth and compute of the forward passes that lm-evaluation-harness makes.

Shape legend: B rows, T tokens, N steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from adadepth.evaluation.exit_cost import count_reading_macs
from adadepth.evaluation.predictions import make_exit_kwargs
from adadepth.halting.exit_rules import ExitRule
from adadepth.halting.trace import DepthTrace
from adadepth.models.contract import DepthModel


@dataclass
class DepthMeter:
    """Sums of depth and compute over the forward passes of a causal language model under one exit rule.

    Attributes:
        model: Causal language model.
        rule: Exit rule of all forward passes, or None if the model has no exit rules.
        tokens: Number of scored or generated tokens.
        updates: Number of updates of these tokens, summed.
        macs: Multiply-accumulates of all tokens that the model read, without padding: updates until the exit, and the
            predictions and signals that the exit rule reads.
        full_macs: Multiply-accumulates of the same tokens at full depth, with one prediction each.
    """

    model: DepthModel
    rule: ExitRule | None
    tokens: int = 0
    updates: float = 0.0
    macs: float = 0.0
    full_macs: float = 0.0
    _passes: list[tuple[DepthTrace, Tensor | None]] = field(default_factory=list, repr=False)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Apply the exit rule to every forward pass inside the `with` block, and store its depth trace."""
        options = make_exit_kwargs(self.model) | ({} if self.rule is None else {"exit_rule": self.rule})
        model: Any = self.model

        def add_options(_: Any, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
            return args, {**kwargs, **options}

        def store_trace(_: Any, __: Any, outputs: Any) -> None:
            self._passes.append((outputs.trace, getattr(outputs, "exit_steps", None)))

        handles = [
            model.register_forward_pre_hook(add_options, with_kwargs=True),
            model.register_forward_hook(store_trace),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def add_scored_texts(self, lengths: Sequence[int], scored: Sequence[slice]) -> None:
        """Add the last forward pass, whose rows are texts padded at their ends.

        Args:
            lengths: Number of real tokens of each row.
            scored: Positions of each row whose predictions are scored.
        """
        trace, exits = self._passes.pop()
        trace = cut_trace(trace, lengths)
        for row, positions in enumerate(scored):
            self._add_depths(trace, row, positions)
        self._add_compute(trace, exits)

    def add_generated_texts(self, counts: Sequence[int]) -> None:
        """Add the forward passes since the last call. Each pass has generated one token of every row.

        Args:
            counts: Number of generated tokens of each row; later predictions of the row are not used.
        """
        for number, (trace, exits) in enumerate(self._passes):
            last = trace.valid.shape[-1] - 1
            for row, count in enumerate(counts):
                if number < count:
                    self._add_depths(trace, row, slice(last, last + 1))
            self._add_compute(trace, exits)
        self._passes.clear()

    def _add_depths(self, trace: DepthTrace, row: int, positions: slice) -> None:
        """Add the depths of the tokens of a row at the given positions."""
        count = positions.stop - positions.start
        self.tokens += count
        if trace.unit == "token":
            self.updates += float(trace.updates[row, positions].sum())
        else:  # all tokens have the depth of the architecture
            self.updates += count * float(trace.updates[0])

    def _add_compute(self, trace: DepthTrace, exits: Tensor | None) -> None:
        """Add the compute of a forward pass.

        Args:
            trace: Depth trace without padding.
            exits: Exit step of each token, (B, T), or None if the model has no exits.
        """
        work, by_token = self.model.price(trace), trace.unit == "token"
        tokens = trace.valid.sum(dim=1) if by_token else trace.executed.tokens
        assert tokens is not None
        lengths = tokens.repeat_interleave(tokens)  # of the row of each token
        steps = torch.ones_like(lengths) if exits is None else exits[trace.valid]
        reads = () if self.rule is None else self.rule.reads
        self.macs += float(work.adaptive) + count_reading_macs(self.model, lengths, steps, reads)
        self.full_macs += float(work.full) + count_reading_macs(self.model, lengths, steps, ())

    @property
    def mean_updates(self) -> float | None:
        """Mean number of updates of a scored or generated token, or None if there is none."""
        return self.updates / self.tokens if self.tokens else None

    @property
    def compute(self) -> float | None:
        """Compute as a share of the compute of the same tokens at full depth, or None before the first pass."""
        return self.macs / self.full_macs if self.full_macs else None


def cut_trace(trace: DepthTrace, lengths: Sequence[int]) -> DepthTrace:
    """Return the depth trace of rows without the padding at their ends.

    Args:
        trace: Trace of a batch, whose padding counts as real tokens.
        lengths: Number of real tokens of each row.
    """
    real = torch.tensor(lengths, device=trace.updates.device)
    execution = trace.executed
    if execution.tokens is not None:
        execution = replace(execution, tokens=real)
    if trace.unit != "token":
        return replace(trace, execution=execution)
    valid: Tensor = torch.arange(trace.updates.shape[1], device=real.device) < real.unsqueeze(1)
    ran = None if trace.ran is None else trace.ran & valid.unsqueeze(-1)
    return replace(trace, updates=trace.updates * valid, valid=valid, ran=ran, execution=execution)
