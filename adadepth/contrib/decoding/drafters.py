"""Drafting tokens with less depth, and verifying them together at full depth, for looped and early-exit models.

A drafter has a text with pending tokens: its last tokens, which have not run at full depth. The states of pending
tokens are stored, so that a verification continues from them.

Shape legend: T tokens, D width, V pieces, N loops or exits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.masking_utils import create_masks_for_generate

from adadepth.halting.exit_rules import LOGITS, ExitRule, Fixed
from adadepth.models.early_exit.cache import ExitCache
from adadepth.models.early_exit.causal_lm import EarlyExitForCausalLM
from adadepth.models.early_exit.token_steps import TokenStepper
from adadepth.models.looped.exits import LoopReading
from adadepth.models.looped.heads import LoopedForCausalLM
from adadepth.models.looped.modeling import Looping


class Drafter(Protocol):
    """A text with pending tokens.

    Attributes:
        cache: Keys and values of the text.
        core_passes: Number of passes of the core of a looped model, or of a layer of an early-exit model.
        token_loops: Number of loops or layers, summed over all tokens.
    """

    cache: Any
    core_passes: int
    token_loops: int

    def read_prompt(self, ids: Tensor) -> Tensor:
        """Return full depth's logits, (1, 1, V), after the last token of a prompt, (1, T)."""
        ...

    def draft(self, token: Tensor, rule: ExitRule) -> Tensor | None:
        """Return the logits, (1, V), at the exit of the next token, (1,); None if the token ran at full depth."""
        ...

    def verify(self) -> Tensor:
        """Run the pending tokens at full depth, and return the logits after each of them, (T, V)."""
        ...

    def keep(self, count: int) -> None:
        """Keep the first `count` pending tokens and discard the rest."""
        ...


class ExitDrafter:
    """Drafter of an early-exit model, whose cache stores the state of every pending token (LayerSkip).

    Args:
        model: Language model.
        cache: Cache with the policy `deferred`.
        mask: Mask of the real tokens of the prompt, (1, T), or None.
    """

    def __init__(self, model: EarlyExitForCausalLM, cache: ExitCache, mask: Tensor | None) -> None:
        self.cache, self.core_passes, self.token_loops = cache, 0, 0
        self._model, self._mask, self._pending = model, mask, 0
        cache.keeps_states = True

    def read_prompt(self, ids: Tensor) -> Tensor:
        """Return full depth's logits, (1, 1, V), after the last token of a prompt, (1, T)."""
        if self._mask is None:
            self._mask = torch.ones_like(ids)
        past = self.cache.get_seq_length()
        full = Fixed(self._model.max_updates)
        logits: Any = self._model(**self._place(ids[:, past:], past), exit_rule=full, logits_to_keep=1).logits
        self.cache.release()
        return cast(Tensor, logits)

    def draft(self, token: Tensor, rule: ExitRule) -> Tensor | None:
        """Return the logits, (1, V), at the exit of the next token, (1,); None if the token ran all layers."""
        assert self._mask is not None
        self._mask = torch.cat([self._mask, self._mask.new_ones(1, 1)], dim=1)
        output = self._model(**self._place(token.unsqueeze(0), self.cache.get_seq_length()), exit_rule=rule)
        self._pending += 1
        self._count(output.trace.execution.computed.queries.tolist())
        return None if int(output.exit_steps) == self._model.max_updates else output.logits[:, -1]

    def verify(self) -> Tensor:
        """Run all layers of the pending tokens, and return full depth's logits after each of them, (T, V)."""
        assert self._mask is not None
        empty = self._mask.new_empty(1, 0)
        nothing = torch.zeros_like(empty, dtype=torch.bool)
        inputs = {"input_ids": empty, "attention_mask": self._mask}
        stepper = TokenStepper(self._model, self.cache, inputs, nothing, nothing)
        first, states = int(stepper.done.min()), stepper.run_waiting()
        stepper.finish()
        self._count([queries for queries, _, _ in stepper.counts], first)
        return self._model.read(self._model.max_updates, states[0, -self._pending :])

    def keep(self, count: int) -> None:
        """Keep the first `count` pending tokens and discard the rest."""
        assert self._mask is not None
        discarded = self._pending - count
        self.cache.crop(-discarded)
        self.cache.release()
        self._mask = self._mask[:, : self._mask.shape[1] - discarded]
        self._pending = 0

    def _place(self, ids: Tensor, past: int) -> dict[str, Any]:
        """Return the arguments of a forward pass of new tokens behind `past` tokens."""
        assert self._mask is not None
        positions = (self._mask.long().cumsum(dim=1) - 1).clamp(min=0)[:, past : past + ids.shape[1]]
        return {
            "input_ids": ids, "attention_mask": self._mask, "position_ids": positions, "past_key_values": self.cache,
        }  # fmt: skip

    def _count(self, queries: list[int], first: int = 0) -> None:
        """Count the layers of a pass that begins at the exit `first`, from the tokens that ran to each exit."""
        exits = [0, *self._model.config.exits]
        for number, tokens in enumerate(queries, start=first):
            layers = exits[number + 1] - exits[number]
            self.core_passes += layers
            self.token_loops += layers * tokens


class LoopDrafter:
    """Drafter of a looped model. A pending token never has run more loops than an earlier pending token.

    Args:
        model: Language model.
        cache: Key-value cache from `generate`.
        mask: Mask of the real tokens of the prompt, (1, T), or None.
        loops: Number N of loops.
    """

    def __init__(self, model: LoopedForCausalLM, cache: DynamicCache, mask: Tensor | None, loops: int) -> None:
        self.cache, self.core_passes, self.token_loops = cache, 0, 0
        self._model, self._inner, self._loops = model, model.model, loops
        self._mask, self._pending = mask, list[Looping]()
        self._length = 0  # tokens before the pending ones
        config = model.config
        first = config.prelude + loops * config.core
        self._coda = range(first, first + config.coda)

    def read_prompt(self, ids: Tensor) -> Tensor:
        """Return full depth's logits, (1, 1, V), after the last token of a prompt, (1, T).

        Part of the prompt may already be cached.
        """
        cached = self.cache.get_seq_length()
        run = self._inner.begin(ids[:, cached:], self._mask, None, self.cache, num_loops=self._loops)
        while run.done < self._loops:
            self._inner.loop(run)
        self._length = ids.shape[1]
        logits: Tensor = self._model.lm_head(self._inner.read(run)[:, -1:])
        return logits

    def draft(self, token: Tensor, rule: ExitRule) -> Tensor | None:
        """Return the logits, (1, V), at the exit of the next token, (1,), by a rule.

        The result is None if the token exits only after all loops.
        """
        if self._mask is not None:
            self._mask = torch.cat([self._mask, self._mask.new_ones(1, 1)], dim=1)
        run = self._inner.begin(token.unsqueeze(0), self._mask, None, self.cache, num_loops=self._loops)
        self._pending.append(run)
        running = torch.ones(1, dtype=torch.bool, device=token.device)
        reading = LoopReading(None, self._model.lm_head, rule, running)
        reading.start(token.device)
        reads_logits = LOGITS in rule.needs and not isinstance(rule, Fixed)
        while True:
            self._loop(run.done)
            if run.done == self._loops:
                return None
            read = self._read_draft(run) if reads_logits else None
            halting = self._inner.gate(run.normed)[:, 0] if self._model.config.gate else None
            if reading.exits(run.done, self._loops, running, read, halting):
                break
        logits: Tensor = self._model.lm_head(self._read_draft(run) if read is None else read)
        return logits

    def verify(self) -> Tensor:
        """Run all loops of the pending tokens, and return full depth's logits after each of them, (T, V)."""
        for loop in range(self._pending[-1].done, self._loops):
            self._loop(loop)
        _crop(self.cache, self._coda, self._length)
        logits: Tensor = self._model.lm_head(self._inner.read(self._join(self._pending)))
        return logits[0]

    def keep(self, count: int) -> None:
        """Keep the first `count` pending tokens and discard the rest."""
        discarded = len(self._pending) - count
        self._length += count
        _crop(self.cache, range(len(self.cache.layers)), self._length)
        self._mask = self._mask[:, : self._mask.shape[1] - discarded] if self._mask is not None else None
        self._pending = []

    def _loop(self, done: int) -> None:
        """Run one more loop of the pending tokens that have run exactly `done` loops.

        These are the last pending tokens.
        """
        runs = [run for run in self._pending if run.done == done]
        joined = self._join(runs)
        normed = self._inner.loop(joined)
        self.core_passes += 1
        self.token_loops += len(runs)
        for number, run in enumerate(runs):
            column = slice(number, number + 1)
            run.state, run.normed, run.done = joined.state[:, column], normed[:, column], joined.done

    def _read_draft(self, run: Looping) -> Tensor:
        """Return the hidden state r of the last pending token for prediction, (1, D).

        The coda attends to entries of full depth for earlier tokens.
        """
        _crop(self.cache, self._coda, self._length + len(self._pending) - 1)
        return self._inner.read(replace(run, done=run.loops))[:, -1]

    def _join(self, runs: list[Looping]) -> Looping:
        """Join the last pending tokens into one batch of T tokens.

        All of them must have run the same number of loops.
        """
        if len(runs) == 1:
            return replace(runs[0])
        first, config = runs[0], self._model.config
        embedded, state, positions = (
            torch.cat([getattr(run, name) for run in runs], dim=1) for name in ("embedded", "state", "positions")
        )
        normed = None if first.normed is None else torch.cat([cast(Tensor, run.normed) for run in runs], dim=1)
        length = self._length + len(self._pending) - len(runs)
        masked: Any = config if config.base_config is None else config.base_config
        view: Any = _TruncatedCacheView(self.cache, length)
        masks: Any = create_masks_for_generate(masked, embedded, self._mask, view, positions)
        rotation = tuple(torch.cat(tables, dim=1) for tables in zip(*(run.rotation for run in runs), strict=True))
        return replace(
            first, embedded=embedded, state=state, normed=normed, positions=positions, masks=masks, rotation=rotation
        )


class _TruncatedCacheView:
    """A view of a cache with a fixed length.

    While tokens are pending, the layers of the cache differ in length.
    """

    def __init__(self, cache: DynamicCache, length: int) -> None:
        self._cache, self._length = cache, length

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._length

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self._length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._length + query_length, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


def _crop(cache: DynamicCache, layers: Iterable[int], length: int) -> None:
    """Truncate the given layers of a cache to `length` tokens if they have more."""
    for number in layers:
        if number < len(cache.layers):
            layer: Any = cache.layers[number]
            layer.crop(min(length - int(layer.get_seq_length()), 0))
