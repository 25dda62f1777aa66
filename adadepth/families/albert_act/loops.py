"""The recurrence of ACT-ALBERT until every token has halted: on all positions, or on the tokens that still run.

`ragged_kernel` says which of the two a batch takes, `repacking_pays` when the second packs anew. Both have the same
results; docs/ragged_execution.md has the argument. Shape legend: B batch, T tokens, P packed tokens, K wanted tokens, H
width, N iterations that ran.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from adadepth.errors import ConfigError
from adadepth.families.albert_act.configuration import FREEZING_RULES, AlbertActConfig, check_execution
from adadepth.families.albert_act.readouts import ReadoutStates
from adadepth.families.albert_act.recurrence import Dense, Packed, Recurrence, Tokens
from adadepth.families.shared.albert.packed_attention import Kernel, choose_kernel
from adadepth.halting.act import ActState
from adadepth.halting.active_set import scatter, split
from adadepth.halting.trace import ComputedSteps

# Multiply-accumulates that one iteration of the whole batch must have for `auto` to run ragged, by kind of device: what
# has been measured (docs/ragged_execution.md). A device that has not been measured runs dense.
_BATCH_NEEDS = {"cpu": 5e7}
# Those that leaving tokens behind must save in the coming iteration, to be worth its gathers and launches. Without a
# measurement: a tenth of a millisecond of a large accelerator.
_REPACK_SAVES = {"cpu": 1e7}
_UNMEASURED_REPACK_SAVES = 1e10


class StateRecord(nn.Module):
    """Sees the states before and after an iteration; a module, so that a hook can record them."""

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        """The states after, (B, T, H)."""
        return after


class EncoderResult(NamedTuple):
    """What a loop leaves.

    Attributes:
        state: The final states, (B, T, H).
        halting: The halting sums, (B, T).
        probabilities: Of every iteration, 0 once a token has halted, (B, T, N).
        computed: What each iteration computed; None where that was everything.
        readouts: The states of the wanted tokens after every iteration, (K, N, H); None where none are.
    """

    state: Tensor
    halting: ActState
    probabilities: Tensor
    computed: ComputedSteps | None = None
    readouts: Tensor | None = None


def run_dense(
    recurrence: Recurrence,
    places: Dense,
    state: Tensor,
    record: StateRecord,
    readouts: ReadoutStates | None,
    *,
    may_wait: bool,
) -> EncoderResult:
    """Update every position until the last token has halted.

    Args:
        recurrence: What an iteration does.
        places: Of the batch.
        state: x_0, (B, T, H).
        record: Is shown the states of every iteration.
        readouts: Collects the states of some tokens after every iteration.
        may_wait: Whether the device may be asked if anybody still runs.
    """
    tokens, probabilities = recurrence.start(state, places.valid), []
    for step in range(1, recurrence.cap + 1):
        if step > 1 and may_wait and not tokens.halting.running.any():
            break
        before = tokens.stream.state
        tokens, probability = recurrence.update(tokens, places, step)
        record(before, tokens.stream.state)
        if readouts is not None:
            readouts.add(tokens.stream.state)
        probabilities.append(probability)
    return EncoderResult(tokens.result, tokens.halting, torch.stack(probabilities, dim=-1))


def run_ragged(
    recurrence: Recurrence,
    places: Packed,
    state: Tensor,
    record: StateRecord | None,
    readouts: ReadoutStates | None,
    config: AlbertActConfig,
) -> EncoderResult:
    """Queries, feed-forward and halting unit for running tokens only.

    Args:
        recurrence: What an iteration does.
        places: Of the batch's tokens before the first iteration.
        state: x_0, (B, T, H).
        record: Is shown the states of every iteration; None where nobody looks, which spares a copy of all of them.
        readouts: Collects the states of some tokens after every iteration.
        config: Tells when packing anew pays.
    """
    base = recurrence.start(state, places.valid)
    tokens = recurrence.start(places.pick(state), torch.ones_like(places.slots, dtype=torch.bool))
    recorded = state
    finished: list[tuple[Tensor, Tokens]] = []
    probabilities: list[tuple[Tensor, Tensor]] = []
    computed = []
    for step in range(1, recurrence.cap + 1):
        places.renew(tokens.stream.read)  # before anybody leaves: the others see where those halted
        if step > 1:
            running = tokens.halting.running
            count = int(running.sum())  # waits for the device, once an iteration
            if count == 0:
                break
            if repacking_pays(config, len(running) - count, state.device):
                parts = split(places.active, running, count)
                finished.append((places.slots[parts.leaving], tokens.take(parts.leaving)))
                tokens, places.active = tokens.take(parts.staying), parts.active
        computed.append(places.computed)
        tokens, probability = recurrence.update(tokens, places, step)
        probabilities.append((places.slots, probability))
        if readouts is not None:
            readouts.add_packed(places.active, tokens.stream.state)
        if record is not None:
            recorded = record(recorded, scatter(recorded, places.slots, tokens.stream.state))
    finished.append((places.slots, tokens))
    result, halting = _assemble(base, finished)
    return EncoderResult(result, halting, _by_step(probabilities, places.valid.shape), ComputedSteps.of(computed))


def _assemble(base: Tokens, finished: list[tuple[Tensor, Tokens]]) -> tuple[Tensor, ActState]:
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


def ragged_kernel(
    config: AlbertActConfig, positions: int, device: torch.device, dtype: torch.dtype, *, training: bool
) -> Kernel | None:
    """The attention kernel of a ragged execution, or None where the dense one runs.

    Args:
        config: With `execution`.
        positions: Of the batch, padding included.
        device: Of the batch.
        dtype: Of the weights.
        training: Whether attention weights are dropped.

    Raises:
        ConfigError: If `execution="ragged"` cannot be had with this state rule or attention implementation.
    """
    if config.execution == "dense":
        return None
    kernel = choose_kernel(config, device, dtype, training=training)
    if config.execution == "ragged":
        check_execution(config)
        if kernel is None and not torch.compiler.is_compiling():
            raise ConfigError(
                f"execution='ragged' needs attn_implementation eager, sdpa or flash_attention_*, "
                f"not {config._attn_implementation!r}"
            )
        return kernel
    pays = positions * update_work(config) >= _BATCH_NEEDS.get(device.type, math.inf)
    return kernel if pays and config.state_rule in FREEZING_RULES else None


def repacking_pays(config: AlbertActConfig, halted: int, device: torch.device) -> bool:
    """Whether to leave behind the `halted` tokens among the packed ones."""
    return halted * update_work(config) >= _REPACK_SAVES.get(device.type, _UNMEASURED_REPACK_SAVES)


def update_work(config: AlbertActConfig) -> int:
    """Multiply-accumulates of one token's update without its attention: 4 H^2 + 2 H F."""
    return 4 * config.hidden_size**2 + 2 * config.hidden_size * config.intermediate_size
