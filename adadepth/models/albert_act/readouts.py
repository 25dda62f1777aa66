"""Auxiliary loss of ACT-ALBERT on predictions after every iteration (readouts).

Shape legend: B batch, T tokens, K recorded tokens or units, P packed tokens, H width, N iterations that ran, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adadepth.errors import ConfigError
from adadepth.halting.active_set import ActiveSet, take
from adadepth.halting.trace import DepthTrace
from adadepth.models.albert_act.configuration import AlbertActConfig
from adadepth.models.shared.losses import CLASSES, LossTerm, target_weights, unit_losses

Read = Callable[[Tensor], Tensor]


class ReadoutStates:
    """Recorder of the states of selected tokens after every iteration.

    Args:
        slots: Distinct indices b T + t of the recorded tokens, int64, (K,).
        state: x_0, (B, T, H).
    """

    def __init__(self, slots: Tensor, state: Tensor) -> None:
        self.slots = slots
        self._latest = take(state.flatten(0, 1), slots)
        self._steps: list[Tensor] = []

    def add(self, state: Tensor) -> None:
        """Record the states of the selected tokens, given those of all tokens after an iteration, (B, T, H)."""
        self._latest = take(state.flatten(0, 1), self.slots)
        self._steps.append(self._latest)

    def add_packed(self, active: ActiveSet, state: Tensor) -> None:
        """Record the states of the selected tokens, given those of packed tokens after an iteration, (P, H).

        Other tokens repeat their last state.
        """
        ranks = active.ranks.index_select(0, self.slots)
        present = (ranks >= 0).nonzero().squeeze(1)
        rows = take(state, ranks.index_select(0, present))
        self._latest = self._latest.to(state.dtype).index_copy(0, present, rows)
        self._steps.append(self._latest)

    def stack(self) -> Tensor:
        """Return the recorded states of the K selected tokens after all N iterations, (K, N, H)."""
        return torch.stack(self._steps, dim=1)


class TargetUnits(NamedTuple):
    """The K tokens or sequences that have a target, and the tokens from which the head predicts them.

    Attributes:
        slots: Index b T + t of each token that is read, int64, (K,), or (K * sequences,) if a unit consists of several
            sequences.
        labels: Targets of the units, (K,), or (K, C) for multi-label targets. No target is ignored.
        kind: Problem type, as returned by `adadepth.models.shared.losses.infer_problem_type`.
        sequences: Number of sequences per unit, such as the choices of a question. The unit runs until the last
            sequence has halted. If it is None, the unit is predicted from one token.
    """

    slots: Tensor
    labels: Tensor
    kind: str = CLASSES
    sequences: int | None = None


def labelled_tokens(labels: Tensor) -> TargetUnits:
    """Return the tokens that have a label, in row-major order of the labels, (B, T).

    The call synchronises with the device.
    """
    slots = (labels >= 0).flatten().nonzero().squeeze(1)
    return TargetUnits(slots, labels.flatten()[slots])


def readout_term(config: AlbertActConfig, outputs: Any, units: TargetUnits, read: Read) -> LossTerm:
    """Return the loss of intermediate predictions, averaged over each token's iterations and summed over tokens.

        sum_k c_k / N_k  sum_{n <= N_k} loss(read(x_n^k), y_k),  counted as sum_k c_k

    N_k is the number of iterations that unit k ran. c_k is its class weight, or 1 without class weights.

    Args:
        config: Configuration with `readout_weight`, the weight of the part, and the class weights.
        outputs: Output of the base model with `readout_states` at the slots of the units.
        units: Units with a target.
        read: Function that returns logits, (R, C), for states, (R, H) or (R, sequences, H).
    """
    states = outputs.readout_states
    ran = build_step_mask(outputs.trace, units.slots, states.shape[1])
    if units.sequences is not None:
        states = states.unflatten(0, (-1, units.sequences)).transpose(1, 2)
        ran = ran.unflatten(0, (-1, units.sequences)).any(dim=1)
    unit, step = ran.nonzero().unbind(dim=1)  # waits for the device
    losses = unit_losses(units.kind, read(states[unit, step]), units.labels[unit])
    counted = units.labels.new_ones(len(units.labels), dtype=torch.bool)
    if units.kind == CLASSES:
        counted = target_weights(config, units.labels)
    return LossTerm((counted[unit] * losses / ran.sum(dim=1)[unit]).sum(), counted.sum(), config.readout_weight)


def build_step_mask(trace: DepthTrace, slots: Tensor, steps: int) -> Tensor:
    """Return a mask of the iterations that selected tokens ran, boolean, (K, N)."""
    updates = trace.updates.flatten()[slots]
    return torch.arange(1, steps + 1, device=slots.device) <= updates.unsqueeze(1)


def refuse_readouts(config: AlbertActConfig, head: str) -> None:
    """Raise an error if a loss on intermediate predictions is set for a head that has none.

    Raises:
        ConfigError: If `readout_weight` is not 0.
    """
    if config.readout_weight:
        raise ConfigError(
            f"readout_weight={config.readout_weight}: {head} has no readouts; set it to 0. Only masked language "
            "models, classification of sequences and tokens, and multiple choice predict after every iteration"
        )
