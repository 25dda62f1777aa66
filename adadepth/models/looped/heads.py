"""Looped models with task heads: language models, text classifiers and token classifiers.

Shape legend: B rows, T new tokens, D width, V vocabulary size, C classes, N loops, n loops that ran, K units that are
predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from transformers import Cache, GenerationMixin
from transformers.masking_utils import create_masks_for_generate
from transformers.utils.generic import can_return_tuple

from adadepth.errors import ConfigError, DataError
from adadepth.halting.exit_rules import (
    ExitRule,
    select_predictions,
)
from adadepth.halting.trace import DepthUnit
from adadepth.models.depth.engine import ROWS, fill_table
from adadepth.models.depth.outputs import StepLogits
from adadepth.models.looped.cache import make_cache
from adadepth.models.looped.cache_policies import parse_policy
from adadepth.models.looped.configuration import LoopedConfig
from adadepth.models.looped.exits import LoopResults
from adadepth.models.looped.layers import LanguageModelHead
from adadepth.models.looped.loop_state import Looping, find_prefix_blocks
from adadepth.models.looped.objectives import mixed_losses, objective_terms
from adadepth.models.looped.task_model import LoopedOutput, LoopedTaskModel, LoopOptions
from adadepth.models.shared.causal import causal_targets, cross_entropies, select_kept_columns
from adadepth.models.shared.encoders import find_last_tokens, find_real_tokens
from adadepth.models.shared.generation import CACHE_ARGUMENT, CheckedGeneration, accept_former_name, resolve_cache
from adadepth.models.shared.losses import (
    CLASSES,
    LossOptions,
    LossTerm,
    class_losses,
    combine_terms,
    count_head_classes,
    count_sequences,
    infer_problem_type,
    refuse_unknown,
    step_losses,
    takes_one_class,
    target_weights,
)


class LoopedForCausalLM(CheckedGeneration, LoopedTaskModel, GenerationMixin):
    """Looped causal language model, whose tokens can exit after different numbers of loops."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    accepts_loss_kwargs = True
    drafting = "generate(custom_generate=self_speculation, draft_rule='fixed:1') drafts with few of its loops"

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        self.lm_head = LanguageModelHead(config)
        self.post_init()

    @accept_former_name
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_loops: int | None = None,
        initial_state: Tensor | None = None,
        exit_rule: str | ExitRule | None = None,
        run_all_steps: bool | None = None,
        generator: torch.Generator | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        documents: Tensor | None = None,
        cache_policy: str | None = None,
        token_type_ids: Tensor | None = None,
        text_loops: Tensor | None = None,
        **options: Unpack[LossOptions],
    ) -> LoopedOutput:
        """Predict the next token at every position.

        Args:
            input_ids: Token ids, (B, T).
            attention_mask: Mask of the real tokens; see `LoopedModel.begin`.
            position_ids: Position of each token; see `LoopedModel.begin`.
            cache: Cache of earlier tokens; see `LoopedModel.begin`.
            inputs_embeds: Embeddings instead of `input_ids`, (B, T, D).
            labels: Input ids, (B, T), negative where no token is to be predicted.
            use_cache: Whether to store keys and values; see `LoopedModel.begin`. With the cache policy `all`, all loops
                run, because later tokens read them.
            output_hidden_states: Whether to return the states after every loop.
            logits_to_keep: Number of last positions for which predictions are returned (0 for all positions), or
                indices of positions.
            num_loops: Number N of loops, or None for that of the configuration.
            initial_state: First state s_0; see `LoopedModel.begin`.
            exit_rule: Exit rule that selects the loop from which a token is predicted. None means that of the
                configuration, or in training the last loop.
            run_all_steps: Whether to run all loops and predict from each. None means only if the loss needs all loops.
            generator: Random generator for stochastic rules.
            num_targets: Counts that normalise the loss parts in place of this batch's counts; see `combine_terms`.
            documents: Document of each token; see `LoopedModel.begin`. Labels at the first token of a document must be
                negative.
            cache_policy: Policy of the cache; see `adadepth.models.looped.cache`. None means that of `cache`,
                or else that of the configuration.
            token_type_ids: Tokens with bidirectional attention; see `LoopedModel.begin`.
            text_loops: Number of loops of each text in training with `train_loops=length`, int64 (B,). It is ignored
                otherwise.
            options: Options of transformers' trainers; see `LossOptions`.

        Raises:
            ConfigError: If there is no such policy, or the cache has another policy.
        """
        refuse_unknown(options, type(self).__name__)
        targets = options.get("shift_labels")
        if targets is None and labels is not None:
            targets = causal_targets(labels)
        call = LoopOptions(
            num_loops, initial_state, output_hidden_states, exit_rule, run_all_steps, generator, text_loops
        )
        resolved = self._resolve_loops(num_loops, targets)
        loops = self.config.loops(resolved)
        rule = self.rule(exit_rule, loops, self.config.vocab_size)
        all_loops = self._reads_all_loops(run_all_steps, targets, rule, loops)
        cache = self._resolve_cache(cache, use_cache, cache_policy, loops)
        run = self.model.begin(
            input_ids, attention_mask, position_ids, cache, inputs_embeds, use_cache, resolved, initial_state,
            documents, token_type_ids,
        )  # fmt: skip
        real = find_real_tokens(attention_mask, run.embedded.shape[:2], run.embedded.device)
        units = (None, self.lm_head, real.flatten())
        results, rule = self._run_loops(run, rule, call, all_loops, units, input_ids, attention_mask, targets)
        output = self._build_output(run, results, real, all_loops)
        if targets is not None:
            terms = self._compute_losses(results, rule, targets.flatten(), output)
            num_items = options.get("num_items_in_batch")
            output.loss, output.loss_parts = combine_terms(terms, num_targets, num_items)
        if targets is None or not self.training:
            output.logits = self._read_logits(results, rule, real.shape, logits_to_keep)
        return output

    def _build_output(self, run: Looping, results: LoopResults, real: Tensor, all_loops: bool) -> LoopedOutput:
        """Build the output of a forward pass, still without losses and logits.

        Args:
            run: State of the batch after its loops.
            results: Results of the loops.
            real: Mask of the tokens that are not padding, boolean (B, T).
            all_loops: Whether all loops ran and the head input was computed after each of them.
        """
        exits, halting = results.exit_steps.view(real.shape), results.halting_logits
        if run.counts is not None:
            exits = exits.minimum(run.counts.unsqueeze(1))
        output = LoopedOutput(
            cache=run.cache,
            hidden_states=results.states,
            halting_logits=None if halting is None else halting.view(*real.shape, -1),
            state_moves=self._show_moves(results, all_loops, real.shape),
            exit_steps=exits,
            trace=self._trace(exits, real, run),
        )
        if all_loops and results.all_loops is not None:
            states = torch.stack(results.all_loops, dim=1).view(*real.shape, len(results.all_loops), -1)
            output.step_logits = StepLogits(states, lambda states, _: self.lm_head(states), self.config.vocab_size)
        return output

    def _compute_losses(
        self, results: LoopResults, rule: ExitRule, targets: Tensor, output: LoopedOutput
    ) -> dict[str, LossTerm]:
        """Compute the parts of the loss, and set the losses of single tokens in the output."""
        counted = (targets >= 0).nonzero().squeeze(1)
        targets = targets[counted]
        readings = results.all_loops or [results.at_exit]
        readings = readings[-1:] if self.training and self.config.objective == "last" else readings
        readings = [states[counted] for states in readings]
        halting = None if results.halting_logits is None else results.halting_logits[counted]
        pieces = self.config.vocab_size
        # Losses L_n of the M targets after every loop that was read, (M, n).
        losses = torch.stack([cross_entropies(read, targets, self.lm_head, pieces) for read in readings], dim=1)
        output.step_losses = losses.detach()
        if rule.mixes and results.all_loops is not None:
            output.token_losses = mixed_losses(rule, readings, _unwrap(halting), targets, self.lm_head)
        else:
            last = torch.full_like(targets, losses.shape[1])
            exits = last if results.all_loops is None else results.exit_steps[counted].minimum(last)
            output.token_losses = output.step_losses.gather(1, exits.unsqueeze(1) - 1).squeeze(1)
        return objective_terms(self.config, losses, halting, torch.ones_like(losses[:, 0]))

    def _read_logits(
        self, results: LoopResults, rule: ExitRule, shape: torch.Size, logits_to_keep: int | Tensor
    ) -> Tensor:
        """Return the logits of each token at its exit, or averaged over all loops, (B, kept, V)."""
        columns = select_kept_columns(logits_to_keep)
        if not rule.mixes:
            logits: Tensor = self.lm_head(results.at_exit.view(*shape, -1)[:, columns])
            return logits
        assert results.all_loops is not None
        read = torch.stack(results.all_loops, dim=1).view(*shape, len(results.all_loops), -1)[:, columns]
        halting = _unwrap(results.halting_logits).view(*shape, -1)[:, columns]
        exits = results.exit_steps.view(shape)[:, columns]
        parts = (part.split(ROWS) for part in (read.flatten(0, 1), halting.flatten(0, 1), exits.flatten()))
        mixed = [
            select_predictions(rule, self.lm_head(states), z, steps) for states, z, steps in zip(*parts, strict=True)
        ]
        return torch.cat(mixed).view(*read.shape[:2], -1)

    @property
    def readout_work(self) -> float:
        """MACs of the language model head for one prediction."""
        return float(self.config.hidden_size * self.config.vocab_size)

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the number of tokens that have a target, for each part of the loss."""
        count = (causal_targets(batch["labels"]) >= 0).sum()
        return dict.fromkeys(("task", "entropy", "gate"), count)

    def _resolve_cache(
        self, cache: Cache | None, use_cache: bool | None, policy: str | None, loops: int
    ) -> Cache | None:
        """Return the key-value cache of a forward pass, with the requested cache policy."""
        if policy is None:
            return cache
        name = str(parse_policy(policy))
        return resolve_cache(cache, use_cache, name, lambda: make_cache(self.config, name, loops))

    @staticmethod
    def create_masks_for_generate(config: Any, *args: Any, token_type_ids: Any = None, **kwargs: Any) -> Any:
        """Create attention masks for a static cache as transformers does, with bidirectional attention in a prefix."""
        is_first = kwargs.pop("is_first_iteration", False)
        kwargs["block_sequence_ids"] = find_prefix_blocks(config, token_type_ids) if is_first else None
        return create_masks_for_generate(config, *args, **kwargs)

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any) -> None:
        """Create the cache for `generate` with the requested policy and loops, unless one is given."""
        policy = model_kwargs.get("cache_policy") or self.config.cache_policy
        kind = generation_config.cache_implementation
        has_cache = model_kwargs.get(CACHE_ARGUMENT) is not None
        if has_cache or generation_config.use_cache is False or kind not in (None, "dynamic"):
            if parse_policy(policy).name != "all" and kind not in (None, "dynamic"):
                raise ConfigError(
                    f"cache_policy={policy}: has its own cache and does not support cache_implementation={kind}"
                )
            super()._prepare_cache_for_generation(generation_config, model_kwargs, *args)  # type: ignore[misc]
            return
        loops = self.config.loops(model_kwargs.get("num_loops"))
        model_kwargs[CACHE_ARGUMENT] = make_cache(self.config, policy, loops)


class _Classifier(LoopedTaskModel):
    """Base class of looped classifiers, whose linear head predicts texts or tokens after every loop."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        self.score = nn.Linear(config.hidden_size, count_head_classes(config), bias=False)
        self.post_init()

    @property
    def level_rule(self) -> str:
        """Exit rule whose threshold is adjusted to meet a depth budget by default.

        Regression and multi-label tasks have no margin, so without a halting unit they use a rule on distances.
        """
        has_margin = count_head_classes(self.config) > 1 and takes_one_class(self.config)
        return super().level_rule if has_margin or self.config.gate else "distance:0.5"

    @property
    def readout_work(self) -> float:
        """MACs of the linear head for one prediction."""
        return float(self.config.hidden_size * count_head_classes(self.config))

    def _read(
        self, inputs: Sequence[Any], slots: Tensor, call: LoopOptions, labels: Tensor | None
    ) -> tuple[Looping, LoopedOutput]:
        """Run the loops, and return the logits, (K, C), of the K texts or tokens at the indices `slots`."""
        loops = self._resolve_loops(call.num_loops, labels)
        run = self.model.begin(*inputs, num_loops=loops, initial_state=call.initial_state)
        rule = self.rule(
            call.exit_rule, run.loops, count_head_classes(self.config), one_class=takes_one_class(self.config)
        )
        run_all = call.run_all_steps
        if run_all is None and labels is not None and not self.training:
            run_all = True  # evaluations record the predictions of every loop
        all_loops = self._reads_all_loops(run_all, labels, rule, run.loops)
        units = (slots, self.score, torch.ones_like(slots, dtype=torch.bool))
        results, rule = self._run_loops(run, rule, call, all_loops, units, inputs[0], inputs[1], labels)
        exits = results.exit_steps
        if run.counts is not None:
            exits = exits.minimum(run.counts[slots // run.embedded.shape[1]])
        output = LoopedOutput(
            hidden_states=results.states,
            halting_logits=results.halting_logits,
            state_moves=self._show_moves(results, all_loops, slots.shape),
            exit_steps=exits,
        )
        steps = None if results.all_loops is None else self.score(torch.stack(results.all_loops, dim=1)).float()
        output.step_logits = steps if all_loops else None
        if rule.mixes:
            output.logits = select_predictions(rule, _unwrap(steps), results.halting_logits, results.exit_steps)
        else:
            output.logits = self.score(results.at_exit).float()
        return run, output

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        num_loops: int | None = None,
        initial_state: Tensor | None = None,
        output_hidden_states: bool | None = None,
        exit_rule: str | ExitRule | None = None,
        run_all_steps: bool | None = None,
        generator: torch.Generator | None = None,
        text_loops: Tensor | None = None,
    ) -> LoopedOutput:
        """Compute the logits and, with labels, the loss. The arguments are those of `LoopedForCausalLM.forward`.

        Labels of texts have the form that `infer_problem_type` describes. Labels of tokens are classes, (B, T),
        negative where there is no label.
        """
        real = _find_real_inputs(input_ids, attention_mask, inputs_embeds)
        slots = self._find_slots(real)
        inputs = (input_ids, attention_mask, position_ids, None, inputs_embeds)
        call = LoopOptions(
            num_loops, initial_state, output_hidden_states, exit_rule, run_all_steps, generator, text_loops
        )
        run, output = self._read(inputs, slots, call, labels)
        if labels is not None:
            # One column, the logits at exit, if the last loop alone was read.
            readings = output.step_logits if output.step_logits is not None else _unwrap(output.logits).unsqueeze(1)
            losses, weights = self._compute_losses(readings, labels, slots)
            terms = objective_terms(self.config, losses, output.halting_logits, weights)
            output.loss, output.loss_parts = combine_terms(terms, num_targets)
        self._complete(output, run, real, slots)
        return output

    def _find_slots(self, real: Tensor) -> Tensor:
        """Return the indices b T + t of the K tokens to predict from, int64 (K,), given a mask of real tokens."""
        raise NotImplementedError

    def _compute_losses(self, readings: Tensor, labels: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the losses after n loops, (K, n), and the weights of texts or tokens, (K,)."""
        raise NotImplementedError

    def _complete(self, output: LoopedOutput, run: Looping, real: Tensor, slots: Tensor) -> None:
        """Set the output fields that depend on whether texts or tokens are classified."""
        raise NotImplementedError


class LoopedForSequenceClassification(_Classifier):
    """Looped text classifier or regressor that predicts from the last token."""

    depth_unit: DepthUnit = "sequence"

    def _find_slots(self, real: Tensor) -> Tensor:
        rows, length = real.shape
        return torch.arange(rows, device=real.device) * length + find_last_tokens(real)

    def _compute_losses(self, readings: Tensor, labels: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        losses, _ = step_losses(self.config, readings, labels)
        has_classes = infer_problem_type(self.config, labels) == CLASSES
        return losses, target_weights(self.config, labels) if has_classes else torch.ones_like(losses[:, 0])

    def _complete(self, output: LoopedOutput, run: Looping, real: Tensor, slots: Tensor) -> None:
        valid = torch.ones_like(slots, dtype=torch.bool)
        output.trace = self._trace(_unwrap(output.exit_steps), valid, run, real.sum(dim=1))

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the number of labelled texts in a batch, for each part of the loss."""
        return dict.fromkeys(("task", "entropy", "gate"), count_sequences(self.config, batch["labels"]))

    def count_units(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the number of texts in a batch."""
        return torch.full((), len(batch["attention_mask"]), device=batch["attention_mask"].device)


class LoopedForTokenClassification(_Classifier):
    """Looped token classifier, in which a token attends only to itself and earlier tokens."""

    def _find_slots(self, real: Tensor) -> Tensor:
        return real.flatten().nonzero().squeeze(1)

    def _compute_losses(self, readings: Tensor, labels: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        targets = labels.flatten()[slots]
        losses, _ = class_losses(readings, targets)
        return losses, target_weights(self.config, targets)

    def _complete(self, output: LoopedOutput, run: Looping, real: Tensor, slots: Tensor) -> None:
        exits = fill_table(_unwrap(output.exit_steps), slots, real.shape)
        output.unit_slots, output.trace = slots, self._trace(exits, real, run)
        output.logits = fill_table(_unwrap(output.logits), slots, real.shape)

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the number of labelled tokens in a batch, for each part of the loss."""
        return dict.fromkeys(("task", "entropy", "gate"), target_weights(self.config, batch["labels"]).sum())


def _find_real_inputs(input_ids: Tensor | None, mask: Any, inputs_embeds: Tensor | None) -> Tensor:
    """Return a mask of the tokens that are not padding, boolean (B, T), given ids or embeddings."""
    inputs = input_ids if inputs_embeds is None else inputs_embeds
    if inputs is None:
        raise DataError("input_ids, inputs_embeds: give exactly one of them")
    return find_real_tokens(mask, inputs.shape[:2], inputs.device)


def _unwrap(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor
