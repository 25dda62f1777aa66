"""Readouts of ACT-ALBERT: the states of some tokens after every iteration, and the loss of a head that reads them.

Shape legend: B batch, T tokens, K wanted tokens or units, P packed tokens, H width, N iterations that ran, C classes.
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
        places = active.ranks.index_select(0, self.slots)
        present = (places >= 0).nonzero().squeeze(1)
        rows = take(state, places.index_select(0, present))
        self._latest = self._latest.to(state.dtype).index_copy(0, present, rows)
        self._steps.append(self._latest)

    def stack(self) -> Tensor:
        """All of them, (K, N, H)."""
        return torch.stack(self._steps, dim=1)


class TargetUnits(NamedTuple):
    """The K units that have a target, and where each is read.

    Attributes:
        slots: b T + t of the tokens that are read, (K,), or (K sequences,) where a unit is several sequences.
        labels: Of the units, (K,), or (K, C) where classes do not exclude each other; none is ignored.
        kind: Of the task, as `adadepth.families.shared.losses.infer_problem_type` names it.
        sequences: Of how many sequences a unit consists; it runs until the last of them has halted. None: it is read at
            one token.
    """

    slots: Tensor
    labels: Tensor
    kind: str = CLASSES
    sequences: int | None = None


def labelled_tokens(labels: Tensor) -> TargetUnits:
    """Tokens with a class, of labels (B, T), row by row; waits for the device."""
    slots = (labels >= 0).flatten().nonzero().squeeze(1)
    return TargetUnits(slots, labels.flatten()[slots])


def readout_term(config: AlbertActConfig, outputs: Any, units: TargetUnits, read: Read) -> LossTerm:
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
