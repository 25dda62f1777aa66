"""The early-exit language model.

Shape legend: B texts, A texts that still run, T tokens, D width, L layers, N exits, K units that are read, k of them, C
classes or pieces, M targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, Cache, GenerationMixin
from transformers.utils.generic import can_return_tuple

from adadepth.errors import ConfigError
from adadepth.halting.exit_rules import ExitRule
from adadepth.halting.trace import ComputedSteps, DepthTrace, Execution
from adadepth.models.depth.engine import ReadingRule, fill_table, run_steps
from adadepth.models.depth.outputs import Choice
from adadepth.models.depth.runner import RunningTexts
from adadepth.models.early_exit.cache import ExitCache, check_policy
from adadepth.models.early_exit.modeling import EarlyExitOutput
from adadepth.models.early_exit.token_steps import TokenStepper
from adadepth.models.early_exit.word_model import TokenRun, WordModel
from adadepth.models.shared.causal import causal_targets, mask_by_documents, select_kept_columns
from adadepth.models.shared.encoders import find_real_tokens
from adadepth.models.shared.generation import CACHE_ARGUMENT, CheckedGeneration, accept_former_name, resolve_cache
from adadepth.models.shared.losses import LossOptions, LossTerm, combine_terms, refuse_unknown


class EarlyExitForCausalLM(CheckedGeneration, WordModel, GenerationMixin):
    """A language model."""

    mapping = MODEL_FOR_CAUSAL_LM_MAPPING
    accepts_loss_kwargs = True

    @accept_former_name
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: Choice | None = None,
        logits_to_keep: int | Tensor = 0,
        exit_rule: str | ExitRule | None = None,
        run_all_steps: bool | None = None,
        generator: torch.Generator | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        documents: Tensor | None = None,
        cache_policy: str | None = None,
        **options: Unpack[LossOptions],
    ) -> EarlyExitOutput:
        """Predict the next token of every position.

        Args:
            input_ids: (B, T).
            attention_mask: 1 at real tokens, those in the cache included, (B, M + T).
            position_ids: (B, T) or (1, T); None: as the network counts them.
            cache: Keys and values of earlier tokens.
            inputs_embeds: (B, T, D) instead of `input_ids`.
            labels: The input ids themselves, negative where nothing is to be predicted, (B, T).
            use_cache: Whether to make a cache; None: only if the call names a policy.
            output_hidden_states: Whether to return the states before the first layer and after every exit, or the
                numbers of those that are returned.
            logits_to_keep: Number of last positions whose predictions are returned, or their indices; 0: all.
            exit_rule: Rule that says which exit's prediction a token gets; None: the configuration's, in training the
                last exit.
            run_all_steps: Whether all layers run and all exits are recorded; None: if a loss or states need them.
            generator: Random generator for rules that draw.
            num_targets: Counts that normalise the loss parts instead of those of this batch; see `combine_terms`.
            documents: Number of each token's document, (B, T), for rows of several documents, padding as one more. A
                token sees its own document alone. Labels at the first token of a document must be negative.
            cache_policy: Policy of the cache, which says whether tokens that exit save computation; see
                `adadepth.models.early_exit.cache`. None: that of `cache`, or else of the configuration.
            options: See `LossOptions`.

        Raises:
            DataError: If there are documents with a cache or positions.
            ConfigError: If there is no such policy, or the cache has another policy.
        """
        refuse_unknown(options, type(self).__name__)
        targets = options.get("shift_labels")
        if targets is None and labels is not None:
            targets = causal_targets(labels)
        inputs: dict[str, Any] = {
            "input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids,
            CACHE_ARGUMENT: self._resolve_cache(cache, use_cache, cache_policy),
            "inputs_embeds": inputs_embeds,
        }  # fmt: skip
        cache = inputs[CACHE_ARGUMENT]
        uses_cache = cache is not None or bool(use_cache) or cache_policy is not None
        if documents is not None:
            inputs |= mask_by_documents(documents, position_ids, uses_cache)
        rule = self.resolve_rule(exit_rule)
        if isinstance(cache, ExitCache):
            run, output = self._run_cached(inputs, rule, targets, logits_to_keep, generator)
            terms = None if targets is None else self._compute_exit_losses(run, targets, output)
        else:
            recomputes = self.training and self.is_activation_checkpointing  # and would write to a cache twice
            running = self.begin(inputs, uses_cache and not recomputes)
            real = find_real_tokens(attention_mask, running.states.shape[:2], running.states.device)
            run, output = self.run_words(
                running, rule, real, targets=targets, run_all_steps=run_all_steps,
                output_hidden_states=output_hidden_states, generator=generator,
            )  # fmt: skip
            terms = None if targets is None else self.compute_losses(run, targets, output)
        if terms is not None:
            num_items = options.get("num_items_in_batch")
            output.loss, output.loss_parts = combine_terms(terms, num_targets, num_items)
        if terms is None or not self.training:
            columns = select_kept_columns(logits_to_keep)
            states, exits = run.select_states()[:, columns], run.exit_steps[:, columns].clamp(min=1)
            output.logits = self.read_exits(states, exits, run.fixed_exit)
        return output

    def _run_online(self, running: RunningTexts, rule: ExitRule, real: Tensor, generator: Any) -> TokenRun:
        """Run the layers that the exits of tokens need, and with a cache all of them, for later tokens."""
        run = super()._run_online(running, rule, real, generator)
        if running.cache is not None and self._drafting_exit is None:
            self.run_to_exit(running, self.max_updates)
            run.execution = Execution(self.max_updates, width=real.shape[1], memory_length=running.memory_length)
        return run

    def _run_cached(
        self,
        inputs: Mapping[str, Any],
        rule: ExitRule,
        targets: Tensor | None,
        logits_to_keep: int | Tensor,
        generator: torch.Generator | None,
    ) -> tuple[TokenRun, EarlyExitOutput]:
        """Run with an `ExitCache`: tokens that exit run no further layer in this call.

        The rule decides at the tokens whose predictions are returned, and with the policy `frozen` at all of them.
        """
        cache = inputs[CACHE_ARGUMENT]
        words = self.check_words(inputs)
        real = find_real_tokens(inputs["attention_mask"], words.shape[:2], torch.device("cpu")).cpu()
        columns, units = select_kept_columns(logits_to_keep), real.clone()
        if cache.policy == "deferred" and targets is None:
            columns = columns.cpu() if isinstance(columns, Tensor) else columns
            units = torch.zeros_like(real)
            units[:, columns] = real[:, columns]
        stepper = TokenStepper(self, cache, inputs, real, units)
        steps = run_steps(
            stepper, ReadingRule(rule, self.read), max_updates=self.max_updates, run_all=False, generator=generator,
            exits_only=True,
        )  # fmt: skip
        stepper.finish()
        computed, shape = ComputedSteps.from_counts(stepper.counts), real.shape
        slots = units.flatten().nonzero().squeeze(1).to(words.device, non_blocking=True)
        states = fill_table(steps.logits.to(self.dtype), slots, shape)
        exits = fill_table(steps.exit_steps, slots, shape)
        execution = Execution(
            len(computed.queries), width=shape[1], computed=computed, memory_length=cache.get_seq_length() - shape[1]
        )
        output = EarlyExitOutput(
            cache=cache,
            exit_steps=exits,
            trace=DepthTrace("token", exits.float(), exits > 0, self.max_updates, execution=execution),
        )
        return TokenRun([states], exits, execution), output

    def _compute_exit_losses(self, run: TokenRun, targets: Tensor, output: EarlyExitOutput) -> dict[str, LossTerm]:
        """Return the loss at the exits of the tokens, and set the losses of single tokens in the output."""
        counted = (targets >= 0).flatten().nonzero().squeeze(1)
        states, exits = run.select_states().flatten(0, 1)[counted], run.exit_steps.flatten()[counted].clamp(min=1)
        logits = self.read_exits(states, exits).float()
        losses = nn.functional.cross_entropy(logits, targets.flatten()[counted], reduction="none")
        output.token_losses = losses.detach()
        return self.build_terms(losses.sum(), None, torch.full((), len(losses), device=losses.device))

    def _resolve_cache(self, cache: Cache | None, use_cache: bool | None, policy: str | None) -> Cache | None:
        """Return the cache of a forward pass, with the requested policy."""
        if self._drafting_exit is not None:
            return cache
        if policy is None:
            makes_cache = cache is None and use_cache and not self.training
            return self._make_cache(self.config.cache_policy) if makes_cache else cache
        return resolve_cache(cache, use_cache, check_policy(policy), lambda: self._make_cache(policy))

    def _make_cache(self, policy: str) -> Cache | None:
        """Return an empty cache with a policy; None: the network makes its own."""
        if check_policy(policy) == "all":
            return None
        attention = self.model.config._attn_implementation
        if attention not in ("eager", "sdpa"):
            raise ConfigError(f"attn_implementation={attention}: cache_policy={policy} needs one of eager, sdpa")
        return ExitCache(self.config.num_hidden_layers, policy)

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any) -> None:
        """Create the cache for `generate` with the requested policy, unless a cache is passed."""
        policy = check_policy(model_kwargs.get("cache_policy") or self.config.cache_policy)
        kind = generation_config.cache_implementation
        if policy != "all" and kind not in (None, "dynamic"):
            raise ConfigError(
                f"cache_policy={policy}: has its own cache and does not support cache_implementation={kind}"
            )
        has_cache = model_kwargs.get(CACHE_ARGUMENT) is not None or generation_config.use_cache is False
        if policy == "all" or has_cache or self._drafting_exit is not None:
            super()._prepare_cache_for_generation(generation_config, model_kwargs, *args)  # type: ignore[misc]
        else:
            model_kwargs[CACHE_ARGUMENT] = self._make_cache(policy)

    @property
    def _drafting_exit(self) -> int | None:
        """Number of the exit at which `generate(assistant_early_exit=layer)` drafts tokens; None: it does not draft.

        transformers sets the number of layers of the base model while it drafts.
        """
        layer, exits = self.model.config.num_hidden_layers, self.config.exits
        return None if layer == exits[-1] else exits.index(layer) + 1

    def check_early_exit(self, layer: int) -> None:
        """Refuse a layer of `assistant_early_exit` that has no early exit; see `CheckedGeneration`."""
        if layer not in (early := self.config.exits[:-1]):
            allowed = ", ".join(map(str, early)) or "there is none"
            raise ConfigError(f"assistant_early_exit={layer}: must be a layer with an early exit: {allowed}")

    def resolve_rule(self, choice: str | ExitRule | None) -> ExitRule:
        """Return the rule of a call; while transformers drafts with an early exit, this exit."""
        exit = self._drafting_exit
        return super().resolve_rule(choice if exit is None else f"fixed:{exit}")

    def count_labels(self, labels: Tensor) -> Tensor:
        """Count the tokens with a token to predict."""
        return (causal_targets(labels) >= 0).sum()
