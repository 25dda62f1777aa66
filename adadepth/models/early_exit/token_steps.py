"""Decoding with early exits: each layer runs only for the tokens that need it.

A forward pass with an `ExitCache` runs its new tokens from exit to exit. Tokens at which the rule decides are units; a
unit that exits runs no further layer in this pass. With the policy `deferred`, a layer runs for all tokens of a text
that wait for it, up to the last unit of the text that still runs:

    runs(t, l) = (done(t) = l - 1) and (t <= last running unit)

An earlier token has therefore always run as many layers as a later one, and each token finds the keys and values of
all tokens before it. With `frozen`, each new token is a unit, and a layer gets the keys and values of tokens that have
exited from their states at the exit.

A layer runs for a rectangle of texts and tokens. Texts that wait for similar numbers of tokens therefore share a
rectangle, and the others have one of their own (`group_texts`).

The host knows which units exit, and plans each step from that: masks and counts of tokens are on the CPU, and no layer
waits for the device.

Shape legend: B texts, W waiting tokens, T new tokens, R texts with running tokens and r columns of the fullest, M
tokens in the cache, D width, L layers, N exits, K units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adadepth.halting.units import take_memory
from adadepth.models.depth.runner import RunningTexts, SubsetRunner
from adadepth.models.depth.subset import TokenSubset
from adadepth.models.early_exit.cache import ExitCache, WaitingTokens
from adadepth.models.early_exit.modeling import EarlyExitModel
from adadepth.models.shared.generation import CACHE_ARGUMENT

# Tokens that a layer computes in about the time that it takes to read its weights, which every rectangle does again.
_TOKENS_PER_READ = {"cpu": 16, "cuda": 256}


class _NextStep(NamedTuple):
    """Tokens of the next step: those that run, and those whose keys and values come from frozen states, if any.

    The mask `runs` is (B, W + T), on the CPU. `counts` are the queries, keys and pairs of a layer; see
    `TokenStepper.computed`.
    """

    runs: Tensor
    moved: list[_Part]
    stored: list[_Part]
    counts: tuple[int, int, int]


class TokenStepper:
    """Stepper of the tokens of a forward pass with a cache; see `adadepth.models.depth.engine.Stepper`.

    Args:
        model: Model in evaluation mode.
        cache: Cache.
        inputs: Arguments of the forward pass; ids or embeddings may have no tokens (T = 0).
        real: Mask of the new tokens that are not padding, boolean (B, T), on the CPU.
        units: Mask of the new tokens that are units, boolean (B, T), on the CPU.

    Attributes:
        model: Model.
        cache: Cache.
        running: Embedded tokens with the inputs of every layer.
        states: Current state of every token, (B, W + T, D).
        done: Number of exits that each token passed, int64 on the CPU, (B, W + T), N at padding.
        counts: Number of queries, keys and query-key pairs in a layer of every step so far.
    """

    def __init__(
        self, model: EarlyExitModel, cache: ExitCache, inputs: Mapping[str, Any], real: Tensor, units: Tensor
    ) -> None:
        self.model, self.cache = model, cache
        waiting, past = cache.waiting, cache.get_seq_length()
        self._waiting = 0 if waiting is None else waiting.done.shape[1]
        self.running, self._positions = _begin_tokens(model, cache, inputs, past)
        self.states, self.device = self.running.states, self.running.states.device
        self.done = torch.where(real, 0, model.max_updates)
        if waiting is not None:
            self.states = torch.cat([waiting.states, self.states[:, self._waiting :]], dim=1)
            self.done = torch.cat([waiting.done, self.done], dim=1)
        self._new_real = torch.nn.functional.pad(real, (self._waiting, 0))
        width = self.states.shape[1]
        rows, columns = units.nonzero().unbind(1)
        self._set_units(rows * width + self._waiting + columns)
        self.rows, self._step = len(self._units), 0
        self._memory = model.start_gate(self.states.flatten(0, 1)[self._device_units])
        self.counts: list[tuple[int, int, int]] = []
        self._next: _NextStep | None = None

    @property
    def width(self) -> int:
        """Number of new tokens of a text, T."""
        return self.states.shape[1] - self._waiting

    @property
    def computed(self) -> tuple[int, int, int]:
        """Number of queries, keys and query-key pairs in a layer of the next step."""
        return self._plan().counts

    def advance(self) -> tuple[Tensor, Tensor | None]:
        """Run the layers until the next exit, and return the states of the running units, (A, D), and their gates."""
        self._run_step()
        read = self.states.flatten(0, 1)[self._device_units]
        gate, self._memory = self.model.estimate(read, self._memory, self._step)
        return read, gate

    def keep(self, rows: Tensor) -> None:
        """Keep only the running units at these positions, int64 (A',), on the CPU."""
        self._set_units(self._units[rows])
        self._memory, self._next = take_memory(self._memory, rows), None

    def _set_units(self, units: Tensor) -> None:
        """Set the running units: index of each of their tokens in (B, W + T), int64 (A,), on the CPU."""
        self._units, self._device_units = units, units.to(self.device, non_blocking=True)

    def finish(self) -> None:
        """End the forward pass: store its tokens in the cache."""
        if self.cache.policy == "frozen":
            self.keep(self._units.new_empty(0))
            while self._step < self.model.max_updates:
                self._run_step()
        self.cache.finish(WaitingTokens(self.states, self.done, self._positions), self.model.max_updates)

    def run_waiting(self) -> Tensor:
        """Run all layers of all tokens, and return their states after the last one, (B, W + T, D)."""
        self._set_units(torch.arange(self.done.numel()))
        self._step = int(self.done.min())
        while self._step < self.model.max_updates:
            self._run_step()
        return self.states

    def _plan(self) -> _NextStep:
        """Return the tokens of the next step."""
        if self._next is None:
            units = torch.zeros_like(self.done, dtype=torch.bool)
            units.view(-1)[self._units] = True
            runs, frozen = units, self._new_real & ~units
            if self.cache.policy == "deferred":
                last_first = units.flip(1).long().cummax(dim=1).values.flip(1).bool()  # a unit at or after the token
                runs, frozen = last_first & (self.done == self._step), torch.zeros_like(units)
            self._next = self._prepare_step(runs, frozen)
        return self._next

    def _prepare_step(self, runs: Tensor, frozen: Tensor) -> _NextStep:
        """Select the tokens that run and those with frozen states, (B, W + T), and count what they compute."""
        moved, stored = self._make_parts(runs), self._make_parts(frozen)
        queries, pairs = sum(part.queries for part in moved), sum(part.pairs for part in moved)
        return _NextStep(runs, moved, stored, (queries, queries + int(frozen.sum()), pairs))

    def _make_parts(self, tokens: Tensor) -> list[_Part]:
        """Return the tokens of a mask, (B, W + T), in the rectangles of `group_texts`."""
        parts = []
        for texts in group_texts(tokens.sum(dim=1).tolist(), _TOKENS_PER_READ.get(self.device.type, 256)):
            chosen = torch.zeros_like(tokens[:, :1])
            chosen[texts] = True
            parts.append(_Part(self, tokens & chosen))
        return parts

    def _run_step(self) -> None:
        """Run the layers until the next exit, and count what they compute."""
        exits, step = [0, *self.model.config.exits], self._plan()
        for number in range(exits[self._step], exits[self._step + 1]):
            for part in step.stored:
                part.store(number)
            for part in step.moved:
                part.run_layer(number)
        for part in step.moved:
            self.states = part.put(self.states)
        self.counts.append(step.counts)
        self._step, self._next = self._step + 1, None
        self.done = torch.where(step.runs, self._step, self.done)


def group_texts(counts: Sequence[int], overhead: int) -> list[list[int]]:
    """Group texts so that their rectangles, and an overhead for each, have the fewest tokens in total.

    A group of R texts whose largest count is r has R r + `overhead` tokens. In the order of their counts, the groups of
    an optimum are contiguous; it is found by dynamic programming over the first texts of this order.

    Args:
        counts: Number of tokens of each text. Texts without tokens are in no group.
        overhead: Cost of a group, in tokens.
    """
    order = sorted((number for number, count in enumerate(counts) if count), key=lambda number: counts[number])
    costs, starts = [0], [0]  # least cost of the first texts, and where their last group starts
    for end in range(1, len(order) + 1):
        widest = counts[order[end - 1]]
        cost, start = min((costs[start] + (end - start) * widest + overhead, start) for start in range(end))
        costs.append(cost)
        starts.append(start)
    groups, end = [], len(order)
    while end:
        groups.append(sorted(order[starts[end] : end]))
        end = starts[end]
    return groups


class _Part(SubsetRunner):
    """Runner of some tokens of a stepper, given by a mask on the CPU, (B, W + T).

    Attributes:
        queries: Number of queries in a layer.
        pairs: Number of pairs of them with keys.
    """

    def __init__(self, stepper: TokenStepper, tokens: Tensor) -> None:
        subset, running = TokenSubset.from_mask(tokens, stepper.device), stepper.running
        super().__init__(stepper.model.layers, running.inputs, stepper.states, subset)
        self._cache, (rows, width) = stepper.cache, tokens.shape
        seen = rows * width * (width + 1) // 2 if subset is None else subset.causal_pairs
        self.queries = tokens.numel() if subset is None else subset.cell_count
        self.pairs = seen + self.queries * self._cache.target.before

    def run_layer(self, number: int) -> None:
        """Run a layer, counted from 0."""
        self._cache.target.picked = self._subset
        self.run(number, self.select_mask(number, self._cache.target.before))

    def store(self, number: int) -> None:
        """Store the keys and values that a layer, counted from 0, computes from the states."""
        self._cache.target.picked = self._subset
        both = self.record(number, self.select_mask(number, self._cache.target.before))
        self._cache.layers[number].update(*both)


def _begin_tokens(
    model: EarlyExitModel, cache: ExitCache, inputs: Mapping[str, Any], past: int
) -> tuple[RunningTexts, Tensor]:
    """Embed the new tokens behind the waiting ones, and return them with the positions of all, (B, W + T).

    The network makes masks and rotations for all of them. What it embeds at waiting tokens is not used.
    """
    ids, embedded = inputs.get("input_ids"), inputs.get("inputs_embeds")
    if embedded is None:
        embedded = model.get_input_embeddings()(ids)
    rows, new = embedded.shape[:2]
    positions = inputs.get("position_ids")
    if positions is None:
        positions = torch.arange(past, past + new, device=embedded.device).unsqueeze(0)
    positions, waiting = positions.expand(rows, new), cache.waiting
    cache.open(rows, new)
    if waiting is not None:
        embedded = torch.cat([torch.zeros_like(waiting.states), embedded], dim=1)
        positions = torch.cat([waiting.positions, positions], dim=1)
    running = model.begin({
        "inputs_embeds": embedded, "attention_mask": inputs.get("attention_mask"), "position_ids": positions,
        CACHE_ARGUMENT: cache,
    }, use_cache=True)  # fmt: skip
    return running, positions
