"""Readouts: what the task head says of a unit after every iteration, and the loss that trains it to say so.

Iterations that few units run learn little, and a state that is only ever read at its end says nothing on the way there.
Deep supervision reads every one of them (Lee et al. 2015, arXiv 1409.5185; PABEE, arXiv 2006.04152, for ALBERT):

    readouts = weight / K  sum_k  1/N_k  sum_{n <= N_k} CE(head(x_n(k)), label_k)

over the K labelled units and the N_k iterations that unit k ran. The mean over a unit's own iterations, not their sum,
keeps the term at the scale of the task's loss whatever the cap, gives every unit the same say, and does not make a unit
cheaper by halting it earlier. The state x_n is what iteration n + 1 reads: the block's output under `graves`, the
interpolated state under `single`. Shape legend: B batch, T tokens, P packed tokens, K units, N iterations that ran, H
width, C classes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from adadepth.errors import ConfigError
from adadepth.families.albert_act.configuration import AlbertActConfig
from adadepth.families.shared.losses import LossTerm, check_classes
from adadepth.halting.active_set import ActiveSet, take
from adadepth.halting.trace import DepthTrace

Read = Callable[[Tensor], Tensor]

CLASSES = "single_label_classification"


class ReadoutStates:
    """Collects the states of some tokens after every iteration; nothing of the others is kept.

    Args:
        slots: b T + t of each wanted token, int64, each once, (K,).
        state: x_0, (B, T, H).
    """

    def __init__(self, slots: Tensor, state: Tensor) -> None:
        self.slots = slots
        self._latest = take(state.flatten(0, 1), slots)
        self._steps: list[Tensor] = []

    def add(self, state: Tensor) -> None:
        """Keep the states after an iteration of all tokens, (B, T, H)."""
        self._latest = take(state.flatten(0, 1), self.slots)
        self._steps.append(self._latest)

    def add_packed(self, active: ActiveSet, state: Tensor) -> None:
        """Keep the states after an iteration of packed tokens, (P, H); those left behind stay what they were."""
        places = torch.searchsorted(active.slots, self.slots).clamp(max=len(active.slots) - 1)
        present = (active.slots[places] == self.slots).nonzero().squeeze(1)
        self._latest = self._latest.to(state.dtype).index_copy(0, present, take(state, places[present]))
        self._steps.append(self._latest)

    def stack(self) -> Tensor:
        """All of them, (K, N, H)."""
        return torch.stack(self._steps, dim=1)


def slots_of(chosen: Tensor) -> Tensor:
    """The slots b T + t of chosen tokens, (B, T) to (K,), row by row; waits for the device."""
    return chosen.flatten().nonzero().squeeze(1)


def ran_steps(trace: DepthTrace, slots: Tensor, steps: int) -> Tensor:
    """Which of the first iterations a token ran, boolean, (K, N)."""
    updates = trace.updates.flatten()[slots]
    return torch.arange(1, steps + 1, device=slots.device) <= updates.unsqueeze(1)


def readout_term(
    states: Tensor, ran: Tensor, labels: Tensor, read: Read, *, weight: float, kind: str = CLASSES
) -> LossTerm:
    """The loss part `readouts`, a sum over units, and their number; the head reads only what a unit ran.

    Args:
        states: After every iteration, (K, N, H), or (K, N, choices, H) where a unit is several sequences.
        ran: Which iterations each unit ran, boolean, (K, N).
        labels: Of every unit, (K,), or (K, C) where classes do not exclude each other; none is ignored.
        read: The task's head, (R, ..., H) to (R, C).
        weight: In the loss.
        kind: Of the task, as `adadepth.families.shared.losses.problem_of` names it.
    """
    unit, step = ran.nonzero().unbind(dim=1)  # waits for the device
    losses = unit_losses(kind, read(states[unit, step]), labels[unit])
    count = torch.full((), len(labels), device=labels.device)
    return LossTerm((losses / ran.sum(dim=1)[unit]).sum(), count, weight)


def unit_losses(kind: str, logits: Tensor, labels: Tensor) -> Tensor:
    """The task's loss of every prediction, float32: logits (R, C) and labels (R,) or (R, C) to (R,).

    Raises:
        DataError: If a label is not one of the C classes.
    """
    logits = logits.float()
    if kind == CLASSES:
        check_classes(labels, logits.shape[-1])
        return nn.functional.cross_entropy(logits, labels, reduction="none")
    targets = labels.float().view_as(logits)
    if kind == "regression":
        return (logits - targets).square().mean(dim=-1)
    return nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=-1)


def refuse_readouts(config: AlbertActConfig, head: str) -> None:
    """Refuse a weight where a head has no readouts.

    Raises:
        ConfigError: Naming the weight and the heads that have them.
    """
    if config.readout_weight:
        raise ConfigError(
            f"readout_weight={config.readout_weight}: {head} has no readouts, set it to 0; masked language models, "
            "token and sequence classification and multiple choice have them"
        )
