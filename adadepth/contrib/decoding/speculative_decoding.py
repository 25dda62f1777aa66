"""Self-speculative decoding: one model drafts tokens at reduced depth and verifies them together at full depth.

A looped model drafts with few loops, an early-exit model with its first layers. Loops or layers 1..n of a token attend
only to loops or layers 1..n of earlier tokens. Those of a draft are therefore the first ones of full depth. The states
of drafts are stored, and a verification runs the remaining depth for all drafted tokens at once. If k tokens are
drafted with n of N loops, a round takes k n + (N - n) passes of the core instead of k N. The result is that of full
depth: the same tokens in greedy decoding, and the same distribution in sampling (Leviathan et al. 2023, arXiv
2211.17192; drafts by first layers: LayerSkip, arXiv 2404.16710).

A draft may exit by any exit rule. When a token continues to a loop that earlier drafts have not run, the same pass runs
this loop for these drafts too. A token can therefore always attend to all earlier tokens. A coda runs again for every
draft and has one cache entry per layer. The entry of a draft, computed after few loops, is replaced by that of all
loops when the token is verified.

Shape legend: T tokens, V pieces, N loops.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, SynthIDTextWatermarkingConfig
from transformers.generation import GenerateDecoderOnlyOutput

from adadepth.contrib.decoding.drafters import Drafter, ExitDrafter, LoopDrafter, refuse_options
from adadepth.errors import ConfigError
from adadepth.halting.exit_rules import STATES, ExitRule
from adadepth.models.early_exit.cache import ExitCache
from adadepth.models.early_exit.causal_lm import EarlyExitForCausalLM
from adadepth.models.looped.heads import LoopedForCausalLM
from adadepth.models.shared.generation import CACHE_ARGUMENT


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):
    """Output of `generate` with speculative decoding, with counts of drafted tokens and computations.

    Attributes:
        drafted: Number of drafted tokens.
        accepted: Number of drafted tokens that full depth accepted.
        core_passes: Number of passes of the core, or of a layer of an early-exit model, each for one token or several
            at once.
        token_loops: Number of loops or layers, summed over all tokens including rejected drafts.
    """

    drafted: int | None = None
    accepted: int | None = None
    core_passes: int | None = None
    token_loops: int | None = None


@torch.no_grad()
def self_speculation(
    model: LoopedForCausalLM | EarlyExitForCausalLM,
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
    """Generate text by self-speculative decoding, with the results of full depth in fewer sequential passes.

    This function is a decoding method for `generate` of transformers. `generate` prepares all arguments except
    `draft_rule` and `draft_tokens`:

        model.generate(input_ids, custom_generate=self_speculation, draft_rule="fixed:1", draft_tokens=4)

    Greedy decoding gives the tokens of `generate(exit_rule="fixed:N")`, and sampling draws from its distribution p. A
    draft y with probability q(y) is accepted with probability min(1, p(y) / q(y)). Otherwise a token is drawn from
    max(p - q, 0), normalised. Results may differ by rounding, because matrix products have several rows instead of one.

    Args:
        model: A looped or early-exit language model.
        input_ids: Prompt, (1, T). Padding on the left has attention_mask 0.
        logits_processor: Processor from `generate`, which is applied to drafts and verifications.
        stopping_criteria: Criteria from `generate`, evaluated after every token.
        generation_config: Configuration from `generate`.
        synced_gpus: Must be False.
        streamer: Receiver of every accepted token, or None.
        draft_rule: Rule that decides at which loop or exit a drafted token exits. A token that exits at the last one
            needs no verification.
        draft_tokens: Number k of tokens that are drafted before a verification.
        **model_kwargs: attention_mask, cache and num_loops.

    Returns:
        Tokens (1, T + new), or a `SpeculativeOutput` with `return_dict_in_generate`.

    Raises:
        ConfigError: If there are several texts, beams, or unsupported options.
    """
    _check(model, input_ids, generation_config, synced_gpus, draft_tokens, model_kwargs)
    rule, drafter = _prepare_drafting(model, draft_rule, model_kwargs)
    if rule.mixes:
        raise ConfigError(
            f"draft_rule={rule.label}: averages the predictions of all loops, so a draft saves no compute"
        )
    if STATES in rule.needs:
        raise ConfigError(f"draft_rule={rule.label}: needs changes of the hidden state, which drafts do not store")
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
        **{CACHE_ARGUMENT: drafter.cache},
        drafted=drafted,
        accepted=accepted,
        core_passes=drafter.core_passes,
        token_loops=drafter.token_loops,
    )


def _prepare_drafting(
    model: LoopedForCausalLM | EarlyExitForCausalLM, draft_rule: str | ExitRule, options: dict[str, Any]
) -> tuple[ExitRule, Drafter]:
    """Return the exit rule that ends the drafting of each token, and the drafter for the type of the model."""
    cache, mask = options[CACHE_ARGUMENT], options.get("attention_mask")
    if isinstance(model, EarlyExitForCausalLM):
        exit_cache = cache if isinstance(cache, ExitCache) else ExitCache(model.config.num_hidden_layers, "deferred")
        return model.resolve_rule(draft_rule), ExitDrafter(model, exit_cache, mask)
    loops = model.config.loops(options.get("num_loops"))
    return model.rule(draft_rule, loops, model.config.vocab_size), LoopDrafter(model, cache, mask, loops)


def _check(
    model: LoopedForCausalLM | EarlyExitForCausalLM,
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
    refuse_options(config, "self-speculation", {})
    if isinstance(config.watermarking_config, SynthIDTextWatermarkingConfig):
        raise ConfigError("watermarking_config: self-speculation asks for tokens again, which SynthID does not support")
    if draft_tokens < 1:
        raise ConfigError(f"draft_tokens={draft_tokens}: must be at least 1")
    cache = options.get(CACHE_ARGUMENT)
    if isinstance(model, EarlyExitForCausalLM):
        is_usable = isinstance(cache, DynamicCache) and not cache.get_seq_length()
        if not is_usable and not (isinstance(cache, ExitCache) and cache.policy == "deferred"):
            raise ConfigError("self-speculation with an early-exit model needs cache_policy=deferred, or no cache")
    elif not isinstance(cache, DynamicCache) or not options.get("use_cache", True):
        kind = type(cache).__name__ if cache is not None else "none"
        raise ConfigError(
            f"self-speculation removes rejected tokens from the cache, so it needs a DynamicCache, not {kind}"
        )
    if synced_gpus or model.training:
        raise ConfigError("self-speculation: needs synced_gpus=False and a model in evaluation mode")


@dataclass
class _Draft:
    """Drafted token, (1,), and the distribution it was sampled from, (V,), or None in greedy decoding."""

    token: Tensor
    distribution: Tensor | None


class _AcceptedTokens:
    """Generated text so far, and the sampling of the next tokens from logits."""

    def __init__(self, ids: Tensor, processor: Any, criteria: Any, config: GenerationConfig, streamer: Any) -> None:
        self.ids, self.ended = ids, False
        self.scores: list[Tensor] = []
        self.logits: list[Tensor] = []
        self._processor, self._criteria, self._streamer = processor, criteria, streamer
        self._samples = bool(config.do_sample)

    @property
    def max_new(self) -> int:
        """Number of tokens that may still be generated."""
        longest = getattr(self._criteria, "max_length", None)
        return 2**31 if longest is None else max(longest - self.ids.shape[1], 1)

    def process(self, logits: Tensor, drafts: Iterable[_Draft] = ()) -> Tensor:
        """Apply the logits processors to the logits, (1, V), of the token that follows the given drafts."""
        ids = torch.cat([self.ids, *(draft.token.unsqueeze(0) for draft in drafts)], dim=1)
        scores: Tensor = self._processor(ids, logits.float())
        return scores

    def draft(self, logits: Tensor, drafts: list[_Draft]) -> _Draft:
        """Sample the next draft token from logits (1, V), after the given drafts."""
        scores = self.process(logits, drafts)
        if not self._samples:
            return _Draft(scores.argmax(dim=-1), None)
        probabilities = scores.softmax(dim=-1)[0]
        return _Draft(probabilities.multinomial(1), probabilities)

    def choose(self, logits: Tensor, draft: _Draft | None = None) -> Tensor:
        """Choose the next token, (1,), from full-depth logits (1, V): the draft if it is accepted, else a new sample.

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
        """Append a token, (1,), to the text, and check whether the text has ended."""
        self.ids = torch.cat([self.ids, token.unsqueeze(0)], dim=1)
        if self._streamer is not None:
            self._streamer.put(token.cpu())
        self.ended = bool(self._criteria(self.ids, tuple(self.scores)).all())


def _draft_tokens(drafter: Drafter, text: _AcceptedTokens, rule: ExitRule, count: int) -> list[_Draft]:
    """Draft at most `count` tokens at reduced depth. Drafting ends early if a token runs at full depth."""
    drafts: list[_Draft] = []
    token = text.ids[:, -1]
    while len(drafts) < count:
        logits = drafter.draft(token, rule)
        if logits is None:
            break
        drafts.append(text.draft(logits, drafts))
        token = drafts[-1].token
    return drafts


def _verify_drafts(drafter: Drafter, text: _AcceptedTokens, drafts: list[_Draft]) -> int:
    """Append the drafts that full depth accepts and one more token, and return the number of accepted drafts."""
    logits, taken, accepted = drafter.verify(), 0, 0
    while taken < len(logits) and accepted == taken and not text.ended:
        draft = drafts[taken] if taken < len(drafts) else None
        token = text.choose(logits[taken : taken + 1], draft)
        text.append(token)
        accepted += draft is not None and bool(token == draft.token)
        taken += 1
    drafter.keep(taken)
    return accepted
