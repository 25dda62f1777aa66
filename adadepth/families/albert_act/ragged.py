"""The recurrence of ACT-ALBERT on the tokens that still run: its results are those of the dense loop.

A token that has halted keeps its state, hence its keys and values, for good; docs/ragged_execution.md has the argument.
Shape legend: B batch, T tokens, P packed tokens, H width, N iterations that ran.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from adadepth.families.albert_act.execution import repacking_pays
from adadepth.families.albert_act.readouts import ReadoutStates
from adadepth.families.shared.albert.ragged import Kernel, Memory, Refresh, count_pairs
from adadepth.halting.act import ActState, StateRule, init_act, recalled, update_result, update_stream
from adadepth.halting.active_set import pack, scatter, split, take
from adadepth.halting.trace import ComputedSteps

if TYPE_CHECKING:
    from adadepth.families.albert_act.encoder import AlbertActTransformer


class Tokens(NamedTuple):
    """Packed tokens: their states and results (P, H), their halting sums (P,), and x_0 (P, H) where it is recalled.

    The results are the states themselves where the rule keeps nothing apart.
    """

    state: Tensor
    result: Tensor
    halting: ActState
    first: Tensor | None = None

    @property
    def read(self) -> Tensor:
        """What the block reads."""
        return recalled(self.state, self.first)

    def take(self, rows: Tensor) -> Tokens:
        """Some of them."""
        state = take(self.state, rows)
        result = state if self.result is self.state else take(self.result, rows)
        first = None if self.first is None else take(self.first, rows)
        return Tokens(state, result, ActState(*(take(sums, rows) for sums in self.halting)), first)


def run_ragged(
    encoder: AlbertActTransformer,
    state: Tensor,
    attention_mask: Tensor | None,
    valid: Tensor,
    kernel: Kernel,
    wants_states: bool,
    readouts: ReadoutStates | None,
    options: dict[str, Any],
) -> tuple[Tensor, ActState, Tensor, ComputedSteps]:
    """Run until every token has halted; queries, feed-forward and halting unit for running tokens only.

    Args:
        encoder: The parameters and the halting rule.
        state: x_0, (B, T, H).
        attention_mask: In the form the attention implementation wants.
        valid: True at real tokens, (B, T).
        kernel: What attends.
        wants_states: Whether the states of every iteration are recorded.
        readouts: Collects the states of some tokens after every iteration.
        options: For the attention implementation.

    Returns:
        As `EncoderResult`.
    """
    rule = encoder.rule
    visible = active = pack(valid)
    base = _start(rule, state, valid)
    tokens = _start(rule, take(state.flatten(0, 1), active.slots), torch.ones_like(active.slots, dtype=torch.bool))
    if encoder.config.recall:
        tokens = tokens._replace(first=tokens.state)
    recorded, memory = state, None
    finished: list[tuple[Tensor, Tokens]] = []
    probabilities: list[tuple[Tensor, Tensor]] = []
    computed = []
    for step in range(1, encoder.cap + 1):
        changed, refreshed, running = tokens.read, active, tokens.halting.running
        if step > 1:
            count = int(running.sum())  # waits for the device, once an iteration
            if count == 0:
                break
            if repacking_pays(encoder.config, len(running) - count, state.device):
                parts = split(active, running, count)
                finished.append((active.slots[parts.leaving], tokens.take(parts.leaving)))
                tokens, active = tokens.take(parts.staying), parts.active
        refresh = Refresh(kernel, active, visible, changed, refreshed, memory)
        tokens, probability, memory = _update(encoder, rule, tokens, refresh, attention_mask, valid, step, options)
        probabilities.append((active.slots, probability))
        computed.append((len(active.slots), len(refreshed.slots), count_pairs(kernel, active, visible)))
        if readouts is not None:
            readouts.add_packed(active, tokens.state)
        if wants_states:
            recorded = encoder.state_record(recorded, scatter(recorded, active.slots, tokens.state))
    finished.append((active.slots, tokens))
    final = _assemble(base, finished)
    return final.result, final.halting, _by_step(probabilities, valid.shape), ComputedSteps.of(computed)


def _start(rule: StateRule, state: Tensor, valid: Tensor) -> Tokens:
    """Tokens before the first iteration, packed or not."""
    return Tokens(state, state if rule == "single" else torch.zeros_like(state), init_act(valid))


def _update(
    encoder: AlbertActTransformer,
    rule: StateRule,
    tokens: Tokens,
    refresh: Refresh,
    attention_mask: Tensor | None,
    valid: Tensor,
    step: int,
    options: dict[str, Any],
) -> tuple[Tokens, Tensor, Memory]:
    """One iteration of packed tokens: what they are then, the probabilities of those that ran, the memory."""
    read, running = tokens.read, tokens.halting.running
    output, memory = encoder.albert_layer(read, attention_mask, refresh, **options)
    probability = encoder.halting_probability(read, output, valid, refresh.queries.slots)
    halting, weight = encoder.halt(tokens.halting, probability, step)
    state = update_stream(rule, tokens.state, output, weight, running)
    result = state if rule == "single" else update_result(rule, tokens.result, output, weight)
    return Tokens(state, result, halting, tokens.first), probability * running, memory


def _assemble(base: Tokens, finished: list[tuple[Tensor, Tokens]]) -> Tokens:
    """Put packed tokens back into the batch (B, T); padding stays what the base says."""
    if len(finished) == 1 and len(finished[0][0]) == base.halting.updates.numel():
        return _shape_like(base, finished[0][1])
    slots = torch.cat([part for part, _ in finished])

    def whole(start: Tensor, parts: list[Tensor]) -> Tensor:
        return scatter(start, slots, torch.cat(parts))

    everyone = [tokens for _, tokens in finished]
    result = whole(base.result, [tokens.result for tokens in everyone])
    sums = zip(base.halting, zip(*(tokens.halting for tokens in everyone), strict=True), strict=True)
    return Tokens(result, result, ActState(*(whole(start, list(parts)) for start, parts in sums)))


def _shape_like(base: Tokens, tokens: Tokens) -> Tokens:
    """Packed tokens that are all of the batch, (B, T, ...)."""
    result = tokens.result.view(base.result.shape)
    return Tokens(result, result, ActState(*(sums.view(base.halting.updates.shape) for sums in tokens.halting)))


def _by_step(probabilities: list[tuple[Tensor, Tensor]], shape: torch.Size) -> Tensor:
    """Put the probabilities of every iteration's tokens into the batch, (B, T, N)."""
    size = shape.numel()
    places = torch.cat([step * size + slots for step, (slots, _) in enumerate(probabilities)])
    values = torch.cat([values for _, values in probabilities])
    return scatter(values.new_zeros(len(probabilities), size), places, values).T.unflatten(0, shape)
