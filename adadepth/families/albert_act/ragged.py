"""The recurrence of ACT-ALBERT on the tokens that still run, packed one after the other.

The results are those of the loop over all positions in `recurrence.py`; docs/ragged_execution.md has the argument, and
`ragged_kernel` in `modeling.py` says which of the two a batch takes. Shape legend: B batch, T tokens, P packed tokens,
H width, N iterations that ran.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adadepth.families.albert_act.configuration import AlbertActConfig
from adadepth.families.albert_act.readouts import ReadoutStates
from adadepth.families.albert_act.recurrence import (
    AlbertActLayer,
    AlbertActTransformer,
    DensePositions,
    TokenStates,
)
from adadepth.families.shared.albert.packed_attention import Kernel, Refresh, count_pairs
from adadepth.families.shared.albert.pricing import update_work
from adadepth.halting.act import ActState
from adadepth.halting.active_set import ActiveSet, pack, scatter, split, take
from adadepth.halting.trace import ComputedSteps, DepthTrace

# Multiply-accumulates that leaving tokens behind must save in the coming iteration, to be worth its gathers and
# launches, by kind of device. Without a measurement: a tenth of a millisecond of a large accelerator.
_REPACK_SAVES = {"cpu": 1e7}
_UNMEASURED_REPACK_SAVES = 1e10


class PackedPositions(DensePositions):
    """The positions that still run, one after the other; keys and values of the others are kept as they are.

    A token that has halted keeps its state, hence its keys and values, for good. So an iteration renews those of the
    tokens that ran in the last one, whether or not they run in this one.

    Args:
        valid: True at real tokens, (B, T); all of them run at first.
        attention_mask: In the form the attention implementation wants.
        options: For the attention implementation.
        kernel: What attends.
        recall: Whether every iteration reads x_0 again.

    Attributes:
        active: Who runs.
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
        """Of those that run, ascending, (P,)."""
        return self.active.slots

    @property
    def computed(self) -> tuple[int, int, Tensor | int]:
        """Queries, keys and pairs of them that the next iteration computes."""
        pairs = count_pairs(self._kernel, self.active, self._visible)
        return len(self.slots), len(self._refreshed.slots), pairs

    def gather(self, values: Tensor) -> Tensor:
        """Return those of the running tokens, (P, *)."""
        return take(values.flatten(0, 1), self.slots)

    def apply(self, layer: AlbertActLayer, block_input: Tensor) -> Tensor:
        """Apply the block, (P, H) to (P, H)."""
        changed = block_input if self._changed is None else self._changed
        refresh = Refresh(self._kernel, self.active, self._visible, self._refreshed)
        output, _, *self._memory = layer(block_input, self._mask, refresh, changed, *self._memory, **self._options)
        self._changed, self._refreshed = None, self.active
        return output

    def renew(self, state: Tensor) -> None:
        """Let keys and values follow the states of the tokens that ran last, (P, H), whoever of them goes on."""
        self._changed = self.block_input(state)

    def narrow(self, staying: Tensor) -> None:
        """Let only some of the packed tokens run on, int64, (P',)."""
        self.active = ActiveSet(self.slots[staying], self.active.shape)
        if self._first is not None:
            self._first = take(self._first, staying)

    def keep(self, running: Tensor, state: Tensor) -> Tensor:
        """Leave everybody else behind; waits for the device."""
        staying = running.flatten()[self.slots].nonzero().squeeze(1)
        self.renew(state)
        self.narrow(staying)
        return take(state, staying)

    def find(self, slots: Tensor) -> Tensor:
        """By bisection: the slots ascend."""
        return torch.searchsorted(self.slots, slots)


def build_positions(
    config: AlbertActConfig,
    valid: Tensor,
    attention_mask: Tensor | None,
    options: dict[str, Any],
    kernel: Kernel | None,
) -> DensePositions:
    """Return the positions of a batch, packed where there is a kernel for them; see `PackedPositions`."""
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
    """Queries, feed-forward and halting unit for running tokens only; see `AlbertActTransformer.forward`.

    Args:
        encoder: What an iteration does.
        state: x_0, (B, T, H).
        positions: Of the batch's tokens before the first iteration.
        readouts: Collects the states of some tokens after every iteration.
        records: Whether the states of every iteration are recorded, which costs a copy of all of them.
    """
    base = encoder.start(state, positions.valid)
    tokens = encoder.start(positions.enter(state), torch.ones_like(positions.slots, dtype=torch.bool))
    recorded = state
    finished: list[tuple[Tensor, TokenStates]] = []
    probabilities: list[tuple[Tensor, Tensor]] = []
    computed = []
    enough = least_to_leave(encoder.config, state.device)
    for step in range(1, encoder.max_updates + 1):
        positions.renew(tokens.state)  # before anybody leaves: the others see where those halted
        if step > 1:
            running = tokens.halting.running
            count = int(running.sum())  # waits for the device, once an iteration
            if count == 0:
                break
            if len(running) - count >= enough:
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
    masses = _by_step(probabilities, positions.valid.shape)
    return result, encoder.trace(halting, masses, positions.valid, ComputedSteps.of(computed))


def least_to_leave(config: AlbertActConfig, device: torch.device) -> float:
    """How many of the packed tokens must have halted to be worth leaving behind."""
    return _REPACK_SAVES.get(device.type, _UNMEASURED_REPACK_SAVES) / update_work(config, 0)


def _take_tokens(tokens: TokenStates, rows: Tensor) -> TokenStates:
    state = take(tokens.state, rows)
    result = state if tokens.result is tokens.state else take(tokens.result, rows)
    return TokenStates(state, result, ActState(*(take(sums, rows) for sums in tokens.halting)))


def _assemble(base: TokenStates, finished: list[tuple[Tensor, TokenStates]]) -> tuple[Tensor, ActState]:
    """Results and halting sums of packed tokens in their places of the batch; padding stays what the base says."""
    shape = base.halting.updates.shape
    if len(finished) == 1 and len(finished[0][0]) == shape.numel():
        alone = finished[0][1]
        return alone.result.view(base.result.shape), ActState(*(sums.view(shape) for sums in alone.halting))
    slots = torch.cat([part for part, _ in finished])

    def whole(start: Tensor, parts: list[Tensor]) -> Tensor:
        return scatter(start, slots, torch.cat(parts))

    everyone = [tokens for _, tokens in finished]
    sums = zip(base.halting, zip(*(tokens.halting for tokens in everyone), strict=True), strict=True)
    result = whole(base.result, [tokens.result for tokens in everyone])
    return result, ActState(*(whole(start, list(parts)) for start, parts in sums))


def _by_step(probabilities: list[tuple[Tensor, Tensor]], shape: torch.Size) -> Tensor:
    """Put the probabilities of every iteration's tokens into the batch, (B, T, N)."""
    size = shape.numel()
    places = torch.cat([step * size + slots for step, (slots, _) in enumerate(probabilities)])
    values = torch.cat([values for _, values in probabilities])
    return scatter(values.new_zeros(len(probabilities), size), places, values).T.unflatten(0, shape)
