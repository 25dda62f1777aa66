"""Drafters for speculative decoding, which draft tokens at reduced depth and verify them at full depth.

A drafter has a text with pending tokens: its last tokens, which have not run at full depth. The states of pending
tokens are stored, so that a verification continues from them.

Shape legend: T tokens, D width, V pieces, N loops or exits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig
from transformers.masking_utils import create_masks_for_generate

from adadepth.errors import ConfigError
from adadepth.halting.exit_decisions import start_memory
from adadepth.halting.exit_rules import LOGITS, ExitRule, Fixed
from adadepth.halting.units import run_unit, start_unit
from adadepth.models.depth.engine import Cohort, ReadingRule, Signals
from adadepth.models.early_exit.cache import ExitCache
from adadepth.models.early_exit.causal_lm import EarlyExitForCausalLM
from adadepth.models.early_exit.token_steps import TokenStepper
from adadepth.models.looped.heads import LoopedForCausalLM
from adadepth.models.looped.loop_state import Looping
from adadepth.models.shared.generation import CACHE_ARGUMENT

# Options of `generate` that change tokens by decoding in another way, with the values that change nothing.
_OTHER_DECODING: dict[str, Any] = {
    "num_beams": 1, "num_beam_groups": 1, "diversity_penalty": 0.0, "constraints": None, "force_words_ids": None,
    "guidance_scale": 1.0, "dola_layers": None, "penalty_alpha": 0.0, "prompt_lookup_num_tokens": None,
    "assistant_early_exit": None, "use_mtp": False, "token_healing": False, "is_assistant": False,
}  # fmt: skip


def refuse_options(config: GenerationConfig, decoder: str, served: Mapping[str, Any]) -> None:
    """Raise an error if a decoder would ignore an option of `generate`.

    Args:
        config: Configuration of the caller with all defaults.
        decoder: Name of the decoder, for the message.
        served: The only value of further options, besides None.

    Raises:
        ConfigError: Names the first such option.
    """
    for name, value in {**_OTHER_DECODING, **served}.items():
        if getattr(config, name, value) not in (value, None):
            raise ConfigError(f"{name}={getattr(config, name)}: {decoder} supports only {value}")


class Drafter(Protocol):
    """Interface of drafters for self-speculative decoding, which hold a text and its unverified last tokens.

    Attributes:
        cache: Keys and values of the text.
        core_passes: Number of passes of the core of a looped model, or of a layer of an early-exit model.
        token_loops: Number of loops or layers, summed over all tokens.
    """

    cache: Any
    core_passes: int
    token_loops: int

    def read_prompt(self, ids: Tensor) -> Tensor:
        """Run a prompt, (1, T), at full depth, and return the logits after its last token, (1, 1, V)."""
        ...

    def draft(self, token: Tensor, rule: ExitRule) -> Tensor | None:
        """Run a token, (1,), until the exit rule stops it, and return its logits, (1, V), or None at full depth."""
        ...

    def verify(self) -> Tensor:
        """Finish the pending tokens at full depth, and return the logits after each of them, (T, V)."""
        ...

    def keep(self, count: int) -> None:
        """Keep the first `count` pending tokens, which are accepted, and remove the others from the cache."""
        ...


class ExitDrafter:
    """Drafter for speculative decoding with an early-exit model, which caches the states of draft tokens (LayerSkip).

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
        """Run a prompt, (1, T), at full depth, and return the logits after its last token, (1, 1, V)."""
        if self._mask is None:
            self._mask = torch.ones_like(ids)
        past = self.cache.get_seq_length()
        full = Fixed(self._model.max_updates)
        logits: Any = self._model(**self._place(ids[:, past:], past), exit_rule=full, logits_to_keep=1).logits
        self.cache.release()
        return cast(Tensor, logits)

    def draft(self, token: Tensor, rule: ExitRule) -> Tensor | None:
        """Run a token, (1,), until the exit rule stops it, and return its logits, (1, V), or None after all layers."""
        assert self._mask is not None
        self._mask = torch.cat([self._mask, self._mask.new_ones(1, 1)], dim=1)
        output = self._model(**self._place(token.unsqueeze(0), self.cache.get_seq_length()), exit_rule=rule)
        self._pending += 1
        self._count(output.trace.execution.computed.queries.tolist())
        return None if int(output.exit_steps) == self._model.max_updates else output.logits[:, -1]

    def verify(self) -> Tensor:
        """Run the remaining layers of the pending tokens, and return full-depth logits after each of them, (T, V)."""
        assert self._mask is not None
        empty = self._mask.new_empty(1, 0)
        nothing = torch.zeros(empty.shape, dtype=torch.bool)
        inputs = {"input_ids": empty, "attention_mask": self._mask}
        stepper = TokenStepper(self._model, self.cache, inputs, nothing, nothing)
        first, states = int(stepper.done.min()), stepper.run_waiting()
        stepper.finish()
        self._count([queries for queries, _, _ in stepper.counts], first)
        return self._model.read(self._model.max_updates, states[0, -self._pending :])

    def keep(self, count: int) -> None:
        """Keep the first `count` pending tokens, which are accepted, and remove the others from the cache."""
        assert self._mask is not None
        discarded = self._pending - count
        self.cache.crop(-discarded)
        self.cache.release()
        self._mask = self._mask[:, : self._mask.shape[1] - discarded]
        self._pending = 0

    def _place(self, ids: Tensor, past: int) -> dict[str, Any]:
        """Return the forward arguments of new tokens that follow `past` cached tokens: ids, mask and positions."""
        assert self._mask is not None
        positions = (self._mask.long().cumsum(dim=1) - 1).clamp(min=0)[:, past : past + ids.shape[1]]
        return {
            "input_ids": ids, "attention_mask": self._mask, "position_ids": positions, CACHE_ARGUMENT: self.cache,
        }  # fmt: skip

    def _count(self, queries: list[int], first: int = 0) -> None:
        """Add the layers of a pass to the counts, given the number of tokens that ran to each exit."""
        exits = [0, *self._model.config.exits]
        for number, tokens in enumerate(queries, start=first):
            layers = exits[number + 1] - exits[number]
            self.core_passes += layers
            self.token_loops += layers * tokens


class LoopDrafter:
    """Drafter for speculative decoding with a looped model. Each draft runs no more loops than the one before.

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
        first = config.prelude + loops * config.layers_per_loop
        self._coda = range(first, first + config.coda)

    def read_prompt(self, ids: Tensor) -> Tensor:
        """Run a prompt, (1, T), at full depth, and return the logits after its last token, (1, 1, V).

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
        """Run one token, (1,), until the exit rule stops it, and return its logits, (1, V).

        The result is None if the token exits only after all loops.
        """
        if self._mask is not None:
            self._mask = torch.cat([self._mask, self._mask.new_ones(1, 1)], dim=1)
        run = self._inner.begin(token.unsqueeze(0), self._mask, None, self.cache, num_loops=self._loops)
        self._pending.append(run)
        drafted = Cohort(torch.zeros(1, dtype=torch.int64, device=token.device), start_memory(rule, 1, token.device))
        reader = ReadingRule(rule, lambda step, states: self._model.lm_head(states))
        reads_logits = LOGITS in rule.needs and not isinstance(rule, Fixed)
        gate: Any = self._inner.gate if self._model.config.gate else None
        halting, memory = None, () if gate is None else start_unit(gate, self._inner.split_state(run.state)[0])
        while True:
            self._loop(run.done)
            if run.done == self._loops:
                return None
            read = self._read_draft(run) if reads_logits else None
            if gate is not None:
                logits, memory = run_unit(gate, cast(Tensor, run.normed), memory, run.done)
                halting = logits[:, 0]
            drafted.step = run.done
            if drafted.decide(reader, Signals(read, halting), self._loops):
                break
        drafts: Tensor = self._model.lm_head(self._read_draft(run) if read is None else read)
        return drafts

    def verify(self) -> Tensor:
        """Run the remaining loops of the pending tokens, and return full-depth logits after each of them, (T, V)."""
        for loop in range(self._pending[-1].done, self._loops):
            self._loop(loop)
        _crop(self.cache, self._coda, self._length)
        logits: Tensor = self._model.lm_head(self._inner.read(self._join(self._pending)))
        return logits[0]

    def keep(self, count: int) -> None:
        """Keep the first `count` pending tokens, which are accepted, and remove the others from the cache."""
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
        """Return the hidden state from which the head predicts after the last pending token, (1, D).

        The coda attends to entries of full depth for earlier tokens.
        """
        _crop(self.cache, self._coda, self._length + len(self._pending) - 1)
        return self._inner.read(replace(run, done=run.loops))[:, -1]

    def _join(self, runs: list[Looping]) -> Looping:
        """Concatenate the states of the last pending tokens into one sequence of T tokens.

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
    """View of a key-value cache that reports a fixed length.

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
    """Truncate the given cache layers to `length` tokens if they are longer."""
    for number in layers:
        if number < len(cache.layers):
            layer: Any = cache.layers[number]
            layer.crop(min(length - int(layer.get_seq_length()), 0))
