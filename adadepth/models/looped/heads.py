"""Looped models with heads: language models, and classifiers of texts and of tokens.

Shape legend: B rows, T new tokens, M tokens in the cache, D width, V pieces, C classes, N loops, n of them that ran, K
units that are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor, nn
from transformers import Cache, GenerationMixin
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from adadepth.errors import ConfigError, DataError
from adadepth.halting.exit_rules import (
    HALTING_SIGNAL,
    LOGITS,
    STATES,
    ExitRule,
    Fixed,
    check_rule,
    parse_rule,
    select_predictions,
)
from adadepth.halting.trace import ComputedSteps, DepthTrace, DepthUnit, Execution, Work
from adadepth.models.looped.activation_memory import count_stored_numbers
from adadepth.models.looped.cache import LoopedCache, make_cache
from adadepth.models.looped.cache_policies import parse_policy
from adadepth.models.looped.configuration import LoopedConfig
from adadepth.models.looped.exits import ROWS, LoopReading, LoopResults, run_loops
from adadepth.models.looped.modeling import LoopedModel, LoopedPreTrainedModel, Looping
from adadepth.models.looped.objectives import (
    causal_targets,
    compute_curriculum_loops,
    draw_loops,
    loop_losses,
    mixed_losses,
    objective_terms,
    text_uniforms,
)
from adadepth.models.shared.generation import CheckedGeneration
from adadepth.models.shared.layers import Product
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
from adadepth.models.shared.steps import ExitRuleKnob


class StepLogits:
    """The predictions of every loop, (B, T, N, V), computed when they are indexed.

    `logits[rows, tokens, loops]` is indexed like a tensor and gives float32 (..., V); `logits[...]` gives all of them.
    """

    def __init__(self, states: Tensor, head: Callable[[Tensor], Tensor], pieces: int) -> None:
        self.states, self._head = states, head
        self.shape = torch.Size((*states.shape[:-1], pieces))

    def __getitem__(self, index: Any) -> Tensor:
        return self._head(self.states[index]).float()


@dataclass
class LoopedOutput(ModelOutput):
    """Predictions of a head.

    Attributes:
        loss: Sum of `loss_parts`, with labels.
        loss_parts: Weighted and normalised parts by name.
        logits: Predictions at each unit's exit: (B, T, V) of a language model, (B, C) of sequences, (B, T, C) of
            tokens, 0 at padding. A language model in training with labels leaves them out.
        past_key_values: The cache of a language model.
        hidden_states: s_0 and the states after every loop that ran, (B, T, D) each, on request.
        step_logits: Predictions of every loop, if all ran: `StepLogits` (B, T, N, V) of a language model, else
            (K, N, C).
        halting_logits: z_n of the loops that ran, float32: (B, T, n) of a language model, else (K, n).
        state_moves: Movement of the states in every loop, see `adadepth.halting.exit_rules.state_moves`, float32:
            (B, T, n, 2) of a language model, else (K, n, 2); if all loops ran and were read, outside training.
        exit_steps: Loop of each unit's exit, from 1, int64: (B, T) of a language model, 0 at padding; else (K,).
        unit_slots: b T + t of the K units of a tagger.
        trace: Loops of every unit.
        token_losses: Cross-entropy in nats of a language model's P tokens with a label, detached, (P,).
        step_losses: The same after each of the loops that were read, (P, n).
    """

    loss: Tensor | None = None
    loss_parts: dict[str, Tensor] | None = None
    logits: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    step_logits: Any = None
    halting_logits: Tensor | None = None
    state_moves: Tensor | None = None
    exit_steps: Tensor | None = None
    unit_slots: Tensor | None = None
    trace: DepthTrace | None = None
    token_losses: Tensor | None = None
    step_losses: Tensor | None = None


class LoopOptions(NamedTuple):
    """Options of the loops in a call, as in `LoopedForCausalLM.forward`; None: the configuration's."""

    num_loops: int | None
    initial_state: Tensor | None
    output_hidden_states: bool | None
    exit_rule: str | ExitRule | None
    run_all_steps: bool | None
    generator: torch.Generator | None


class LoopedTaskModel(ExitRuleKnob, LoopedPreTrainedModel):
    """The base class of all heads: exit rules, numbers of loops, multiply-accumulates."""

    accepts_loss_kwargs = False

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        self.model = LoopedModel(config)
        self._step: int | None = None
        self._steps = 1

    @property
    def exit_signals(self) -> frozenset[str]:
        """Signals that exit rules can read."""
        return frozenset({LOGITS, STATES, HALTING_SIGNAL} if self.config.gate else {LOGITS, STATES})

    @property
    def level_rule(self) -> str:
        """The rule of the halting unit, if there is one, else of margins."""
        return "quantile" if self.config.gate else "margin:0.5"

    def rule(self, rule: str | ExitRule | None, loops: int, classes: int, *, one_class: bool = True) -> ExitRule:
        """Resolve the exit rule of a call; None: the configuration's, in training all loops.

        Raises:
            ConfigError: If there is no such rule, or it needs more than the model has.
        """
        if rule is None and not self.training:
            rule = self.config.exit_rule
        resolved = Fixed(loops) if rule is None else parse_rule(rule) if isinstance(rule, str) else rule
        check_rule(resolved, self.exit_signals, classes, loops, self.config.model_type, one_class=one_class)
        return resolved

    def set_step(self, step: int, total: int) -> None:
        """Set the numbers of updates made and of all updates, on which drawn and growing loops depend."""
        self._step, self._steps = step, total

    def _resolve_loops(self, num_loops: int | None, labels: Tensor | None) -> int | None:
        """Return N of a call: in training what `loop_curriculum` has grown to; None: the configuration's."""
        config = self.config
        if num_loops is not None or labels is None or not self.training or self._step is None:
            return num_loops
        if config.loop_curriculum == "none":
            return None
        return compute_curriculum_loops(
            config.num_loops, config.loop_curriculum, config.curriculum_share, self._step, self._steps
        )

    def _draw_loops(self, run: Looping, input_ids: Tensor | None, labels: Tensor | None, num_loops: int | None) -> None:
        """Draw a number of loops for every text, in training with `train_loops=drawn`."""
        if not self.training or labels is None or num_loops is not None or self.config.train_loops == "fixed":
            return
        if self.config.objective != "last":
            raise ConfigError(f"train_loops=drawn: needs objective=last, not {self.config.objective}")
        rows, spread, mean = len(run.embedded), self.config.loop_spread, run.loops
        if input_ids is None or self._step is None:
            uniform = torch.rand(rows, 2, dtype=torch.float64).to(run.state.device)
        else:
            uniform = text_uniforms(input_ids, self.config.draw_seed, self._step)
        run.counts = draw_loops(uniform, mean, spread)
        run.loops = int(run.counts.max())

    def _reads_all_loops(self, run_all: bool | None, labels: Tensor | None, rule: ExitRule, loops: int) -> bool:
        """Return whether all loops run and are read: because the call says so, or a loss needs them."""
        reads_last_only = self.config.objective == "last" and isinstance(rule, Fixed) and rule.k == loops
        needed = labels is not None and not reads_last_only
        if run_all is False and needed:
            raise ValueError(f"run_all_steps=False with labels: objective={self.config.objective} needs every loop")
        return needed if run_all is None else run_all

    def _run_loops(
        self,
        run: Looping,
        rule: ExitRule,
        call: LoopOptions,
        all_loops: bool,
        units: tuple[Tensor | None, nn.Module, Tensor],
        input_ids: Tensor | None,
        labels: Tensor | None,
    ) -> tuple[LoopResults, ExitRule]:
        """Run the loops of a call; returns the rule as well, which reads the last loop where loops are drawn.

        Args:
            run: The batch before its first loop.
            rule: Rule of the call.
            call: Options of the call.
            all_loops: Whether all loops run and are read.
            units: Slots, head and mask of the units; see `LoopReading`.
            input_ids: Token ids, (B, T), from which numbers of loops are drawn.
            labels: Labels of the call; None: no loss is computed.
        """
        self._draw_loops(run, input_ids, labels, call.num_loops)
        rule = Fixed(run.loops) if run.counts is not None else rule
        wants_states = call.output_hidden_states
        states = bool(self.config.output_hidden_states if wants_states is None else wants_states)
        slots, head, real = units
        frozen = labels is not None and self.config.objective == "gate_alone"
        moves = all_loops and not self.training
        reading = LoopReading(slots, head, rule, real, all_loops, states, moves, call.generator, frozen)
        return run_loops(self.model, run, reading), rule

    def least_activations(self, lengths: Sequence[int], recomputed: bool) -> dict[str, int]:
        """Return what layers store of the loops that have gradients; logits exist a part at a time only."""
        return count_stored_numbers(self.config, lengths, recomputed)

    def count_units(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Count the real tokens of a batch."""
        return batch["attention_mask"].sum()

    def _show_moves(self, results: LoopResults, all_loops: bool, shape: torch.Size) -> Tensor | None:
        """Return how every loop moved the states of units of a shape, if all loops were read, outside training."""
        moves = results.moves if all_loops and not self.training else None
        return None if moves is None else moves.view(*shape, -1, 2)

    def _trace(self, exits: Tensor, real: Tensor, run: Looping, tokens: Tensor | None = None) -> DepthTrace:
        width, before = run.embedded.shape[1], 0 if run.cache is None else run.cache.get_seq_length()
        computed = ComputedSteps.from_counts(run.computed) if run.computed else None
        execution = Execution(run.done, tokens, width, computed=computed, memory_length=max(before - width, 0))
        unit: DepthUnit = "token" if exits.dim() == 2 else "sequence"
        return DepthTrace(unit, exits.float(), real, run.loops, execution=execution)

    def price(self, trace: DepthTrace) -> Work:
        """Return the multiply-accumulates of a traced batch, without readings; see `reading_work` for these.

        A layer takes 2 D (h + h_kv) d_h + 3 D F a token, and 2 h d_h a pair of query and key. `adaptive` counts a token
        until its exit. `executed` counts it until the loops end, or, where a cache's policy stops it, what was
        computed, keys and values of frozen states included.
        """
        config, ran, updates = self.config, trace.executed, trace.updates.double()
        by_token = updates.dim() == 2
        lengths = (trace.valid.sum(dim=1) if ran.tokens is None else ran.tokens).double()
        width = ran.width if ran.width is not None else updates.shape[1] if by_token else lengths.max()
        token, pair = compute_layer_macs(config)

        def work_of_token(length: Tensor) -> Tensor:  # in a layer; it sees half of the new tokens, and all cached ones
            return token + pair * ((length + 1) / 2 + ran.memory_length)

        width = torch.as_tensor(width, dtype=torch.float64, device=updates.device)
        everything = len(updates) * width * work_of_token(width)
        executed = everything * (config.prelude + config.core * ran.steps)
        if ran.computed is not None:
            queries, keys, pairs = (counts.sum().to(everything) for counts in ran.computed)
            key = 2.0 * config.hidden_size * config.key_value_heads * config.width_of_head
            core = queries * (token - key) + keys * key + pairs * pair
            executed = everything * config.prelude + config.core * core
        units = trace.valid.double()
        if by_token:
            units, updates = units.sum(dim=1), updates.sum(dim=1)
        else:
            units, updates = units * lengths, updates * lengths
        return Work(
            executed=executed,
            dense=everything * (config.prelude + config.core * trace.updates.max().double()),
            adaptive=(work_of_token(lengths) * (config.prelude * units + config.core * updates)).sum(),
            full=(work_of_token(lengths) * units * (config.prelude + config.core * trace.max_updates)).sum(),
        )

    def reading_work(self, signal: str, lengths: Tensor) -> Tensor | float:
        """Return the multiply-accumulates of reading a signal at a loop; see `DepthModel.reading_work`.

        A prediction takes coda and head; the coda of a text runs over all its tokens. States take D for each of three
        lengths: of the state, of its last update, and of the change of that.
        """
        if signal != LOGITS:
            return self.config.hidden_size * (3.0 if signal == STATES else 1.0)
        token, pair = compute_layer_macs(self.config)
        tokens = lengths.double() if self.depth_unit == "sequence" else 1.0
        return self.config.coda * tokens * (token + pair * (lengths.double() + 1) / 2) + self.readout_work


def compute_layer_macs(config: LoopedConfig) -> tuple[float, float]:
    """Return the multiply-accumulates of a layer: of a token, and of a pair of query and key."""
    queries, keys = (heads * config.width_of_head for heads in (config.num_attention_heads, config.key_value_heads))
    width = config.hidden_size
    return 2.0 * width * (queries + keys) + 3.0 * width * config.intermediate_size, 2.0 * queries


class LoopedForCausalLM(CheckedGeneration, LoopedTaskModel, GenerationMixin):
    """A looped language model."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    accepts_loss_kwargs = True
    drafting = "generate(custom_generate=self_speculation, draft_rule='fixed:1') drafts with few of its loops"

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        self.lm_head = Product(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
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
        **options: Unpack[LossOptions],
    ) -> LoopedOutput:
        """Predict the next token of every position.

        Args:
            input_ids: See `LoopedModel.begin`.
            attention_mask: See `LoopedModel.begin`.
            position_ids: See `LoopedModel.begin`.
            past_key_values: See `LoopedModel.begin`.
            inputs_embeds: See `LoopedModel.begin`.
            labels: The input ids themselves, negative where nothing is to be predicted, (B, T).
            use_cache: See `LoopedModel.begin`. With a cache of the policy `all` all loops run, for later tokens.
            output_hidden_states: Whether to return the states after every loop.
            logits_to_keep: Number of last positions whose predictions are returned, or their indices; 0: all.
            num_loops: See `LoopedModel.begin`.
            initial_state: See `LoopedModel.begin`.
            exit_rule: Rule that says which loop's prediction a token gets; None: the configuration's, in training the
                last loop.
            run_all_steps: Whether all loops run and are read; None: if the loss needs them.
            generator: Random generator for rules that draw.
            num_targets: Counts that normalise the loss parts instead of those of this batch; see `combine_terms`.
            documents: See `LoopedModel.begin`. Labels at the first token of a document must be negative.
            cache_policy: Policy of the cache, see `adadepth.models.looped.cache`; None: that of `past_key_values`,
                else the configuration's.
            options: See `LossOptions`.

        Raises:
            ConfigError: If there is no such policy, or the cache has another one.
        """
        refuse_unknown(options, type(self).__name__)
        targets = options.get("shift_labels")
        if targets is None and labels is not None:
            targets = causal_targets(labels)
        call = LoopOptions(num_loops, initial_state, output_hidden_states, exit_rule, run_all_steps, generator)
        resolved = self._resolve_loops(num_loops, targets)
        loops = self.config.loops(resolved)
        rule = self.rule(exit_rule, loops, self.config.vocab_size)
        all_loops = self._reads_all_loops(run_all_steps, targets, rule, loops)
        past_key_values = self._resolve_cache(past_key_values, use_cache, cache_policy, loops)
        run = self.model.begin(
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache, resolved, initial_state,
            documents,
        )  # fmt: skip
        shape = run.embedded.shape[:2]
        real = _find_real_tokens(attention_mask, shape, run.embedded.device)
        units = (None, self.lm_head, real.flatten())
        results, rule = self._run_loops(run, rule, call, all_loops, units, input_ids, targets)
        exits, halting = results.exit_steps.view(shape), results.halting_logits
        if run.counts is not None:
            exits = exits.minimum(run.counts.unsqueeze(1))
        output = LoopedOutput(
            past_key_values=run.cache,
            hidden_states=results.states,
            halting_logits=None if halting is None else halting.view(*shape, -1),
            state_moves=self._show_moves(results, all_loops, shape),
            exit_steps=exits,
            trace=self._trace(exits, real, run),
        )
        if all_loops and results.all_loops is not None:
            states = torch.stack(results.all_loops, dim=1).view(*shape, len(results.all_loops), -1)
            output.step_logits = StepLogits(states, self.lm_head, self.config.vocab_size)
        if targets is not None:
            terms = self._compute_losses(results, rule, targets.flatten(), output)
            if (items := options.get("num_items_in_batch")) is not None:
                num_targets = dict.fromkeys(terms, torch.as_tensor(items, device=targets.device))
            output.loss, output.loss_parts = combine_terms(terms, num_targets)
        if targets is None or not self.training:
            output.logits = self._read_logits(results, rule, shape, logits_to_keep)
        return output

    def _compute_losses(
        self, results: LoopResults, rule: ExitRule, targets: Tensor, output: LoopedOutput
    ) -> dict[str, LossTerm]:
        """Return the parts of the loss, and set the losses of single tokens in the output."""
        counted = (targets >= 0).nonzero().squeeze(1)
        targets = targets[counted]
        readings = results.all_loops or [results.at_exit]
        readings = readings[-1:] if self.training and self.config.objective == "last" else readings
        readings = [states[counted] for states in readings]
        halting = None if results.halting_logits is None else results.halting_logits[counted]
        losses = loop_losses(readings, targets, self.lm_head, self.config.vocab_size)
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
        """Return the logits at each token's exit, (B, kept, V); a rule that mixes reads all loops."""
        columns = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
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
        """Multiply-accumulates of the head."""
        return float(self.config.hidden_size * self.config.vocab_size)

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Count the tokens with a token to predict, for every part of the loss."""
        count = (causal_targets(batch["labels"]) >= 0).sum()
        return dict.fromkeys(("task", "entropy", "gate"), count)

    def _resolve_cache(
        self, cache: Cache | None, use_cache: bool | None, policy: str | None, loops: int
    ) -> Cache | None:
        """Return the cache of a call, of the policy that it names."""
        if policy is None:
            return cache
        if use_cache is False:
            raise ConfigError(f"cache_policy={policy}: needs a call with a cache, but use_cache=False")
        if cache is None:
            return make_cache(self.config, policy, loops)
        has = str(cache.policy) if isinstance(cache, LoopedCache) else "all"
        if str(parse_policy(policy)) != has:
            raise ConfigError(f"cache_policy={policy}: past_key_values is a {type(cache).__name__} of policy {has}")
        return cache

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any) -> None:
        """Create the cache of `generate` by the policy and loops of the call, unless the call passes or names one."""
        policy = model_kwargs.get("cache_policy") or self.config.cache_policy
        kind = generation_config.cache_implementation
        has_cache = model_kwargs.get("past_key_values") is not None
        if has_cache or generation_config.use_cache is False or kind not in (None, "dynamic"):
            if parse_policy(policy).name != "all" and kind not in (None, "dynamic"):
                raise ConfigError(
                    f"cache_policy={policy}: has its own cache and does not support cache_implementation={kind}"
                )
            super()._prepare_cache_for_generation(generation_config, model_kwargs, *args)  # type: ignore[misc]
            return
        loops = self.config.loops(model_kwargs.get("num_loops"))
        model_kwargs["past_key_values"] = make_cache(self.config, policy, loops)


class _Classifier(LoopedTaskModel):
    """A linear head on units of a text, read after every loop: the base class of classifiers."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        self.score = nn.Linear(config.hidden_size, count_head_classes(config), bias=False)
        self.post_init()

    @property
    def level_rule(self) -> str:
        """The default rule for a budget; values, and labels that exclude no others, have no margin."""
        has_margin = count_head_classes(self.config) > 1 and takes_one_class(self.config)
        return super().level_rule if has_margin or self.config.gate else "distance:0.5"

    @property
    def readout_work(self) -> float:
        """Multiply-accumulates of the head."""
        return float(self.config.hidden_size * count_head_classes(self.config))

    def _read(
        self, inputs: Sequence[Any], slots: Tensor, call: LoopOptions, labels: Tensor | None
    ) -> tuple[Looping, LoopedOutput]:
        """Loop over the inputs, and predict at the K slots: logits are (K, C)."""
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
        results, rule = self._run_loops(run, rule, call, all_loops, units, inputs[0], labels)
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
    ) -> LoopedOutput:
        """Predict; the arguments are those of `LoopedForCausalLM.forward`.

        Labels of texts follow `infer_problem_type`, those of tokens are classes (B, T), negative where there is none.
        """
        real = _find_real_inputs(input_ids, attention_mask, inputs_embeds)
        slots = self._find_slots(real)
        inputs = (input_ids, attention_mask, position_ids, None, inputs_embeds)
        call = LoopOptions(num_loops, initial_state, output_hidden_states, exit_rule, run_all_steps, generator)
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
        """Return b T + t of the K units, int64 (K,), from which tokens are no padding, (B, T)."""
        raise NotImplementedError

    def _compute_losses(self, readings: Tensor, labels: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return losses (K, n) of the logits (K, n, C), and the weights of the units, (K,)."""
        raise NotImplementedError

    def _complete(self, output: LoopedOutput, run: Looping, real: Tensor, slots: Tensor) -> None:
        """Set what depends on the kind of unit in an output."""
        raise NotImplementedError


class LoopedForSequenceClassification(_Classifier):
    """A classifier or regressor of texts, read at their last token; the unit of depth is the text."""

    depth_unit: DepthUnit = "sequence"

    def _find_slots(self, real: Tensor) -> Tensor:
        rows, length = real.shape
        last = length - 1 - real.flip(1).long().argmax(dim=1)
        return torch.arange(rows, device=real.device) * length + last

    def _compute_losses(self, readings: Tensor, labels: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        losses, _ = step_losses(self.config, readings, labels)
        has_classes = infer_problem_type(self.config, labels) == CLASSES
        return losses, target_weights(self.config, labels) if has_classes else torch.ones_like(losses[:, 0])

    def _complete(self, output: LoopedOutput, run: Looping, real: Tensor, slots: Tensor) -> None:
        valid = torch.ones_like(slots, dtype=torch.bool)
        output.trace = self._trace(_unwrap(output.exit_steps), valid, run, real.sum(dim=1))

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Count the texts with a label, for every part of the loss."""
        return dict.fromkeys(("task", "entropy", "gate"), count_sequences(self.config, batch["labels"]))

    def count_units(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Count the texts of a batch."""
        return torch.full((), len(batch["attention_mask"]), device=batch["attention_mask"].device)


class LoopedForTokenClassification(_Classifier):
    """A classifier of tokens, each of which sees those before it."""

    def _find_slots(self, real: Tensor) -> Tensor:
        return real.flatten().nonzero().squeeze(1)

    def _compute_losses(self, readings: Tensor, labels: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        targets = labels.flatten()[slots]
        losses, _ = class_losses(readings, targets)
        return losses, target_weights(self.config, targets)

    def _complete(self, output: LoopedOutput, run: Looping, real: Tensor, slots: Tensor) -> None:
        exits = torch.zeros_like(real, dtype=torch.int64).view(-1).index_copy(0, slots, _unwrap(output.exit_steps))
        output.unit_slots, output.trace = slots, self._trace(exits.view_as(real), real, run)
        logits = _unwrap(output.logits)
        table = logits.new_zeros((real.numel(), logits.shape[-1]))
        output.logits = table.index_copy(0, slots, logits).view(*real.shape, -1)

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Count the tokens with a label, for every part of the loss."""
        return dict.fromkeys(("task", "entropy", "gate"), target_weights(self.config, batch["labels"]).sum())


def _find_real_inputs(input_ids: Tensor | None, mask: Any, inputs_embeds: Tensor | None) -> Tensor:
    """Return which tokens of ids (B, T) or embeddings (B, T, D) are no padding, boolean (B, T)."""
    inputs = input_ids if inputs_embeds is None else inputs_embeds
    if inputs is None:
        raise DataError("input_ids, inputs_embeds: give exactly one of them")
    return _find_real_tokens(mask, inputs.shape[:2], inputs.device)


def _find_real_tokens(mask: Any, shape: Sequence[int], device: torch.device) -> Tensor:
    """Return which new tokens are no padding, boolean (B, T)."""
    if isinstance(mask, Tensor) and mask.dim() == 2:
        return mask[:, -shape[1] :].bool()
    return torch.ones(*shape, dtype=torch.bool, device=device)


def _unwrap(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor
