"""One iteration of ACT-ALBERT, whoever runs it: what tokens read, what becomes of them, and when they halt.

    r_n = x_{n-1}, with `recall` x_{n-1} + x_0
    y_n = block(r_n),  p_n = sigmoid(w y_n + b)
    h_n, w_n from h_{n-1}, p_n                      adadepth.halting.act.act_step
    x_n from x_{n-1}, y_n, w_n                      adadepth.halting.act.update_stream

The dense loop, the ragged loop and the stepper of exit rules differ in which tokens they compute and in who stops
them, never in what an iteration does: they all run a `Recurrence`, on tokens whose places know how they attend.

Shape legend: B batch, T tokens, P packed tokens, H hidden width. The tokens of a `Dense` batch are (B, T), padding
included, those of a `Packed` one (P,); `...` stands for either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from adadepth.families.albert_act.configuration import AlbertActConfig
from adadepth.families.shared.albert.block import AlbertLayer, HaltingProjection
from adadepth.families.shared.albert.packed_attention import Kernel, Memory, Refresh, count_pairs
from adadepth.halting.act import (
    ActState,
    CapRemainder,
    StateRule,
    act_step,
    init_act,
    recalled,
    update_result,
    update_stream,
)
from adadepth.halting.active_set import ActiveSet, pack, take

# p_n from r_n and y_n, (..., H) each, `valid` (B, T), and the slots of packed tokens, (P,) or None; float32, (...).
Probability = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


class HaltingUnit(nn.Module):
    """Probability of halting after an update: p = sigmoid(w y + b)."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.dense = HaltingProjection(config.hidden_size, 1)

    def forward(self, state: Tensor) -> Tensor:
        """(..., H) to (...), float32."""
        return self.dense(state).squeeze(-1).sigmoid()


class AlbertActLayer(AlbertLayer):
    """The shared block with the halting unit, which is the recurrence's to call."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.act = HaltingUnit(config)


class Places(Protocol):
    """Where the tokens of a batch are, and how they attend.

    Attributes:
        valid: True at the batch's real tokens, (B, T).
    """

    valid: Tensor

    @property
    def slots(self) -> Tensor | None:
        """B T + t of each token, (P,); None where all of the batch are there."""
        ...

    @property
    def computed(self) -> tuple[int, int, Tensor | int] | None:
        """Queries, keys and pairs of them that the next iteration computes; None where that is everything."""
        ...

    def pick(self, values: Tensor) -> Tensor:
        """The tokens' values, (..., *), of those of the whole batch, (B, T, *)."""
        ...

    def apply(self, layer: AlbertActLayer, read: Tensor) -> Tensor:
        """Apply the block, (..., H) to (..., H)."""
        ...

    def keep(self, running: Tensor, stream: Stream) -> Stream:
        """Leave behind whom `running`, (B, T), does not name, where that spares work; who goes on."""
        ...

    def find(self, slots: Tensor) -> Tensor:
        """Where tokens, b T + t each, stand among the flattened ones."""
        ...


class Stream(NamedTuple):
    """States of tokens, x_n, and x_0 where it is recalled, (..., H)."""

    state: Tensor
    first: Tensor | None = None

    @property
    def read(self) -> Tensor:
        """What the block reads."""
        return recalled(self.state, self.first)

    def take(self, rows: Tensor) -> Stream:
        """Some of them, packed."""
        return Stream(take(self.state, rows), None if self.first is None else take(self.first, rows))


class Tokens(NamedTuple):
    """Tokens that halt by themselves: their stream, their results so far (..., H), and their halting sums (...).

    The results are the states themselves where the rule keeps nothing apart.
    """

    stream: Stream
    result: Tensor
    halting: ActState

    def take(self, rows: Tensor) -> Tokens:
        """Some of them, packed."""
        stream = self.stream.take(rows)
        result = stream.state if self.result is self.stream.state else take(self.result, rows)
        return Tokens(stream, result, ActState(*(take(sums, rows) for sums in self.halting)))


class Recurrence(NamedTuple):
    """What an iteration does to tokens.

    Attributes:
        layer: The shared block.
        probability: The probability of halting.
        rule: How states are updated.
        recall: Whether the block reads x_0 again.
        threshold: A token halts when its halting sum exceeds this.
        cap: The most iterations.
        cap_remainder: What tokens get that reach the cap; see `act_step`.
    """

    layer: AlbertActLayer
    probability: Probability
    rule: StateRule
    recall: bool
    threshold: float
    cap: int
    cap_remainder: CapRemainder

    def stream(self, state: Tensor) -> Stream:
        """Tokens before the first iteration: x_0, (..., H)."""
        return Stream(state, state if self.recall else None)

    def start(self, state: Tensor, valid: Tensor) -> Tokens:
        """The same where they halt by themselves; `valid` (...) is false at padding, which starts halted."""
        result = state if self.rule == "single" else torch.zeros_like(state)
        return Tokens(self.stream(state), result, init_act(valid))

    def propose(self, stream: Stream, places: Places) -> tuple[Tensor, Tensor]:
        """The block's output y_n, (..., H), and the probabilities p_n, (...)."""
        read = stream.read
        output = places.apply(self.layer, read)
        return output, self.probability(read, output, places.valid, places.slots)

    def advance(self, stream: Stream, output: Tensor, weight: Tensor, running: Tensor) -> Stream:
        """The stream x_n of tokens of which some run, (...)."""
        return Stream(update_stream(self.rule, stream.state, output, weight, running), stream.first)

    def update(self, tokens: Tokens, places: Places, step: int) -> tuple[Tokens, Tensor]:
        """Iteration `step`, counted from 1: the tokens after it, and the probabilities of those that ran, (...)."""
        running = tokens.halting.running
        output, probability = self.propose(tokens.stream, places)
        halting, weight = act_step(
            tokens.halting,
            probability,
            threshold=self.threshold,
            is_last=step == self.cap,
            cap_remainder=self.cap_remainder,
        )
        stream = self.advance(tokens.stream, output, weight, running)
        single = self.rule == "single"
        result = stream.state if single else update_result(self.rule, tokens.result, output, weight)
        return Tokens(stream, result, halting), probability * running


class Dense:
    """All positions of a batch, in every iteration.

    Args:
        valid: True at real tokens, (B, T).
        attention_mask: In the form the attention implementation wants.
        options: For the attention implementation.
    """

    slots = None
    computed = None

    def __init__(self, valid: Tensor, attention_mask: Tensor | None, options: dict[str, Any]) -> None:
        self.valid = valid
        self._mask, self._options = attention_mask, options

    def pick(self, values: Tensor) -> Tensor:
        """All of them."""
        return values

    def apply(self, layer: AlbertActLayer, read: Tensor) -> Tensor:
        """Apply the block, (B, T, H) to (B, T, H)."""
        return layer(read, self._mask, **self._options).state

    def keep(self, running: Tensor, stream: Stream) -> Stream:
        """Nobody is left behind."""
        return stream

    def find(self, slots: Tensor) -> Tensor:
        """A token stands at its slot."""
        return slots


class Packed:
    """The positions that still run, one after the other; keys and values of the others are kept as they are.

    A token that has halted keeps its state, hence its keys and values, for good; docs/ragged_execution.md has the
    argument. So an iteration renews those of the tokens that ran in the last one, whether or not they run in this one.

    Args:
        valid: True at real tokens, (B, T); all of them run at first.
        attention_mask: In the form the attention implementation wants.
        options: For the attention implementation.
        kernel: What attends.

    Attributes:
        active: Who runs.
    """

    def __init__(self, valid: Tensor, attention_mask: Tensor | None, options: dict[str, Any], kernel: Kernel) -> None:
        self.valid = valid
        self._mask, self._options, self._kernel = attention_mask, options, kernel
        self.active = self._visible = self._refreshed = pack(valid)
        self._changed: Tensor | None = None
        self._memory: Memory | None = None

    @property
    def slots(self) -> Tensor:
        """Of those that run, ascending, (P,)."""
        return self.active.slots

    @property
    def computed(self) -> tuple[int, int, Tensor | int]:
        """Queries, keys and pairs of them that the next iteration computes."""
        pairs = count_pairs(self._kernel, self.active, self._visible)
        return len(self.slots), len(self._refreshed.slots), pairs

    def pick(self, values: Tensor) -> Tensor:
        """Those of the running tokens, (P, ...)."""
        return take(values.flatten(0, 1), self.slots)

    def apply(self, layer: AlbertActLayer, read: Tensor) -> Tensor:
        """Apply the block, (P, H) to (P, H)."""
        changed = read if self._changed is None else self._changed
        refresh = Refresh(self._kernel, self.active, self._visible, changed, self._refreshed, self._memory)
        output, self._memory = layer(read, self._mask, refresh, **self._options)
        self._changed, self._refreshed = None, self.active
        return output

    def renew(self, read: Tensor) -> None:
        """Let keys and values follow what the tokens that ran last would read now, (P, H), whoever of them goes on."""
        self._changed = read

    def keep(self, running: Tensor, stream: Stream) -> Stream:
        """Leave everybody else behind; waits for the device."""
        staying = running.flatten()[self.slots].nonzero().squeeze(1)
        self.renew(stream.read)
        self.active = ActiveSet(self.slots[staying], self.active.shape)
        return stream.take(staying)

    def find(self, slots: Tensor) -> Tensor:
        """By bisection: the slots ascend."""
        return torch.searchsorted(self.slots, slots)
