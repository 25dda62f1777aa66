"""Self-speculation: a looped model drafts tokens with few of its loops and verifies them with all, in one go.

Loops 1..n of a token read loops 1..n of earlier tokens and nothing else. So what a draft has run is the beginning of
what full depth runs: its states are kept, and a verification runs the loops that are missing, for all drafted tokens
at once. With k tokens drafted by n of N loops a round is k n + (N - n) passes of the core instead of k N, and its
result is what full depth would have said: the same tokens where the likeliest are taken, the same distribution where
tokens are drawn (Leviathan et al. 2023, arXiv 2211.17192; drafts by first layers: LayerSkip, arXiv 2404.16710).

A draft may leave by any exit rule. When a token goes on to a loop that drafts before it have not had, they have it in
the same pass, so that no token ever misses an earlier one. A coda is read anew for every draft and has one place a
layer: a draft's entry, made of few loops, gives way to that of all loops when the token is verified.

Shape legend: T tokens, D width, V pieces, N loops, P, C and Q layers of prelude, core and coda.
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
from adadepth.families.looped.exits import LoopReading
from adadepth.families.looped.heads import LoopedForCausalLM
from adadepth.families.looped.modeling import Looping
from adadepth.halting.exit_rules import LOGITS, STATES, ExitRule, Fixed


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):
    """What `generate(return_dict_in_generate=True)` gives, and what it took behind the prompt.

    Attributes:
        drafted: Tokens that were drafted.
        accepted: Those of them that full depth agreed to.
        core_passes: How often the core ran, for one token or several at once.
        token_loops: Loops of all tokens, those of drafts that were refused included.
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
    """Decode one text as `generate` does at full depth, in fewer passes of the core.

    It is a way of decoding for `generate` of transformers, which prepares all arguments but the two of drafts:

        model.generate(input_ids, custom_generate=self_speculation, draft_rule="fixed:1", draft_tokens=4)

    Greedy decoding gives the tokens of `generate(exit_rule="fixed:N")`, sampling draws from its distribution: a draft y
    of probability q(y) is taken with probability min(1, p(y) / q(y)), and else a token is drawn from max(p - q, 0),
    normalised. Both hold up to the rounding of products of several rows instead of one.

    Args:
        model: A looped language model.
        input_ids: The prompt, (1, T); padding on the left has attention_mask 0.
        logits_processor: Of `generate`; drafts and verifications both pass it.
        stopping_criteria: Of `generate`, asked after every token.
        generation_config: Of `generate`.
        synced_gpus: Must be False.
        streamer: Gets every token that is kept, where it is handed over.
        draft_rule: After which loop a drafted token is read. One that all N loops have run needs no verification.
        draft_tokens: k, tokens that are drafted before a verification.
        **model_kwargs: attention_mask, past_key_values and num_loops.

    Returns:
        Tokens (1, T + new), or a `SpeculativeOutput` with `return_dict_in_generate`.

    Raises:
        ConfigError: If there are several texts, beams, or options that it does not serve.
    """
    _check(model, input_ids, generation_config, synced_gpus, draft_tokens, model_kwargs)
    loops = model.config.loops(model_kwargs.get("num_loops"))
    rule = model.rule(draft_rule, loops, model.config.vocab_size)
    if rule.mixes:
        raise ConfigError(f"draft_rule={rule.label}: mixes all loops, so that a draft saves none")
    if STATES in rule.needs:
        raise ConfigError(f"draft_rule={rule.label}: reads how states move, which drafts do not keep")
    text = _Text(model, model_kwargs["past_key_values"], model_kwargs.get("attention_mask"), loops)
    committed = _Committed(input_ids, logits_processor, stopping_criteria, generation_config, streamer)
    committed.take(committed.choose(text.read_prompt(input_ids)[:, -1]))
    drafted = accepted = 0
    while not committed.ended:
        drafts = _drafts(text, committed, rule, min(draft_tokens, committed.room))
        right = _verify(text, committed, drafts)
        drafted, accepted = drafted + len(drafts), accepted + right
    if streamer is not None:
        streamer.end()
    if not generation_config.return_dict_in_generate:
        return committed.ids
    ids, scores, logits = (
        cast(Any, each) for each in (committed.ids, tuple(committed.scores), tuple(committed.logits))
    )
    return SpeculativeOutput(
        sequences=ids,
        scores=scores if generation_config.output_scores else None,
        logits=logits if generation_config.output_logits else None,
        past_key_values=text.cache,
        drafted=drafted,
        accepted=accepted,
        core_passes=text.core_passes,
        token_loops=text.token_loops,
    )


def _check(
    model: LoopedForCausalLM,
    input_ids: Tensor,
    config: GenerationConfig,
    synced_gpus: bool,
    draft_tokens: int,
    given: dict[str, Any],
) -> None:
    for name in ("exit_rule", "initial_state", "inputs_embeds"):
        if given.get(name) is not None:
            raise ConfigError(f"{name}: self-speculation verifies token ids with all loops, and takes none")
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name) and config.return_dict_in_generate:
            raise ConfigError(f"{name}=True: self-speculation keeps none")
    if len(input_ids) != 1 or config.num_beams != 1:
        raise ConfigError(
            f"self-speculation decodes one text at a time, without beams: {len(input_ids)} rows, "
            f"num_beams={config.num_beams}"
        )
    if draft_tokens < 1:
        raise ConfigError(f"draft_tokens={draft_tokens} must be at least 1")
    cache = given.get("past_key_values")
    if not isinstance(cache, DynamicCache) or not given.get("use_cache", True):
        kind = type(cache).__name__ if cache is not None else "none"
        raise ConfigError(f"self-speculation takes back what was refused: it needs a DynamicCache, not {kind}")
    if synced_gpus or model.training:
        raise ConfigError("self-speculation: needs synced_gpus=False and a model that is not in training")


# ---- Tokens


@dataclass
class _Draft:
    """A drafted token, (1,), and the distribution that it was drawn from, (V,); None if it is the likeliest."""

    token: Tensor
    distribution: Tensor | None


class _Committed:
    """The tokens that full depth has agreed to, and how tokens are chosen."""

    def __init__(self, ids: Tensor, processor: Any, criteria: Any, config: GenerationConfig, streamer: Any) -> None:
        self.ids, self.ended = ids, False
        self.scores: list[Tensor] = []
        self.logits: list[Tensor] = []
        self._processor, self._criteria, self._streamer = processor, criteria, streamer
        self._draws = bool(config.do_sample)

    @property
    def room(self) -> int:
        """How many tokens may follow at most."""
        longest = getattr(self._criteria, "max_length", None)
        return 2**31 if longest is None else max(longest - self.ids.shape[1], 1)

    def distribution(self, logits: Tensor, drafts: Iterable[_Draft] = ()) -> Tensor:
        """Scores of the token behind these drafts, (1, V), of logits (1, V)."""
        ids = torch.cat([self.ids, *(draft.token.unsqueeze(0) for draft in drafts)], dim=1)
        scores: Tensor = self._processor(ids, logits.float())
        return scores

    def draft(self, logits: Tensor, before: list[_Draft]) -> _Draft:
        """Choose a draft from logits (1, V)."""
        scores = self.distribution(logits, before)
        if not self._draws:
            return _Draft(scores.argmax(dim=-1), None)
        shares = scores.softmax(dim=-1)[0]
        return _Draft(shares.multinomial(1), shares)

    def choose(self, logits: Tensor, draft: _Draft | None = None) -> Tensor:
        """The token (1,) that full depth says, of logits (1, V); the draft's own token if it agrees to it."""
        scores = self.distribution(logits)
        self.logits.append(logits.float())
        self.scores.append(scores)
        if not self._draws:
            return scores.argmax(dim=-1)
        shares = scores.softmax(dim=-1)[0]
        if draft is None:
            return shares.multinomial(1)
        assert draft.distribution is not None
        if torch.rand((), device=shares.device) * draft.distribution[draft.token] < shares[draft.token]:
            return draft.token
        left = (shares - draft.distribution).clamp(min=0)
        return (left if left.any() else shares).multinomial(1)

    def take(self, token: Tensor) -> None:
        """A text has one more token, (1,)."""
        self.ids = torch.cat([self.ids, token.unsqueeze(0)], dim=1)
        if self._streamer is not None:
            self._streamer.put(token.cpu())
        self.ended = bool(self._criteria(self.ids, tuple(self.scores)).all())


def _drafts(text: _Text, committed: _Committed, rule: ExitRule, count: int) -> list[_Draft]:
    """Up to `count` tokens behind the last one, fewer if one has had all loops: there is nothing to draft behind it."""
    drafts: list[_Draft] = []
    token = committed.ids[:, -1]
    while len(drafts) < count:
        logits = text.draft(token, rule)
        if logits is None:
            break
        drafts.append(committed.draft(logits, drafts))
        token = drafts[-1].token
    return drafts


def _verify(text: _Text, committed: _Committed, drafts: list[_Draft]) -> int:
    """Keep the drafts that full depth agrees to, and the token that it says in place of the next; returns how many."""
    logits, taken, right = text.verify(), 0, 0
    while taken < len(logits) and right == taken and not committed.ended:
        draft = drafts[taken] if taken < len(drafts) else None
        token = committed.choose(logits[taken : taken + 1], draft)
        committed.take(token)
        right += draft is not None and bool(token == draft.token)
        taken += 1
    text.keep(taken)
    return right


# ---- Loops


class _Text:
    """A text whose last tokens are in the middle of their loops.

    Of the pending tokens, a later one never has had more loops than an earlier one.
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
        """Logits of full depth behind the last token, (1, 1, V), of a prompt (1, T) that the cache may know in part."""
        known = self.cache.get_seq_length()
        run = self._inner.begin(ids[:, known:], self._mask, None, self.cache, num_loops=self._loops)
        while run.done < self._loops:
            self._inner.loop(run)
        self._length = ids.shape[1]
        logits: Tensor = self._model.lm_head(self._inner.read(run)[:, -1:])
        return logits

    def draft(self, token: Tensor, rule: ExitRule) -> Tensor | None:
        """Logits (1, V) where a rule reads the next token, (1,); None if it has had all loops then."""
        if self._mask is not None:
            self._mask = torch.cat([self._mask, self._mask.new_ones(1, 1)], dim=1)
        run = self._inner.begin(token.unsqueeze(0), self._mask, None, self.cache, num_loops=self._loops)
        self._pending.append(run)
        everybody = torch.ones(1, dtype=torch.bool, device=token.device)
        reading = LoopReading(None, self._model.lm_head, rule, everybody)
        reading.start(token.device)
        reads = LOGITS in rule.needs and not isinstance(rule, Fixed)
        while True:
            self._loop(run.done)
            if run.done == self._loops:
                return None
            read = self._read_draft(run) if reads else None
            halting = self._inner.gate(run.normed)[:, 0] if self._model.config.gate else None
            if reading.exits(run.done, self._loops, everybody, read, halting):
                break
        logits: Tensor = self._model.lm_head(self._read_draft(run) if read is None else read)
        return logits

    def verify(self) -> Tensor:
        """Give the pending tokens all loops; logits of full depth behind each of them, (T, V)."""
        for loop in range(self._pending[-1].done, self._loops):
            self._loop(loop)
        _crop(self.cache, self._coda, self._length)
        logits: Tensor = self._model.lm_head(self._inner.read(self._joined(self._pending)))
        return logits[0]

    def keep(self, count: int) -> None:
        """Only the first pending tokens were right: take the others back."""
        back = len(self._pending) - count
        self._length += count
        _crop(self.cache, range(len(self.cache.layers)), self._length)
        self._mask = self._mask[:, : self._mask.shape[1] - back] if self._mask is not None else None
        self._pending = []

    def _loop(self, done: int) -> None:
        """One more loop of all pending tokens that have had so many, which are the last ones."""
        runs = [run for run in self._pending if run.done == done]
        joined = self._joined(runs)
        normed = self._inner.loop(joined)
        self.core_passes += 1
        self.token_loops += len(runs)
        for number, run in enumerate(runs):
            here = slice(number, number + 1)
            run.state, run.normed, run.done = joined.state[:, here], normed[:, here], joined.done

    def _read_draft(self, run: Looping) -> Tensor:
        """R of the last pending token, (1, D), by a coda that is at the place of full depth."""
        _crop(self.cache, self._coda, self._length + len(self._pending) - 1)
        return self._inner.read(replace(run, done=run.loops))[:, -1]

    def _joined(self, runs: list[Looping]) -> Looping:
        """The last pending tokens as one batch of T tokens, all of which have had as many loops."""
        if len(runs) == 1:
            return replace(runs[0])
        first, config = runs[0], self._model.config
        embedded, state, positions = (
            torch.cat([getattr(run, name) for run in runs], dim=1) for name in ("embedded", "state", "positions")
        )
        normed = None if first.normed is None else torch.cat([cast(Tensor, run.normed) for run in runs], dim=1)
        before = self._length + len(self._pending) - len(runs)
        of: Any = config if config.base_config is None else config.base_config
        waiting: Any = _Before(self.cache, before)
        masks: Any = create_masks_for_generate(of, embedded, self._mask, waiting, positions)
        rotation = tuple(torch.cat(each, dim=1) for each in zip(*(run.rotation for run in runs), strict=True))
        return replace(
            first, embedded=embedded, state=state, normed=normed, positions=positions, masks=masks, rotation=rotation
        )


class _Before:
    """A cache that has so many tokens: where some wait for their loops, layers do not have equally many."""

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


def _crop(cache: DynamicCache, numbers: Iterable[int], length: int) -> None:
    """Leave so many tokens in these layers of a cache, where they have more."""
    for number in numbers:
        if number < len(cache.layers):
            layer = cache.layers[number]
            layer.crop(min(length - int(layer.get_seq_length()), 0))
