"""The base class of looped models with heads: exit rules, numbers of loops, multiply-accumulates; and their output.

Shape legend: B rows, T new tokens, D width, V pieces, C classes, N loops, n of them that ran, K units that are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.utils import ModelOutput

from adadepth.errors import ConfigError
from adadepth.halting.exit_rules import (
    HALTING_SIGNAL,
    LOGITS,
    STATES,
    ExitRule,
    Fixed,
    check_rule,
    parse_rule,
)
from adadepth.halting.trace import ComputedSteps, DepthTrace, DepthUnit, Execution, Work
from adadepth.models.looped.activation_memory import count_stored_numbers
from adadepth.models.looped.configuration import LoopedConfig
from adadepth.models.looped.exits import LoopReading, LoopResults, run_loops
from adadepth.models.looped.modeling import LoopedModel, LoopedPreTrainedModel, Looping
from adadepth.models.looped.objectives import (
    compute_curriculum_loops,
    draw_loops,
    text_uniforms,
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
