"""Streaming halting statistics: fixed-size sums and histograms on the device, whatever the size of the set.

Every accumulator is a sum, so splitting the set over batches or processes and adding gives the same result. The
figures are defined in docs/statistics.md.

Shape legend: C classes, G groups with cosines, M units of a batch (tokens or sequences, flattened), L maximum depth,
D difficulties.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adadepth.analysis.measure.summary import flatten, summarise
from adadepth.halting.trace import DepthTrace, Halting, Work

__all__ = ["COSINE_GROUPS", "HaltingStatistics", "flatten"]

COSINE_GROUPS = ("all", "mask", "unmasked", "cls", "sep")
CORRELATED_CLASSES = ("all", "mask")

# Losses are counted in fine bins: of equal ratio (0.54 %) from 2^-20 nats to 1, of equal width (0.0054) from there to
# 33; the scale is smooth at 1, and what is smaller or larger joins the outermost bin. The rank correlation is then that
# of the raw losses to three decimals, also where they lie close together, as they do around log(vocabulary) at first.
_BINS_PER_OCTAVE, _OCTAVES, _LARGEST = 128, 20, 33.0
LOSS_BINS = _BINS_PER_OCTAVE * (_OCTAVES + math.ceil((_LARGEST - 1) / math.log(2)))


class HaltingStatistics:
    """Accumulates what a set of traces says about depth.

    Args:
        max_depth: L, of every trace.
        classes: Names of the classes; `all` must be one of them.
        device: Where the sums are kept, the traces' own device. It needs float64.
        difficulties: D; units have difficulties 0 to D - 1. 0: none is known.
    """

    def __init__(
        self, max_depth: int, classes: Sequence[str], device: torch.device | str, difficulties: int = 0
    ) -> None:
        assert "all" in classes, "the class of all units is the reference of every other figure"
        self.max_depth = max_depth
        self.classes = tuple(classes)
        self.cosine_groups = tuple(name for name in COSINE_GROUPS if name in classes)
        self.correlated = tuple(name for name in CORRELATED_CLASSES if name in classes)
        self.unit = "token"
        depths, count, groups = max_depth + 1, len(self.classes), len(self.cosine_groups)

        def counts(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        def sums(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self._sums = {
            "depth": counts(count, depths),
            "ran": counts(max_depth),
            "remainder": sums(count),
            "remainder_n": counts(count),
            "loss": sums(count),
            "loss_n": counts(count),
            "right": sums(count),
            "right_n": counts(count),
            "loss_by_depth": sums(depths),
            "depth_by_loss": counts(len(self.correlated), depths, LOSS_BINS),
            "probability": sums(max_depth),
            "probability_n": counts(max_depth),
            "cosine_running": sums(groups, max_depth),
            "cosine_running_n": counts(groups, max_depth),
            "cosine_all": sums(groups, max_depth),
            "cosine_all_n": counts(groups, max_depth),
            "layers": sums(depths),
            "layers_n": counts(1),
            "work": sums(len(Work._fields)),
            "work_n": counts(1),
        }
        if difficulties:
            self._sums |= {
                "depth_by_difficulty": counts(depths, difficulties),
                "right_by_difficulty": sums(difficulties),
                "right_by_difficulty_n": counts(difficulties),
            }

    @torch.no_grad()
    def update(
        self,
        trace: DepthTrace,
        classes: Mapping[str, Tensor],
        token_losses: Tensor | None = None,
        hidden_states: Sequence[Tensor] | None = None,
        work: Work | None = None,
        *,
        right: Tensor | None = None,
        difficulty: Tensor | None = None,
    ) -> None:
        """Add a batch. Nothing here waits for the device.

        Args:
            trace: The depths of the batch's units; its `unit` is `token`, `sequence` or `task`.
            classes: Boolean masks by class name, of the shape of `trace.updates`: (B, T) or (B,).
            token_losses: Loss of each unit in nats, the same shape; NaN where a unit has none.
            hidden_states: The states x_0 to x_n of the n iterations that ran, each (*updates.shape, H); a model that
                halts whole sequences passes one vector a sequence.
            work: What the batch cost.
            right: 1 where a unit's prediction is right, 0 where it is wrong, NaN where nothing is predicted, float, the
                shape of `trace.updates`.
            difficulty: Of each unit, int64, the same shape; negative where it has none. Read with `difficulties` only.
        """
        self.unit = trace.unit
        valid = trace.valid.flatten()
        members = torch.stack([classes[name].flatten() for name in self.classes]) & valid
        depth = trace.updates.round().long().clamp(0, self.max_depth).flatten()
        self._sums["depth"].scatter_add_(1, depth.expand(members.shape), members.long())
        ran = trace.iterations_run.flatten(0, -2).T
        self._sums["ran"][: len(ran)] += (ran & members[self.classes.index("all")]).sum(dim=-1)
        if trace.halting is not None:
            self._add_halting(trace.halting, ran & valid, members)
        if token_losses is not None:
            self._add_losses(token_losses.flatten(), depth, members)
        if right is not None:
            predicted = members & ~right.flatten().isnan()
            self._add("right", _where(predicted, right.flatten()), predicted)
        if difficulty is not None and "depth_by_difficulty" in self._sums:
            everyone = members[self.classes.index("all")]
            self._add_difficulties(difficulty.flatten(), depth, everyone, None if right is None else right.flatten())
        if hidden_states is not None:
            assert hidden_states[0].shape[:-1] == trace.updates.shape, "one state a unit"
            self._add_cosines(hidden_states, ran, members)
        if trace.layer_weights is not None:
            self._sums["layers"] += trace.layer_weights.double()
            self._sums["layers_n"] += 1
        if work is not None:
            self._sums["work"] += torch.stack(list(work)).double()
            self._sums["work_n"] += 1

    def _add(self, name: str, values: Tensor, counted: Tensor) -> None:
        """Add rows of values, summed over units, and the number of units behind each."""
        self._sums[name][: len(values)] += values.double().sum(dim=-1)
        self._sums[f"{name}_n"][: len(values)] += counted.sum(dim=-1)

    def _add_halting(self, halting: Halting, running: Tensor, members: Tensor) -> None:
        """Remainders of units, and the probabilities of the iterations they ran, (N, M)."""
        if halting.remainders is not None:
            self._add("remainder", _where(members, halting.remainders.flatten()), members)
        running = running[: halting.probabilities.shape[-1]]
        self._add("probability", _where(running, halting.probabilities.flatten(0, -2).T), running)

    def _add_losses(self, losses: Tensor, depth: Tensor, members: Tensor) -> None:
        members = members & ~losses.isnan()
        self._add("loss", _where(members, losses), members)
        everyone = members[self.classes.index("all")]
        self._sums["loss_by_depth"].scatter_add_(0, depth, _where(everyone, losses).double())
        cell = depth * LOSS_BINS + _loss_bin(losses)
        for table, name in zip(self._sums["depth_by_loss"], self.correlated, strict=True):
            table.view(-1).scatter_add_(0, cell, members[self.classes.index(name)].long())

    def _add_difficulties(self, difficulty: Tensor, depth: Tensor, counted: Tensor, right: Tensor | None) -> None:
        counted = counted & (difficulty >= 0)
        table = self._sums["depth_by_difficulty"]
        column = difficulty.clamp(0, table.shape[1] - 1)
        table.view(-1).scatter_add_(0, depth * table.shape[1] + column, counted.long())
        if right is not None:
            counted = counted & ~right.isnan()
            self._sums["right_by_difficulty"].scatter_add_(0, column, _where(counted, right).double())
            self._sums["right_by_difficulty_n"].scatter_add_(0, column, counted.long())

    def _add_cosines(self, states: Sequence[Tensor], ran: Tensor, members: Tensor) -> None:
        """Similarity of x_k and x_(k+1): over units that run iteration k + 1, and over all of them."""
        members = torch.stack([members[self.classes.index(name)] for name in self.cosine_groups])
        steps = len(states) - 1
        for step in range(steps):
            before, after = states[step].float(), states[step + 1].float()
            cosine = nn.functional.cosine_similarity(before, after, dim=-1).flatten()
            for name, counted in (("cosine_running", members & ran[step]), ("cosine_all", members)):
                self._sums[name][:, step] += _where(counted, cosine).double().sum(dim=-1)
                self._sums[f"{name}_n"][:, step] += counted.sum(dim=-1)
        # An iteration that the batch did not execute would have left every state as it is.
        frozen = members.sum(dim=-1, keepdim=True)
        self._sums["cosine_all"][:, steps:] += frozen
        self._sums["cosine_all_n"][:, steps:] += frozen

    def tensors(self) -> list[Tensor]:
        """Every accumulator: add those of all processes, in place and in this order, before `summary`."""
        return list(self._sums.values())

    def summary(self) -> dict[str, Any]:
        """Everything that can be told, as JSON values; see `summarise`."""
        sums = {name: tensor.cpu().numpy() for name, tensor in self._sums.items()}
        return summarise(sums, self.classes, self.cosine_groups, self.correlated, self.unit)


def _loss_bin(losses: Tensor) -> Tensor:
    """Bin of each loss, int64, 0 for NaN."""
    losses = losses.double().nan_to_num().clamp(min=2.0**-_OCTAVES)
    position = torch.where(losses < 1, losses.log2(), (losses - 1) / math.log(2)) + _OCTAVES
    return (position * _BINS_PER_OCTAVE).clamp(max=LOSS_BINS - 1).long()


def _where(counted: Tensor, values: Tensor) -> Tensor:
    """`values` where they count and 0 elsewhere, even if they are not finite there."""
    return torch.where(counted, values, torch.zeros_like(values))
