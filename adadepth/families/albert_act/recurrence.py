"""The configuration of ACT-ALBERT, its readouts after every iteration, and the recurrence over all positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from adadepth.errors import ConfigError
from adadepth.families.albert_act.family import AlbertActSettings
from adadepth.families.shared.albert.block import AlbertLayer, HaltingProjection, may_wait
from adadepth.families.shared.albert.configuration import AlbertShape
from adadepth.families.shared.layers import Product
from adadepth.families.shared.losses import CLASSES, LossTerm, target_weights, unit_losses
from adadepth.halting.act import (
    ActState,
    CapRemainderLike,
    StateRuleLike,
    act_step,
    init_act,
    update_result,
    update_stream,
)
from adadepth.halting.active_set import ActiveSet, take
from adadepth.halting.rules import halting_rule
from adadepth.halting.trace import ComputedSteps, DepthTrace

# State rules under which a halted token's state stays as it is.
FREEZING_RULES = ("single", "graves")


@strict
class AlbertActConfig(AlbertShape, settings=AlbertActSettings):
    """ALBERT whose tokens choose how often the shared layer updates them (Simoulin & Crabbé 2021).

    Field names are those of the published checkpoints (`asi/albert-act-{tiny,small,base}`); the halting switches
    default to the published behaviour, so that a published configuration, which has none of them, means what it did.
    """

    # What stock trainers cannot gather, or nobody asked for: they keep the logits.
    keys_to_ignore_at_inference = [
        "trace", "loss_parts", "ponder_cost", "token_losses", "readout_states",
        "unit_slots", "step_logits", "halting_logits", "exit_steps",
    ]  # fmt: skip

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        if self.fixed_depth is not None and not 1 <= self.fixed_depth <= self.num_hidden_layers:
            raise ConfigError(
                f"fixed_depth={self.fixed_depth} must lie between 1 and num_hidden_layers={self.num_hidden_layers}"
            )
        refuse_ragged(self)


def refuse_ragged(config: AlbertActConfig) -> None:
    """Refuse a ragged execution where it would give other results.

    Raises:
        ConfigError: Naming the state rules that freeze a halted token.
    """
    if config.execution == "ragged" and config.state_rule not in FREEZING_RULES:
        raise ConfigError(
            f"execution='ragged' needs state_rule {' or '.join(FREEZING_RULES)}: the halted states of "
            f"{config.state_rule!r} keep moving"
        )


Read = Callable[[Tensor], Tensor]


class ReadoutStates:
    """Collects the states of some tokens after every iteration; nothing of the others is kept.

    Args:
        slots: b T + t of each wanted token, int64, each once, (K,).
        state: x_0, (B, T, H).
    """

    def __init__(self, slots: Tensor, state: Tensor) -> None:
        self.slots = slots
        self._latest = take(state.flatten(0, 1), slots)
        self._steps: list[Tensor] = []

    def add(self, state: Tensor) -> None:
        """Keep the states after an iteration of all tokens, (B, T, H)."""
        self._latest = take(state.flatten(0, 1), self.slots)
        self._steps.append(self._latest)

    def add_packed(self, active: ActiveSet, state: Tensor) -> None:
        """Keep the states after an iteration of packed tokens, (P, H); those left behind stay what they were."""
        places = active.ranks.index_select(0, self.slots)
        present = (places >= 0).nonzero().squeeze(1)
        rows = take(state, places.index_select(0, present))
        self._latest = self._latest.to(state.dtype).index_copy(0, present, rows)
        self._steps.append(self._latest)

    def stack(self) -> Tensor:
        """All of them, (K, N, H)."""
        return torch.stack(self._steps, dim=1)


class TargetUnits(NamedTuple):
    """The K units that have a target, and where each is read.

    Attributes:
        slots: b T + t of the tokens that are read, (K,), or (K sequences,) where a unit is several sequences.
        labels: Of the units, (K,), or (K, C) where classes do not exclude each other; none is ignored.
        kind: Of the task, as `adadepth.families.shared.losses.problem_type_of` names it.
        sequences: Of how many sequences a unit consists; it runs until the last of them has halted. None: it is read at
            one token.
    """

    slots: Tensor
    labels: Tensor
    kind: str = CLASSES
    sequences: int | None = None


def labelled_tokens(labels: Tensor) -> TargetUnits:
    """Tokens with a class, of labels (B, T), row by row; waits for the device."""
    slots = (labels >= 0).flatten().nonzero().squeeze(1)
    return TargetUnits(slots, labels.flatten()[slots])


def readout_term(config: AlbertActConfig, outputs: Any, units: TargetUnits, read: Read) -> LossTerm:
    """The loss part `readouts`, a sum over units, and what these count; the head reads only what a unit ran.

    Args:
        config: With the part's weight.
        outputs: Of the base model, with `readout_states` of the units' slots.
        units: What is read.
        read: The task's head, (R, H), or (R, sequences, H), to (R, C).
    """
    states = outputs.readout_states
    ran = ran_steps(outputs.trace, units.slots, states.shape[1])
    if units.sequences is not None:
        states = states.unflatten(0, (-1, units.sequences)).transpose(1, 2)
        ran = ran.unflatten(0, (-1, units.sequences)).any(dim=1)
    unit, step = ran.nonzero().unbind(dim=1)  # waits for the device
    losses = unit_losses(units.kind, read(states[unit, step]), units.labels[unit])
    counted = units.labels.new_ones(len(units.labels), dtype=torch.bool)
    if units.kind == CLASSES:
        counted = target_weights(config, units.labels)
    return LossTerm((counted[unit] * losses / ran.sum(dim=1)[unit]).sum(), counted.sum(), config.readout_weight)


def ran_steps(trace: DepthTrace, slots: Tensor, steps: int) -> Tensor:
    """Which of the first iterations a token ran, boolean, (K, N)."""
    updates = trace.updates.flatten()[slots]
    return torch.arange(1, steps + 1, device=slots.device) <= updates.unsqueeze(1)


def refuse_readouts(config: AlbertActConfig, head: str) -> None:
    """Refuse a weight where a head has no readouts.

    Raises:
        ConfigError: Naming the weight and the heads that have them.
    """
    if config.readout_weight:
        raise ConfigError(
            f"readout_weight={config.readout_weight}: {head} has no readouts, set it to 0; masked language models, "
            "token and sequence classification and multiple choice have them"
        )


class HaltingUnit(nn.Module):
    """Probability of halting after an update: p = sigmoid(w y + b)."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.dense = HaltingProjection(config.hidden_size, config.halt_bias_init)

    def forward(self, state: Tensor) -> Tensor:
        """(..., H) to (...), float32."""
        return self.dense(state).squeeze(-1).sigmoid()


class AlbertActLayer(AlbertLayer):
    """The shared block with the halting unit, which is the recurrence's to call."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.act = HaltingUnit(config)


class Stream(NamedTuple):
    """States of tokens, x_n, and x_0 where it is recalled, (..., H)."""

    state: Tensor
    first: Tensor | None = None

    @property
    def read(self) -> Tensor:
        """r_{n+1}, what the block reads next (Bansal et al. 2022, arXiv 2202.05826, section 3.1)."""
        return self.state if self.first is None else self.state + self.first


class Tokens(NamedTuple):
    """Tokens that halt by themselves: their stream, their results so far (..., H), and their halting sums (...).

    The results are the states themselves where the rule keeps nothing apart.
    """

    stream: Stream
    result: Tensor
    halting: ActState


class Recipe(NamedTuple):
    """What the configuration says about all iterations of a pass, read once: transformers makes reading it slow.

    Attributes:
        rule: See `AlbertActTransformer.rule`.
        max_updates: The most iterations.
        adapts: Whether tokens halt by themselves.
        threshold: 1 - epsilon.
        cap_remainder: See `act_step`.
    """

    rule: StateRuleLike
    max_updates: int
    adapts: bool
    threshold: float
    cap_remainder: CapRemainderLike


class Places:
    """Where the tokens of a batch are, and how they attend: here at all positions, in every iteration.

    Args:
        valid: True at the batch's real tokens, (B, T).
        attention_mask: In the form the attention implementation wants.
        options: For the attention implementation.
    """

    def __init__(self, valid: Tensor, attention_mask: Tensor | None, options: dict[str, Any]) -> None:
        self.valid = valid
        self._mask, self._options = attention_mask, options

    @property
    def slots(self) -> Tensor | None:
        """Slot b T + t of each token, (P,); None where all positions of the batch are there."""
        return None

    @property
    def computed(self) -> tuple[int, int, Tensor | int] | None:
        """Queries, keys and pairs of them that the next iteration computes; None where that is everything."""
        return None

    def pick(self, values: Tensor) -> Tensor:
        """The tokens' values, (..., *), of those of the whole batch, (B, T, *)."""
        return values

    def apply(self, layer: AlbertActLayer, read: Tensor) -> Tensor:
        """Apply the block, (..., H) to (..., H)."""
        return layer(read, self._mask, **self._options)[0]

    def keep(self, running: Tensor, stream: Stream) -> Stream:
        """Leave behind whom `running`, (B, T), does not name, where that spares work; who goes on."""
        return stream

    def find(self, slots: Tensor) -> Tensor:
        """Where tokens, b T + t each, stand among the flattened ones."""
        return slots


class StateRecord(nn.Module):
    """Sees the states before and after an iteration; a module, so that a hook can record them."""

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        """The states after, (B, T, H)."""
        return after


class Finished(NamedTuple):
    """What a loop leaves.

    Attributes:
        state: The final states, (B, T, H).
        halting: The halting sums, (B, T).
        probabilities: Halting mass of every iteration, 0 once a token has halted, (B, T, N).
        computed: What each iteration computed; None where that was everything.
    """

    state: Tensor
    halting: ActState
    probabilities: Tensor
    computed: ComputedSteps | None = None


class AlbertActTransformer(nn.Module):
    """Applies the shared layer until every token has halted, at most `num_hidden_layers` times.

    Attributes:
        forced_depth: Updates that every token gets instead of what the configuration says; None: as it says.
        replayed_masses: Halting masses (B, T, N) that take the place of the halting unit's; None: the unit's count.
    """

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding_hidden_mapping_in = Product(config.embedding_size, config.hidden_size)
        self.albert_layer = AlbertActLayer(config)
        self.state_record = StateRecord()
        self.halting_rule = halting_rule(config.halting_rule)
        self.forced_depth: int | None = None
        self.replayed_masses: Tensor | None = None

    def forward(self, state: Tensor, places: Places, readouts: ReadoutStates | None) -> Finished:
        """Update every position until the last token has halted.

        Args:
            state: x_0, (B, T, H).
            places: Of the batch.
            readouts: Collects the states of some tokens after every iteration.
        """
        tokens, probabilities, may_wait = self.start(state, places.valid), [], self._may_wait()
        recipe = self.recipe()
        for step in range(1, recipe.max_updates + 1):
            if step > 1 and may_wait and not tokens.halting.running.any():
                break
            before = tokens.stream.state
            tokens, probability = self.update(tokens, places, recipe, step)
            self.state_record(before, tokens.stream.state)
            if readouts is not None:
                readouts.add(tokens.stream.state)
            probabilities.append(probability)
        return Finished(tokens.result, tokens.halting, torch.stack(probabilities, dim=-1))

    def start(self, state: Tensor, valid: Tensor) -> Tokens:
        """Tokens before the first iteration, x_0 (..., H); `valid` (...) is false at padding, which starts halted."""
        result = state if self.rule == "single" else torch.zeros_like(state)
        return Tokens(self.stream(state), result, init_act(valid))

    def stream(self, state: Tensor) -> Stream:
        """The same without results and halting sums."""
        return Stream(state, state if self.config.recall else None)

    def update(self, tokens: Tokens, places: Places, recipe: Recipe, step: int) -> tuple[Tokens, Tensor]:
        """Iteration `step`, counted from 1: the tokens after it, and the halting mass of those that ran, (...)."""
        rule, running = recipe.rule, tokens.halting.running
        output, probability = self.propose(tokens.stream, places)
        if self.replayed_masses is not None:
            masses = self.replayed_masses[..., step - 1]
            probability = masses if places.slots is None else take(masses.flatten(), places.slots)
        elif recipe.adapts:
            probability = self.halting_rule.mass(probability, tokens.halting.accumulated, step)
        halting, weight = act_step(
            tokens.halting,
            probability,
            threshold=recipe.threshold,
            is_last=step == recipe.max_updates,
            cap_remainder=recipe.cap_remainder,
        )
        stream = advance(rule, tokens.stream, output, weight, running)
        result = stream.state if rule == "single" else update_result(rule, tokens.result, output, weight)
        return Tokens(stream, result, halting), probability * running

    def propose(self, stream: Stream, places: Places) -> tuple[Tensor, Tensor]:
        """The block's output y_n, (..., H), and the probabilities p_n, (...)."""
        read = stream.read
        output = places.apply(self.albert_layer, read)
        return output, self.halting_probability(read, output, places.valid, places.slots)

    def halting_probability(self, state: Tensor, output: Tensor, valid: Tensor, slots: Tensor | None = None) -> Tensor:
        """The probability p_n that tokens halt at this update, (...), float32.

        Args:
            state: r_n, what the block read, (..., H).
            output: y_n, (..., H).
            valid: True at real tokens, (B, T).
            slots: Of packed tokens: whole sequences, where sequences halt.
        """
        probability = self.albert_layer.act(output if self.config.halting_input == "block_output" else state)
        if self.fixed_depth is not None:
            return torch.zeros_like(probability)
        if self.config.halting_scope == "token":
            return probability
        tokens = valid.sum(dim=1).clamp(min=1)
        if slots is None:
            mean = (probability * valid).sum(dim=1) / tokens
            return mean.unsqueeze(1).expand_as(probability)
        rows = slots // valid.shape[1]
        sums = torch.zeros_like(tokens, dtype=torch.float32).index_add(0, rows, probability)
        return (sums / tokens)[rows]

    @property
    def fixed_depth(self) -> int | None:
        """Updates that every token gets while nobody halts; None where they halt."""
        return self.config.fixed_depth if self.forced_depth is None else self.forced_depth

    def recipe(self) -> Recipe:
        """What the configuration says now."""
        config, fixed = self.config, self.fixed_depth
        return Recipe(
            rule=self.rule,
            max_updates=config.num_hidden_layers if fixed is None else fixed,
            adapts=fixed is None,
            threshold=1.0 - config.act_epsilon,
            cap_remainder=config.cap_remainder if fixed is None else "forced",
        )

    @property
    def rule(self) -> StateRuleLike:
        """How states are updated.

        Where nobody halts there is nothing to interpolate: a block's output follows, and the last one, which the cap
        forces to halt with weight 1, is the result.
        """
        return self.config.state_rule if self.fixed_depth is None else "graves"

    def _may_wait(self) -> bool:
        """Whether the device may be asked if anybody still runs.

        The answer costs a host synchronisation: nothing on a CPU, worth it in evaluation, but in training on an
        accelerator it would empty the queue in every iteration, and in a compiled graph it would break the graph.
        Iterations after the last token has halted change nothing, neither states nor gradients.
        """
        return may_wait(self.embedding_hidden_mapping_in.weight.device, training=self.training)


def advance(rule: StateRuleLike, stream: Stream, output: Tensor, weight: Tensor, running: Tensor) -> Stream:
    """The stream x_n of tokens of which some run, (...)."""
    return Stream(update_stream(rule, stream.state, output, weight, running), stream.first)
