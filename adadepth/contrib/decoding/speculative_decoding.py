"""Self-speculative decoding: a looped model drafts tokens with few loops and verifies them together with all loops.

Loops 1..n of a token attend only to loops 1..n of earlier tokens. The loops of a draft are therefore the first loops of
full depth. The states of drafts are stored, and a verification runs the remaining loops for all drafted tokens at once.
If k tokens are drafted with n of N loops, a round takes k n + (N - n) passes of the core instead of k N. The result is
that of full depth: the same tokens in greedy decoding, and the same distribution in sampling (Leviathan et al. 2023,
arXiv 2211.17192; drafts by first layers: LayerSkip, arXiv 2404.16710).

A draft may exit by any exit rule. When a token continues to a loop that earlier drafts have not run, the same pass runs
this loop for these drafts too. A token can therefore always attend to all earlier tokens. A coda runs again for every
draft and has one cache entry per layer. The entry of a draft, computed after few loops, is replaced by that of all
loops when the token is verified.

Shape legend: T tokens, D width, V pieces, N loops.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.masking_utils import create_masks_for_generate

from adadepth.errors import ConfigError
from adadepth.halting.exit_rules import LOGITS, STATES, ExitRule, Fixed
from adadepth.models.looped.exits import LoopReading
from adadepth.models.looped.heads import LoopedForCausalLM
from adadepth.models.looped.modeling import Looping


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):
    """The output of `generate(return_dict_in_generate=True)`, with counts of the computations after the prompt.

    Attributes:
        drafted: Number of drafted tokens.
        accepted: Number of drafted tokens that full depth accepted.
        core_passes: Number of passes of the core, each for one token or several at once.
        token_loops: Number of loops, summed over all tokens including rejected drafts.
    """

    drafted: int | None = None
    accepted: int | None = None
    core_passes: int | None = None
    token_loops: int | None = None


@torch.no_grad()
def self_speculation(
    model: LoopedForCausalLM,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: GenerationConfig,
    synced_gpus: bool = False,
    streamer: Any = None,
    draft_rule: str | ExitRule = "fixed:1",
    draft_tokens: int = 4,
    **model_kwargs: Any,
) -> SpeculativeOutput | Tensor:
    """Decode one text with the result of `generate` at full depth, in fewer passes of the core.

    This function is a decoding method for `generate` of transformers. `generate` prepares all arguments except
    `draft_rule` and `draft_tokens`:

        model.generate(input_ids, custom_generate=self_speculation, draft_rule="fixed:1", draft_tokens=4)

    Greedy decoding gives the tokens of `generate(exit_rule="fixed:N")`, and sampling draws from its distribution p. A
    draft y with probability q(y) is accepted with probability min(1, p(y) / q(y)). Otherwise a token is drawn from
    max(p - q, 0), normalised. Results may differ by rounding, because matrix products have several rows instead of one.

    Args:
        model: A looped language model.
        input_ids: Prompt, (1, T). Padding on the left has attention_mask 0.
        logits_processor: Processor from `generate`, which is applied to drafts and verifications.
        stopping_criteria: Criteria from `generate`, evaluated after every token.
        generation_config: Configuration from `generate`.
        synced_gpus: Must be False.
        streamer: Receiver of every accepted token, or None.
        draft_rule: Rule that decides at which loop a drafted token exits. A token that exits at loop N needs no
            verification.
        draft_tokens: Number k of tokens that are drafted before a verification.
        **model_kwargs: attention_mask, past_key_values and num_loops.

    Returns:
        Tokens (1, T + new), or a `SpeculativeOutput` with `return_dict_in_generate`.

    Raises:
        ConfigError: If there are several texts, beams, or unsupported options.
    """
    _check(model, input_ids, generation_config, synced_gpus, draft_tokens, model_kwargs)
    loops = model.config.loops(model_kwargs.get("num_loops"))
    rule = model.rule(draft_rule, loops, model.config.vocab_size)
    if rule.mixes:
        raise ConfigError(f"draft_rule={rule.label}: mixes all loops, so a draft saves none")
    if STATES in rule.needs:
        raise ConfigError(f"draft_rule={rule.label}: reads the change of states, which drafts do not store")
    drafter = _Drafter(model, model_kwargs["past_key_values"], model_kwargs.get("attention_mask"), loops)
    text = _AcceptedTokens(input_ids, logits_processor, stopping_criteria, generation_config, streamer)
    text.append(text.choose(drafter.read_prompt(input_ids)[:, -1]))
    drafted = accepted = 0
    while not text.ended:
        drafts = _draft_tokens(drafter, text, rule, min(draft_tokens, text.max_new))
        drafted += len(drafts)
        accepted += _verify_drafts(drafter, text, drafts)
    if streamer is not None:
        streamer.end()
    if not generation_config.return_dict_in_generate:
        return text.ids
    ids, scores, logits = (cast(Any, values) for values in (text.ids, tuple(text.scores), tuple(text.logits)))
    return SpeculativeOutput(
        sequences=ids,
        scores=scores if generation_config.output_scores else None,
        logits=logits if generation_config.output_logits else None,
        past_key_values=drafter.cache,
        drafted=drafted,
        accepted=accepted,
        core_passes=drafter.core_passes,
        token_loops=drafter.token_loops,
    )


def _check(
    model: LoopedForCausalLM,
    input_ids: Tensor,
    config: GenerationConfig,
    synced_gpus: bool,
    draft_tokens: int,
    options: dict[str, Any],
) -> None:
    for name in ("exit_rule", "initial_state", "inputs_embeds"):
        if options.get(name) is not None:
            raise ConfigError(f"{name}: not supported by self-speculation, which verifies token ids with all loops")
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name) and config.return_dict_in_generate:
            raise ConfigError(f"{name}=True: not supported by self-speculation")
    if len(input_ids) != 1 or config.num_beams != 1:
        raise ConfigError(
            f"self-speculation supports one text at a time, without beams: {len(input_ids)} rows, "
            f"num_beams={config.num_beams}"
        )
    if draft_tokens < 1:
        raise ConfigError(f"draft_tokens={draft_tokens} must be at least 1")
    cache = options.get("past_key_values")
    if not isinstance(cache, DynamicCache) or not options.get("use_cache", True):
        kind = type(cache).__name__ if cache is not None else "none"
        raise ConfigError(
            f"self-speculation removes rejected tokens from the cache, so it needs a DynamicCache, not {kind}"
        )
    if synced_gpus or model.training:
        raise ConfigError("self-speculation: needs synced_gpus=False and a model in evaluation mode")


# ---- Tokens


@dataclass
class _Draft:
    """A drafted token, (1,), and the distribution that it was sampled from, (V,), or None in greedy decoding."""

    token: Tensor
    distribution: Tensor | None


class _AcceptedTokens:
    """The tokens that full depth has accepted, and the choice of the next tokens."""

    def __init__(self, ids: Tensor, processor: Any, criteria: Any, config: GenerationConfig, streamer: Any) -> None:
        self.ids, self.ended = ids, False
        self.scores: list[Tensor] = []
        self.logits: list[Tensor] = []
        self._processor, self._criteria, self._streamer = processor, criteria, streamer
        self._samples = bool(config.do_sample)

    @property
    def max_new(self) -> int:
        """Maximum number of tokens that may follow."""
        longest = getattr(self._criteria, "max_length", None)
        return 2**31 if longest is None else max(longest - self.ids.shape[1], 1)

    def process(self, logits: Tensor, drafts: Iterable[_Draft] = ()) -> Tensor:
        """Return the processed scores, (1, V), for the token after the given drafts, from logits (1, V)."""
        ids = torch.cat([self.ids, *(draft.token.unsqueeze(0) for draft in drafts)], dim=1)
        scores: Tensor = self._processor(ids, logits.float())
        return scores

    def draft(self, logits: Tensor, drafts: list[_Draft]) -> _Draft:
        """Choose the draft token after the given drafts from logits (1, V)."""
        scores = self.process(logits, drafts)
        if not self._samples:
            return _Draft(scores.argmax(dim=-1), None)
        probabilities = scores.softmax(dim=-1)[0]
        return _Draft(probabilities.multinomial(1), probabilities)

    def choose(self, logits: Tensor, draft: _Draft | None = None) -> Tensor:
        """Choose the token (1,) of full depth from logits (1, V).

        It is the token of the draft if the draft is accepted.
        """
        scores = self.process(logits)
        self.logits.append(logits.float())
        self.scores.append(scores)
        if not self._samples:
            return scores.argmax(dim=-1)
        probabilities = scores.softmax(dim=-1)[0]
        if draft is None:
            return probabilities.multinomial(1)
        assert draft.distribution is not None
        uniform = torch.rand((), device=probabilities.device)
        if uniform * draft.distribution[draft.token] < probabilities[draft.token]:
            return draft.token
        residual = (probabilities - draft.distribution).clamp(min=0)
        return (residual if residual.any() else probabilities).multinomial(1)

    def append(self, token: Tensor) -> None:
        """Append a token, (1,), and check whether the text has ended."""
        self.ids = torch.cat([self.ids, token.unsqueeze(0)], dim=1)
        if self._streamer is not None:
            self._streamer.put(token.cpu())
        self.ended = bool(self._criteria(self.ids, tuple(self.scores)).all())


def _draft_tokens(drafter: _Drafter, text: _AcceptedTokens, rule: ExitRule, count: int) -> list[_Draft]:
    """Draft at most `count` tokens. Drafting stops early when a token has run all loops."""
    drafts: list[_Draft] = []
    token = text.ids[:, -1]
    while len(drafts) < count:
        logits = drafter.draft(token, rule)
        if logits is None:
            break
        drafts.append(text.draft(logits, drafts))
        token = drafts[-1].token
    return drafts


def _verify_drafts(drafter: _Drafter, text: _AcceptedTokens, drafts: list[_Draft]) -> int:
    """Append the accepted drafts and the next token of full depth, and return the number of accepted drafts."""
    logits, taken, accepted = drafter.verify(), 0, 0
    while taken < len(logits) and accepted == taken and not text.ended:
        draft = drafts[taken] if taken < len(drafts) else None
        token = text.choose(logits[taken : taken + 1], draft)
        text.append(token)
        accepted += draft is not None and bool(token == draft.token)
        taken += 1
    drafter.keep(taken)
    return accepted


# ---- Loops


class _Drafter:
    """A text with pending tokens, which are the last tokens and have not run all loops.

    A pending token never has run more loops than an earlier pending token.
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
