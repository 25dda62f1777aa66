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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adadepth.errors import ConfigError
from adadepth.families.albert_act.configuration import AlbertActConfig
from adadepth.families.shared.losses import CLASSES, LossTerm, target_weights, unit_losses
from adadepth.halting.active_set import ActiveSet, take
from adadepth.halting.trace import DepthTrace

Read = Callable[[Tensor], Tensor]


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


class Units(NamedTuple):
    """The K units that have a target, and where each is read.

    Attributes:
        slots: b T + t of the tokens that are read, (K,), or (K sequences,) where a unit is several sequences.
        labels: Of the units, (K,), or (K, C) where classes do not exclude each other; none is ignored.
        kind: Of the task, as `adadepth.families.shared.losses.problem_of` names it.
        sequences: Of how many sequences a unit consists; it runs until the last of them has halted. None: it is read at
            one token.
    """

    slots: Tensor
    labels: Tensor
    kind: str = CLASSES
    sequences: int | None = None


def labelled_tokens(labels: Tensor) -> Units:
    """Tokens with a class, of labels (B, T), row by row; waits for the device."""
    slots = (labels >= 0).flatten().nonzero().squeeze(1)
    return Units(slots, labels.flatten()[slots])


def readout_term(config: AlbertActConfig, outputs: Any, units: Units, read: Read) -> LossTerm:
    """The loss part `readouts`, a sum over units, and what these count; the head reads only what a unit ran.

    Args:
        config: With the part's weight.
        outputs: Of the base model, with `readout_states` of the units' slots.
        units: What is read.
        read: The task's head, (R, H), or (R, sequences, H), to (R, C).
    """
    states = outputs.readout_states
    ran = ran_steps(outputs.trace, units.slots, states.shape[1])
    if units.sequences is not None:
        states = states.unflatten(0, (-1, units.sequences)).transpose(1, 2)
        ran = ran.unflatten(0, (-1, units.sequences)).any(dim=1)
    unit, step = ran.nonzero().unbind(dim=1)  # waits for the device
    losses = unit_losses(units.kind, read(states[unit, step]), units.labels[unit])
    counted = units.labels.new_ones(len(units.labels), dtype=torch.bool)
    if units.kind == CLASSES:
        counted = target_weights(config, units.labels)
    return LossTerm((counted[unit] * losses / ran.sum(dim=1)[unit]).sum(), counted.sum(), config.readout_weight)


def ran_steps(trace: DepthTrace, slots: Tensor, steps: int) -> Tensor:
    """Which of the first iterations a token ran, boolean, (K, N)."""
    updates = trace.updates.flatten()[slots]
    return torch.arange(1, steps + 1, device=slots.device) <= updates.unsqueeze(1)


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
