"""Ragged execution of ACT-ALBERT: only the tokens that have not halted are computed, packed together.

The results equal those of the dense loop in `recurrence.py`. docs/ragged_execution.md explains why. `ragged_kernel` in
`modeling.py` selects the execution of a batch. Shape legend: B batch, T tokens, P packed tokens, H width, N iterations
that ran.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adadepth.halting.act import ActState
from adadepth.halting.active_set import ActiveSet, pack, scatter, split, take
from adadepth.halting.trace import ComputedSteps, DepthTrace
from adadepth.halting.units import UnitMemory
from adadepth.models.albert_act.configuration import AlbertActConfig
from adadepth.models.albert_act.readouts import ReadoutStates
from adadepth.models.albert_act.recurrence import (
    AlbertActLayer,
    AlbertActTransformer,
    DensePositions,
    TokenStates,
)
from adadepth.models.shared.albert.packed_attention import Kernel, Refresh, count_pairs
from adadepth.models.shared.albert.pricing import update_work

# Multiply-accumulates that repacking must save in the next iteration to outweigh its gathers and launches, by device
# type. The value without a measurement is a tenth of a millisecond of a large accelerator.
_REPACK_SAVES = {"cpu": 1e7}
_UNMEASURED_REPACK_SAVES = 1e10


class PackedPositions(DensePositions):
    """Running tokens of a batch packed together, with cached keys and values of all real tokens.

    A halted token keeps its state, and therefore its keys and values. An iteration recomputes the keys and values only
    of the tokens that ran in the previous iteration, including those that halted in it.

    Args:
        valid: Mask of the real tokens, boolean, (B, T). All real tokens run at first.
        attention_mask: Mask in the form of the attention implementation.
        options: Keyword arguments of the attention implementation.
        kernel: Attention kernel for packed queries.
        recall: Whether every iteration reads x_0 again.

    Attributes:
        active: Running tokens.
    """

    def __init__(
        self,
        valid: Tensor,
        attention_mask: Tensor | None,
        options: dict[str, Any],
        kernel: Kernel,
        *,
        recall: bool,
    ) -> None:
        super().__init__(valid, attention_mask, options, recall=recall)
        self._kernel: Kernel = kernel
        self.active = self._visible = self._refreshed = pack(valid)
        self._changed: Tensor | None = None
        self._memory: list[Tensor | None] = [None, None]  # keys and values

    @property
    def slots(self) -> Tensor:
        """Index b T + t in the batch of each running token, ascending, int64, (P,)."""
        return self.active.slots

    @property
    def computed(self) -> tuple[int, int, Tensor | int]:
        """Number of queries, keys and query-key pairs of the next iteration."""
        pairs = count_pairs(self._kernel, self.active, self._visible)
        return len(self.slots), len(self._refreshed.slots), pairs

    def gather(self, values: Tensor) -> Tensor:
        """Select the values of the running tokens, (P, *), from those of the whole batch, (B, T, *)."""
        return take(values.flatten(0, 1), self.slots)

    def apply(self, layer: AlbertActLayer, block_input: Tensor) -> Tensor:
        """Apply the block to the running tokens, (P, H) to (P, H), and update the cached keys and values."""
        changed = block_input if self._changed is None else self._changed
        refresh = Refresh(self._kernel, self.active, self._visible, self._refreshed)
        output, _, *self._memory = layer(block_input, self._mask, refresh, changed, *self._memory, **self._options)
        self._changed, self._refreshed = None, self.active
        return output

    def renew(self, state: Tensor) -> None:
        """Store the new states of the running tokens, (P, H), for the keys and values of the next iteration.

        They include halted tokens.
        """
        self._changed = self.block_input(state)

    def narrow(self, staying: Tensor) -> None:
        """Keep only the running tokens at the given positions of the packed tensor, int64, (P',)."""
        self.active = ActiveSet(self.slots[staying], self.active.shape)
        if self._first is not None:
            self._first = take(self._first, staying)

    def keep(self, running: Tensor, state: Tensor, memory: UnitMemory) -> tuple[Tensor, UnitMemory]:
        """Remove halted tokens from the packed tensor, and return the states and the memory of the others.

        The call synchronises with the device.
        """
        staying = running.flatten()[self.slots].nonzero().squeeze(1)
        self.renew(state)
        self.narrow(staying)
        return take(state, staying), tuple(take(values, staying) for values in memory)

    def find(self, slots: Tensor) -> Tensor:
        """Return the packed positions of the given batch indices b T + t, by bisection."""
        return torch.searchsorted(self.slots, slots)


def build_positions(
    config: AlbertActConfig,
    valid: Tensor,
    attention_mask: Tensor | None,
    options: dict[str, Any],
    kernel: Kernel | None,
) -> DensePositions:
    """Return the token positions of a batch, packed if an attention kernel for packed tokens is given."""
    if kernel is None:
        return DensePositions(valid, attention_mask, options, recall=config.recall)
    return PackedPositions(valid, attention_mask, options, kernel, recall=config.recall)


def run_ragged(
    encoder: AlbertActTransformer,
    state: Tensor,
    positions: PackedPositions,
    readouts: ReadoutStates | None,
    *,
    records: bool,
) -> tuple[Tensor, DepthTrace]:
    """Run all iterations of ACT-ALBERT on the tokens that have not halted.

    Args:
        encoder: Encoder. Its method `update` runs one iteration.
        state: x_0, (B, T, H).
        positions: Positions of the batch's tokens before the first iteration.
        readouts: Recorder of the states of some tokens after every iteration, or None.
        records: Whether to record the states of every iteration. This copies all states in each iteration.
    """
    base = encoder.start(state, positions.valid)
    tokens = encoder.start(positions.enter(state), torch.ones_like(positions.slots, dtype=torch.bool))
    recorded = state
    finished: list[tuple[Tensor, TokenStates]] = []
    probabilities: list[tuple[Tensor, Tensor]] = []
    computed = []
    min_halted = compute_repacking_threshold(encoder.config, state.device)
    for step in range(1, encoder.max_updates + 1):
        positions.renew(tokens.state)  # before repacking: running tokens attend to the final states of halted ones
        if step > 1:
            running = tokens.halting.running
            count = int(running.sum())  # waits for the device, once an iteration
            if count == 0:
                break
            if len(running) - count >= min_halted:
                staying, leaving = split(running, count)
                finished.append((positions.slots[leaving], _take_tokens(tokens, leaving)))
                tokens = _take_tokens(tokens, staying)
                positions.narrow(staying)
        computed.append(positions.computed)
        tokens, probability = encoder.update(tokens, positions, step)
        probabilities.append((positions.slots, probability))
        if readouts is not None:
            readouts.add_packed(positions.active, tokens.state)
        if records:
            recorded = encoder.state_record(recorded, scatter(recorded, positions.slots, tokens.state))
    finished.append((positions.slots, tokens))
    result, halting = _assemble(base, finished)
    masses = _scatter_by_step(probabilities, positions.valid.shape)
    return result, encoder.trace(halting, masses, positions.valid, ComputedSteps.from_counts(computed))


def compute_repacking_threshold(config: AlbertActConfig, device: torch.device) -> float:
    """Return the number of halted tokens from which on repacking saves time."""
    return _REPACK_SAVES.get(device.type, _UNMEASURED_REPACK_SAVES) / update_work(config, 0)


def _take_tokens(tokens: TokenStates, rows: Tensor) -> TokenStates:
    """Return the packed tokens at the given positions."""
    state = take(tokens.state, rows)
    result = state if tokens.result is tokens.state else take(tokens.result, rows)
    halting = ActState(*(take(sums, rows) for sums in tokens.halting))
    return TokenStates(state, result, halting, tuple(take(values, rows) for values in tokens.memory))


def _assemble(base: TokenStates, finished: list[tuple[Tensor, TokenStates]]) -> tuple[Tensor, ActState]:
    """Write the results of packed tokens back into the padded batch. Padding keeps the values of `base`."""
    shape = base.halting.updates.shape
    if len(finished) == 1 and len(finished[0][0]) == shape.numel():
        tokens = finished[0][1]
        return tokens.result.view(base.result.shape), ActState(*(sums.view(shape) for sums in tokens.halting))
    slots = torch.cat([part_slots for part_slots, _ in finished])
    parts = [tokens for _, tokens in finished]

    def scatter_parts(start: Tensor, values: list[Tensor]) -> Tensor:
        return scatter(start, slots, torch.cat(values))

    sums = zip(base.halting, zip(*(tokens.halting for tokens in parts), strict=True), strict=True)
    result = scatter_parts(base.result, [tokens.result for tokens in parts])
    return result, ActState(*(scatter_parts(start, list(values)) for start, values in sums))


def _scatter_by_step(probabilities: list[tuple[Tensor, Tensor]], shape: torch.Size) -> Tensor:
    """Write the halting masses of the packed tokens of every iteration into the padded batch, (B, T, N)."""
    size = shape.numel()
    indices = torch.cat([step * size + slots for step, (slots, _) in enumerate(probabilities)])
    values = torch.cat([values for _, values in probabilities])
    return scatter(values.new_zeros(len(probabilities), size), indices, values).T.unflatten(0, shape)
