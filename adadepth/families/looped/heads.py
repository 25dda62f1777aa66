"""Looped models with heads: language models, classifiers of texts and of tokens.

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
from adadepth.families.looped.cache import LoopedCache, made_cache
from adadepth.families.looped.configuration import LoopedConfig
from adadepth.families.looped.exits import ROWS, LoopReading, Loops, run_loops
from adadepth.families.looped.memory import kept_numbers
from adadepth.families.looped.modeling import LoopedModel, LoopedPreTrainedModel, Looping
from adadepth.families.looped.objectives import (
    causal_targets,
    drawn_loops,
    loop_losses,
    loops_at,
    mixed_losses,
    objective_terms,
    text_uniforms,
)
from adadepth.families.looped.policies import parse_policy
from adadepth.families.shared.generation import CheckedGeneration
from adadepth.families.shared.layers import Product
from adadepth.families.shared.losses import (
    CLASSES,
    LossOptions,
    LossTerm,
    class_losses,
    combine_terms,
    count_sequences,
    label_count,
    problem_type_of,
    refuse_unknown,
    step_losses,
    takes_one_class,
    target_weights,
)
from adadepth.families.shared.steps import ExitRuleKnob
from adadepth.halting.exit_rules import (
    HALTING_SIGNAL,
    LOGITS,
    STATES,
    ExitRule,
    Fixed,
    check_rule,
    parse_rule,
    predictions_at,
)
from adadepth.halting.trace import ComputedSteps, DepthTrace, DepthUnit, Execution, Work


class StepLogits:
    """The predictions of every loop, (B, T, N, V), of which only those that are asked for are made.

    `logits[rows, tokens, loops]` takes what a tensor takes there and gives float32 (..., V); `logits[...]` all of them.
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
        logits: At each unit's exit: (B, T, V) of a language model, (B, C) of sequences, (B, T, C) of tokens, 0 where a
            token is padding. A language model in training with labels leaves them out.
        past_key_values: The cache of a language model.
        hidden_states: s_0 and the states after every loop that ran, (B, T, D) each, on request.
        step_logits: Where all loops ran, those of each: `StepLogits` (B, T, N, V) of a language model, else (K, N, C).
        halting_logits: z_n of the loops that ran, float32: (B, T, n) of a language model, else (K, n).
        state_moves: How every loop moved the states, see `adadepth.halting.exit_rules.state_moves`, float32: (B, T, n,
            2) of a language model, else (K, n, 2); where all loops ran and were read, outside training.
        exit_steps: First is 1, int64: (B, T) of a language model, 0 at padding; else (K,).
        unit_slots: Of a tagger, b T + t of its K units.
        trace: The loops of every unit.
        token_losses: Of a language model, the cross-entropy of the P tokens with a label in nats, detached, (P,).
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


class LoopedTaskModel(ExitRuleKnob, LoopedPreTrainedModel):
    """What all heads share: rules, the loss of the loops, work."""

    accepts_loss_kwargs = False

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        self.model = LoopedModel(config)
        self._step: int | None = None
        self._steps = 1

    @property
    def exit_signals(self) -> frozenset[str]:
        """What rules can read."""
        return frozenset({LOGITS, STATES, HALTING_SIGNAL} if self.config.gate else {LOGITS, STATES})

    @property
    def level_rule(self) -> str:
        """The halting unit's, where there is one."""
        return "quantile" if self.config.gate else "margin:0.5"

    def rule(self, given: str | ExitRule | None, loops: int, classes: int, *, one_class: bool = True) -> ExitRule:
        """The rule of a call; where it names none, the configuration's, and in training none: all loops.

        Raises:
            ConfigError: If there is no such rule, or it needs more than the model has.
        """
        named = given if given is not None or self.training else self.config.exit_rule
        rule = Fixed(loops) if named is None else parse_rule(named) if isinstance(named, str) else named
        check_rule(rule, self.exit_signals, classes, loops, self.config.model_type, one_class=one_class)
        return rule

    def set_step(self, step: int, total: int) -> None:
        """Tell it that `step` updates were made: drawn loops follow from that, texts and seed, grown ones from both."""
        self._step, self._steps = step, total

    def _is_frozen(self, labels: Tensor | None) -> bool:
        """Whether the halting unit alone learns."""
        return labels is not None and self.config.objective == "gate_alone"

    def _asked_loops(self, asked: int | None, labels: Tensor | None) -> int | None:
        """N of a call that names none: in training what `loop_curriculum` has grown to, else the configuration's."""
        config = self.config
        if asked is not None or labels is None or not self.training or self._step is None:
            return asked
        if config.loop_curriculum == "none":
            return None
        return loops_at(config.num_loops, config.loop_curriculum, config.curriculum_share, self._step, self._steps)

    def _draw(self, run: Looping, input_ids: Tensor | None, labels: Tensor | None, asked: int | None) -> None:
        """Give every text a number of loops of its own, in training where the configuration says so."""
        if not self.training or labels is None or asked is not None or self.config.train_loops == "fixed":
            return
        if self.config.objective != "last":
            raise ConfigError(f"train_loops=drawn: has objective=last, not {self.config.objective}")
        rows, spread, mean = len(run.embedded), self.config.loop_spread, run.loops
        if input_ids is None or self._step is None:
            uniform = torch.rand(rows, 2, dtype=torch.float64).to(run.state.device)
        else:
            uniform = text_uniforms(input_ids, self.config.draw_seed, self._step)
        run.counts = drawn_loops(uniform, mean, spread)
        run.loops = int(run.counts.max())

    def _every(self, asked: bool | None, labels: Tensor | None, rule: ExitRule, loops: int) -> bool:
        """Whether all loops are run and read: where a call says so, or a loss needs them."""
        alone = self.config.objective == "last" and isinstance(rule, Fixed) and rule.k == loops
        needed = labels is not None and not alone
        if asked is False and needed:
            raise ValueError(f"run_all_steps=False with labels: objective={self.config.objective} needs every loop")
        return needed if asked is None else asked

    def least_activations(self, lengths: Sequence[int], recomputed: bool) -> dict[str, int]:
        """What layers keep of the loops that have gradients; not the logits, which are made a part at a time."""
        return kept_numbers(self.config, lengths, recomputed)

    def count_units(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Real tokens."""
        return batch["attention_mask"].sum()

    def _trace(self, exits: Tensor, real: Tensor, run: Looping, tokens: Tensor | None = None) -> DepthTrace:
        width, before = run.embedded.shape[1], 0 if run.cache is None else run.cache.get_seq_length()
        computed = ComputedSteps.of(run.computed) if run.computed else None
        execution = Execution(run.done, tokens, width, computed=computed, memory_length=max(before - width, 0))
        unit: DepthUnit = "token" if exits.dim() == 2 else "sequence"
        return DepthTrace(unit, exits.float(), real, run.loops, execution=execution)

    def price(self, trace: DepthTrace) -> Work:
        """Multiply-accumulates of a traced batch without what is read of it, see `reading_work`.

        A layer costs a token 2 D (h + h_kv) d_h + 3 D F, and a pair of query and key 2 h d_h. A token that has exited
        costs what it would take to stop it there: `executed` counts it until the loops end, or where a cache's policy
        stops it, what was computed, keys and values of frozen states included.
        """
        config, ran, updates = self.config, trace.executed, trace.updates.double()
        by_token = updates.dim() == 2
        lengths = (trace.valid.sum(dim=1) if ran.tokens is None else ran.tokens).double()
        width = ran.width if ran.width is not None else updates.shape[1] if by_token else lengths.max()
        token, pair = layer_work(config)

        def each(length: Tensor) -> Tensor:  # of a token in a layer; it sees half of the others, and what was before
            return token + pair * ((length + 1) / 2 + ran.memory_length)

        width = torch.as_tensor(width, dtype=torch.float64, device=updates.device)
        everything = len(updates) * width * each(width)
        executed = everything * (config.prelude + config.core * ran.steps)
        if ran.computed is not None:
            queries, keys, pairs = (each.sum().to(everything) for each in ran.computed)
            said = 2.0 * config.hidden_size * config.key_value_heads * config.width_of_head
            executed = everything * config.prelude + config.core * (
                queries * (token - said) + keys * said + pairs * pair
            )
        units = trace.valid.double()
        if by_token:
            units, updates = units.sum(dim=1), updates.sum(dim=1)
        else:
            units, updates = units * lengths, updates * lengths
        return Work(
            executed=executed,
            dense=everything * (config.prelude + config.core * trace.updates.max().double()),
            adaptive=(each(lengths) * (config.prelude * units + config.core * updates)).sum(),
            full=(each(lengths) * units * (config.prelude + config.core * trace.max_updates)).sum(),
        )

    def reading_work(self, signal: str, lengths: Tensor) -> Tensor | float:
        """Of a prediction coda and head; of a text the coda runs over all its tokens. See `DepthModel.reading_work`.

        Of states D for each of three lengths: of the state, of its last update, and of how that changed.
        """
        if signal != LOGITS:
            return self.config.hidden_size * (3.0 if signal == STATES else 1.0)
        token, pair = layer_work(self.config)
        tokens = lengths.double() if self.depth_unit == "sequence" else 1.0
        return self.config.coda * tokens * (token + pair * (lengths.double() + 1) / 2) + self.readout_work


def layer_work(config: LoopedConfig) -> tuple[float, float]:
    """Multiply-accumulates of a layer: of a token, and of a pair of query and key."""
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
            input_ids: See `LoopedModel.begin`, as for the next four.
            attention_mask: See there.
            position_ids: See there.
            past_key_values: See there.
            inputs_embeds: See there.
            labels: The input ids themselves, negative where nothing is to be predicted, (B, T).
            use_cache: See there. With a cache of the policy `all` all loops run, for tokens that are still to come.
            output_hidden_states: Whether the states after every loop are wanted.
            logits_to_keep: Of how many last positions predictions are returned, or of which; 0: of all.
            num_loops: See there.
            initial_state: See there.
            exit_rule: Which loop's prediction a token gets; None: the configuration's, and in training the last one's.
            run_all_steps: Whether all loops run and are read; None: where the loss needs them.
            generator: For rules that draw.
            num_targets: Counts that normalise the loss parts instead of this batch's own; see `combine_terms`.
            documents: See `LoopedModel.begin`. Labels at the first token of a document are to be negative.
            cache_policy: Of the cache, see `adadepth.families.looped.cache`; None: of the one that is given, else the
                configuration's.
            options: See `LossOptions`.

        Raises:
            ConfigError: If a policy is named that there is not, or that the cache does not have.
        """
        refuse_unknown(options, type(self).__name__)
        targets = options.get("shift_labels")
        if targets is None and labels is not None:
            targets = causal_targets(labels)
        grown = self._asked_loops(num_loops, targets)
        loops = self.config.loops(grown)
        rule = self.rule(exit_rule, loops, self.config.vocab_size)
        every = self._every(run_all_steps, targets, rule, loops)
        past_key_values = self._cache(past_key_values, use_cache, cache_policy, loops)
        run = self.model.begin(
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache, grown, initial_state,
            documents,
        )  # fmt: skip
        self._draw(run, input_ids, targets, num_loops)
        rule = Fixed(run.loops) if run.counts is not None else rule
        shape = run.embedded.shape[:2]
        real = _real(attention_mask, shape, run.embedded.device)
        wanted = bool(self.config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        frozen = self._is_frozen(targets)
        moves = every and not self.training
        reading = LoopReading(None, self.lm_head, rule, real.flatten(), every, wanted, moves, generator, frozen)
        found = run_loops(self.model, run, reading)
        exits, halting = found.exit_steps.view(shape), found.halting_logits
        if run.counts is not None:
            exits = exits.minimum(run.counts.unsqueeze(1))
        output = LoopedOutput(
            past_key_values=run.cache,
            hidden_states=found.states,
            halting_logits=None if halting is None else halting.view(*shape, -1),
            state_moves=found.moves.view(*shape, -1, 2) if moves and found.moves is not None else None,
            exit_steps=exits,
            trace=self._trace(exits, real, run),
        )
        if every and found.every is not None:
            states = torch.stack(found.every, dim=1).view(*shape, len(found.every), -1)
            output.step_logits = StepLogits(states, self.lm_head, self.config.vocab_size)
        if targets is not None:
            terms = self._losses(found, rule, targets.flatten(), output)
            if (items := options.get("num_items_in_batch")) is not None:
                num_targets = dict.fromkeys(terms, torch.as_tensor(items, device=targets.device))
            output.loss, output.loss_parts = combine_terms(terms, num_targets)
        if targets is None or not self.training:
            output.logits = self._logits(found, rule, shape, logits_to_keep)
        return output

    def _losses(self, found: Loops, rule: ExitRule, targets: Tensor, output: LoopedOutput) -> dict[str, LossTerm]:
        """The parts of the loss; the output gets those of single tokens."""
        counted = (targets >= 0).nonzero().squeeze(1)
        wanted = targets[counted]
        read = found.every or [found.chosen]
        read = read[-1:] if self.training and self.config.objective == "last" else read
        read = [states[counted] for states in read]
        halting = None if found.halting_logits is None else found.halting_logits[counted]
        losses = loop_losses(read, wanted, self.lm_head, self.config.vocab_size)
        output.step_losses = losses.detach()
        if rule.mixes and found.every is not None:
            output.token_losses = mixed_losses(rule, read, _known(halting), wanted, self.lm_head)
        else:
            last = torch.full_like(wanted, losses.shape[1])
            exits = last if found.every is None else found.exit_steps[counted].minimum(last)
            output.token_losses = output.step_losses.gather(1, exits.unsqueeze(1) - 1).squeeze(1)
        return objective_terms(self.config, losses, halting, torch.ones_like(losses[:, 0]))

    def _logits(self, found: Loops, rule: ExitRule, shape: torch.Size, kept: int | Tensor) -> Tensor:
        """At each token's exit, (B, kept, V); of a rule that mixes, of all its loops."""
        where = slice(-kept, None) if isinstance(kept, int) else kept
        if not rule.mixes:
            logits: Tensor = self.lm_head(found.chosen.view(*shape, -1)[:, where])
            return logits
        assert found.every is not None
        assert found.halting_logits is not None
        read = torch.stack(found.every, dim=1).view(*shape, len(found.every), -1)[:, where]
        halting = found.halting_logits.view(*shape, -1)[:, where]
        exits = found.exit_steps.view(shape)[:, where]
        parts = (part.split(ROWS) for part in (read.flatten(0, 1), halting.flatten(0, 1), exits.flatten()))
        mixed = [predictions_at(rule, self.lm_head(states), z, steps) for states, z, steps in zip(*parts, strict=True)]
        return torch.cat(mixed).view(*read.shape[:2], -1)

    @property
    def readout_work(self) -> float:
        """Multiply-accumulates of the head."""
        return float(self.config.hidden_size * self.config.vocab_size)

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tokens with a token to predict, for every part of the loss."""
        count = (causal_targets(batch["labels"]) >= 0).sum()
        return dict.fromkeys(("task", "entropy", "gate"), count)

    def _cache(self, given: Cache | None, use: bool | None, policy: str | None, loops: int) -> Cache | None:
        """The cache of a call, of the policy that it names."""
        if policy is None:
            return given
        if use is False:
            raise ConfigError(f"cache_policy={policy}: is of calls with a cache, this one has use_cache=False")
        if given is None:
            return made_cache(self.config, policy, loops)
        has = str(given.policy) if isinstance(given, LoopedCache) else "all"
        if str(parse_policy(policy)) != has:
            raise ConfigError(f"cache_policy={policy}: past_key_values is a {type(given).__name__} of policy {has}")
        return given

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any) -> None:
        """Give `generate` a cache of the policy that grows with the loops of a call, unless it is told which one."""
        policy = model_kwargs.get("cache_policy") or self.config.cache_policy
        kind = generation_config.cache_implementation
        given = model_kwargs.get("past_key_values") is not None
        if given or generation_config.use_cache is False or kind not in (None, "dynamic"):
            if parse_policy(policy).name != "all" and kind not in (None, "dynamic"):
                raise ConfigError(f"cache_policy={policy}: has a cache of its own, not cache_implementation={kind}")
            super()._prepare_cache_for_generation(generation_config, model_kwargs, *args)  # type: ignore[misc]
            return
        loops = self.config.loops(model_kwargs.get("num_loops"))
        model_kwargs["past_key_values"] = made_cache(self.config, policy, loops)


class Asked(NamedTuple):
    """What a call asks of the loops, by the arguments of its forward pass; None: what the configuration says."""

    num_loops: int | None
    initial_state: Tensor | None
    output_hidden_states: bool | None
    exit_rule: str | ExitRule | None
    run_all_steps: bool | None
    generator: torch.Generator | None


class _Classifier(LoopedTaskModel):
    """A linear head on units of a text, read after every loop."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        self.score = nn.Linear(config.hidden_size, label_count(config), bias=False)
        self.post_init()

    @property
    def level_rule(self) -> str:
        """Values, and labels that exclude no others, have no margin."""
        has_margin = label_count(self.config) > 1 and takes_one_class(self.config)
        return super().level_rule if has_margin or self.config.gate else "distance:0.5"

    @property
    def readout_work(self) -> float:
        """Multiply-accumulates of the head."""
        return float(self.config.hidden_size * label_count(self.config))

    def _read(
        self, inputs: Sequence[Any], slots: Tensor, asked: Asked, labels: Tensor | None
    ) -> tuple[Looping, LoopedOutput]:
        """Loop over the inputs, and predict at the K slots: logits are (K, C)."""
        loops = self._asked_loops(asked.num_loops, labels)
        run = self.model.begin(*inputs, num_loops=loops, initial_state=asked.initial_state)
        rule = self.rule(asked.exit_rule, run.loops, label_count(self.config), one_class=takes_one_class(self.config))
        all_steps = asked.run_all_steps
        if all_steps is None and labels is not None and not self.training:
            all_steps = True  # evaluations record the predictions of every loop
        every = self._every(all_steps, labels, rule, run.loops)
        self._draw(run, inputs[0], labels, asked.num_loops)
        rule = Fixed(run.loops) if run.counts is not None else rule
        real = torch.ones_like(slots, dtype=torch.bool)
        states = asked.output_hidden_states
        wanted = bool(self.config.output_hidden_states if states is None else states)
        moves = every and not self.training
        frozen = self._is_frozen(labels)
        reading = LoopReading(slots, self.score, rule, real, every, wanted, moves, asked.generator, frozen)
        found = run_loops(self.model, run, reading)
        exits = found.exit_steps
        if run.counts is not None:
            exits = exits.minimum(run.counts[slots // run.embedded.shape[1]])
        output = LoopedOutput(
            hidden_states=found.states,
            halting_logits=found.halting_logits,
            state_moves=found.moves if moves else None,
            exit_steps=exits,
        )
        steps = None if found.every is None else self.score(torch.stack(found.every, dim=1)).float()
        output.step_logits = steps if every else None
        if rule.mixes:
            assert steps is not None
            output.logits = predictions_at(rule, steps, found.halting_logits, found.exit_steps)
        else:
            output.logits = self.score(found.chosen).float()
        return run, output

    def _add_loss(
        self, output: LoopedOutput, losses: Tensor, weights: Tensor, num_targets: Mapping[str, Tensor] | None
    ) -> None:
        """The loss of (K, n) losses of the loops; one column where the last loop alone was read."""
        terms = objective_terms(self.config, losses, output.halting_logits, weights)
        output.loss, output.loss_parts = combine_terms(terms, num_targets)


class LoopedForSequenceClassification(_Classifier):
    """Classes, or a value, of a text, read at its last token; the unit of depth is the text."""

    depth_unit: DepthUnit = "sequence"

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
        """Predict; labels as `problem_type_of` tells, the other arguments as in `LoopedForCausalLM.forward`."""
        given = input_ids if inputs_embeds is None else inputs_embeds
        if given is None:
            raise DataError("input_ids, inputs_embeds: give exactly one of them")
        rows, length = given.shape[:2]
        real = _real(attention_mask, given.shape[:2], given.device)
        last = length - 1 - real.flip(1).long().argmax(dim=1)
        slots = torch.arange(rows, device=given.device) * length + last
        inputs = (input_ids, attention_mask, position_ids, None, inputs_embeds)
        asked = Asked(num_loops, initial_state, output_hidden_states, exit_rule, run_all_steps, generator)
        run, output = self._read(inputs, slots, asked, labels)
        output.trace = self._trace(
            _known(output.exit_steps), torch.ones_like(slots, dtype=torch.bool), run, real.sum(dim=1)
        )
        if labels is not None:
            read = output.step_logits if output.step_logits is not None else _known(output.logits).unsqueeze(1)
            losses, _ = step_losses(self.config, read, labels)
            ones = torch.ones_like(losses[:, 0])
            weights = target_weights(self.config, labels) if problem_type_of(self.config, labels) == CLASSES else ones
            self._add_loss(output, losses, weights, num_targets)
        return output

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Texts with a label, for every part of the loss."""
        return dict.fromkeys(("task", "entropy", "gate"), count_sequences(self.config, batch["labels"]))

    def count_units(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Texts."""
        return torch.full((), len(batch["attention_mask"]), device=batch["attention_mask"].device)


class LoopedForTokenClassification(_Classifier):
    """Classes of the tokens of a text, each of which sees those before it."""

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
        """Predict; labels (B, T), negative where there is none; all else as in `LoopedForCausalLM.forward`."""
        given = input_ids if inputs_embeds is None else inputs_embeds
        if given is None:
            raise DataError("input_ids, inputs_embeds: give exactly one of them")
        real = _real(attention_mask, given.shape[:2], given.device)
        slots = real.flatten().nonzero().squeeze(1)
        inputs = (input_ids, attention_mask, position_ids, None, inputs_embeds)
        asked = Asked(num_loops, initial_state, output_hidden_states, exit_rule, run_all_steps, generator)
        run, output = self._read(inputs, slots, asked, labels)
        exits = torch.zeros_like(real, dtype=torch.int64).view(-1).index_copy(0, slots, _known(output.exit_steps))
        output.unit_slots, output.trace = slots, self._trace(exits.view_as(real), real, run)
        assert output.logits is not None
        if labels is not None:
            wanted = labels.flatten()[slots]
            read = output.step_logits if output.step_logits is not None else _known(output.logits).unsqueeze(1)
            losses, _ = class_losses(read, wanted)
            self._add_loss(output, losses, target_weights(self.config, wanted), num_targets)
        table = output.logits.new_zeros((real.numel(), output.logits.shape[-1]))
        output.logits = table.index_copy(0, slots, output.logits).view(*real.shape, -1)
        return output

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tokens with a label, for every part of the loss."""
        return dict.fromkeys(("task", "entropy", "gate"), target_weights(self.config, batch["labels"]).sum())


def _real(mask: Any, shape: Sequence[int], device: torch.device) -> Tensor:
    """Which new tokens are no padding, boolean (B, T)."""
    if isinstance(mask, Tensor) and mask.dim() == 2:
        return mask[:, -shape[1] :].bool()
    return torch.ones(*shape, dtype=torch.bool, device=device)


def _known(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor
