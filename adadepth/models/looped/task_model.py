"""Base class of looped models with task heads (exit rules, numbers of loops, MAC counts), and their output.

Shape legend: B rows, T new tokens, D width, V vocabulary size, C classes, N loops, n loops that ran, K units that are
predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers import Cache

from adadepth.errors import ConfigError, DataError
from adadepth.halting.exit_rules import (
    HALTING_SIGNAL,
    LOGITS,
    STATES,
    ExitRule,
    Fixed,
    check_rule,
    parse_rule,
)
from adadepth.halting.trace import ComputedSteps, DepthTrace, DepthUnit, Execution, StateMaps, Work
from adadepth.halting.units import count_unit_macs
from adadepth.models.depth.engine import ExitRuleKnob
from adadepth.models.depth.outputs import StepMacs, price_steps
from adadepth.models.looped.configuration import LoopedConfig
from adadepth.models.looped.exits import LoopReading, LoopResults, run_loops
from adadepth.models.looped.loop_adapters import count_loop_products
from adadepth.models.looped.loop_state import Looping
from adadepth.models.looped.modeling import LoopedModel, LoopedPreTrainedModel
from adadepth.models.looped.objectives import (
    compute_curriculum_loops,
    draw_loops,
    text_uniforms,
)
from adadepth.models.looped.settings import Objective
from adadepth.models.shared.encoders import find_real_tokens
from adadepth.models.shared.generation import CacheOutput
from adadepth.models.shared.halting_settings import find_loss_problems
from adadepth.runtime.devices import select_float64_device, upload

# Inputs on which the states depend, beside the tokens.
_OF_STATES = ("attention_mask", "position_ids", "documents", "token_type_ids")


@dataclass
class LoopedOutput(CacheOutput):
    """Output of a looped model with a task head.

    Attributes:
        loss: Sum of `loss_parts`, or None without labels.
        loss_parts: Weighted and normalised parts by name.
        logits: Predictions at the exit of each unit: (B, T, V) for a language model, (B, C) for sequences, and (B, T,
            C), 0 at padding, for tokens. None for a language model in training with labels.
        cache: Cache of a language model, or None.
        hidden_states: State s_0 and the states after every loop that ran, (B, T, D) each, if requested.
        step_logits: Predictions of every loop, if all loops ran: `StepLogits`, (B, T, N, V), for a language model, else
            (K, N, C).
        halting_logits: Halting logits z_n of the loops that ran, float32: (B, T, n) for a language model, else (K, n).
        state_moves: Movement of the states in every loop (see `adadepth.halting.exit_rules.state_moves`), float32: (B,
            T, n, 2) for a language model, else (K, n, 2). None in training, or if not all loops ran and were read by
            the head.
        exit_steps: Loop at which each unit exits, counted from 1, int64: (B, T), 0 at padding, for a language model,
            else (K,).
        unit_slots: Index b T + t of each of the K units of a token classifier, int64, (K,).
        trace: Depth trace with the number of loops of every unit.
        token_losses: Cross-entropy in nats of the P tokens with a label, for a language model, detached, (P,).
        step_losses: The same cross-entropy after each loop that the head read, (P, n).
    """

    loss: Tensor | None = None
    loss_parts: dict[str, Tensor] | None = None
    logits: Tensor | None = None
    cache: Cache | None = None
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
    """Arguments of a forward pass that concern the loops, such as exit rule and number of loops.

    None means that of the configuration.
    """

    num_loops: int | None
    initial_state: Tensor | None
    output_hidden_states: bool | None
    exit_rule: str | ExitRule | None
    run_all_steps: bool | None
    generator: torch.Generator | None
    text_loops: Tensor | None = None


class LoopedTaskModel(ExitRuleKnob, LoopedPreTrainedModel):
    """Base class of looped models with task heads: exit rules, numbers of loops and MAC counts."""

    accepts_loss_kwargs = False

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        self.model = LoopedModel(config)
        self._step: int | None = None
        self._steps = 1

    @property
    def exit_signals(self) -> frozenset[str]:
        """Signals that the model provides to exit rules."""
        return frozenset({LOGITS, STATES, HALTING_SIGNAL} if self.config.gate else {LOGITS, STATES})

    @property
    def step_loss_problem(self) -> str | None:
        """Reason why the loss over loops cannot be computed, such as a missing package, or None."""
        return next(find_loss_problems("model.objective", self.config.objective, tuple(Objective)), None)

    @property
    def level_rule(self) -> str:
        """Exit rule whose threshold meets a depth budget: on the halting unit if there is one, otherwise on margins."""
        return "quantile" if self.config.gate else "margin:0.5"

    def rule(self, rule: str | ExitRule | None, loops: int, classes: int, *, one_class: bool = True) -> ExitRule:
        """Return the exit rule of a forward pass, by default the configured one, or in training the last loop.

        Raises:
            ConfigError: If there is no such rule, or it needs signals that the model does not provide.
        """
        if rule is None and not self.training:
            rule = self.config.parsed_exit_rule
        resolved = Fixed(loops) if rule is None else parse_rule(rule) if isinstance(rule, str) else rule
        check_rule(resolved, self.exit_signals, classes, loops, self.config.model_type, one_class=one_class)
        return resolved

    def prior_facts(self, outputs: Any) -> dict[str, Any]:
        """Return how the halting unit's logits define a distribution over loops, if there is a unit; see `objectives`.

        The last loop gets the rest of the probability.
        """
        return {} if outputs.halting_logits is None else {"truncation": "leftover"}

    def list_heads(self) -> set[str]:
        """Return the names of the task head and, if there is one, of the halting unit."""
        return super().list_heads() | ({"model.gate"} if self.config.gate else set())

    def freeze_untrained(self) -> None:
        """Freeze what the objective does not train: all but the halting unit, or the halting unit."""
        if self.config.objective == "gate_alone":
            self.requires_grad_(False)
        if self.config.gate:
            self.model.gate.requires_grad_(self.config.objective in ("gate", "gate_alone"))

    def set_step(self, step: int, total: int) -> None:
        """Set the completed and the total number of optimiser steps, for the loop curriculum.

        The number of loops in training depends on them.
        """
        self._step, self._steps = step, total

    def _resolve_loops(self, num_loops: int | None, labels: Tensor | None) -> int | None:
        """Return the number of loops of a forward pass, or None for the configured number.

        In training, `loop_curriculum` determines the number unless the call requests one.
        """
        config = self.config
        if num_loops is not None or labels is None or not self.training or self._step is None:
            return num_loops
        if config.loop_curriculum == "none":
            return None
        return compute_curriculum_loops(
            config.num_loops, config.loop_curriculum, config.curriculum_share, self._step, self._steps
        )

    def _set_text_loops(
        self,
        run: Looping,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        labels: Tensor | None,
        call: LoopOptions,
    ) -> None:
        """Set the number of loops of every text in training, random or given, unless all texts run N loops.

        Raises:
            ConfigError: If the configuration does not support texts with different numbers of loops.
            DataError: If `train_loops=length` and the texts have no valid numbers of loops.
        """
        config = self.config
        if not self.training or labels is None or call.num_loops is not None or config.train_loops == "fixed":
            return
        if config.objective != "last":
            raise ConfigError(f"train_loops={config.train_loops}: needs objective=last, not {config.objective}")
        if config.low_backprop is not None:
            raise ConfigError(f"low_backprop={config.low_backprop}: needs train_loops=fixed")
        if config.train_loops == "drawn":
            run.counts = self._draw_loops(run, input_ids, attention_mask)
        elif call.text_loops is None:
            raise DataError(
                "text_loops: train_loops=length needs a number of loops for every text, as dataset=lengths has it"
            )
        else:
            run.counts = call.text_loops
        run.fewest, run.loops = self._find_range_of_loops(run.counts)
        if run.fewest < 1:
            raise DataError(f"text_loops: must be at least 1, not {run.fewest}")

    def _draw_loops(self, run: Looping, input_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor:
        """Draw a random number of loops for every text, int64 (B,)."""
        rows, spread, mean = len(run.embedded), self.config.loop_spread, run.loops
        device = select_float64_device(run.state.device)
        if input_ids is None or self._step is None:
            uniform = upload(torch.rand(rows, 2, dtype=torch.float64), device)
        else:
            mask = None if attention_mask is None else attention_mask.to(device)
            uniform = text_uniforms(input_ids.to(device), mask, self.config.draw_seed, self._step)
        return draw_loops(uniform, mean, spread).to(run.state.device)

    def _find_range_of_loops(self, counts: Tensor) -> tuple[int, int]:
        """Return the least and the largest number of loops; of all processes if they share the parameters.

        A process gathers the parameters in every loop, so all processes must run the same number of loops.
        """
        fewest, most = counts.min(), counts.max()
        if isinstance(self, FSDPModule):
            limits = torch.stack([-fewest, most])
            dist.all_reduce(limits, dist.ReduceOp.MAX)
            fewest, most = -limits[0], limits[1]
        at_least, at_most = torch.stack([fewest, most]).tolist()
        return at_least, at_most

    def _reads_all_loops(self, run_all: bool | None, labels: Tensor | None, rule: ExitRule, loops: int) -> bool:
        """Return whether the head must predict after every loop, because the call or a loss requires it."""
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
        attention_mask: Tensor | None,
        labels: Tensor | None,
    ) -> tuple[LoopResults, ExitRule]:
        """Run the loops of a forward pass, and return their results and the exit rule.

        If texts train with different numbers of loops, the rule is replaced by one that reads the last loop.

        Args:
            run: State of the batch before its first loop.
            rule: Exit rule of the forward pass.
            call: Options of the forward pass.
            all_loops: Whether all loops run and the head reads each of them.
            units: Slots, head and mask of the predicted units; see `LoopReading`.
            input_ids: Token ids, (B, T), on which random numbers of loops depend.
            attention_mask: Mask of the real tokens, (B, T), or None if all are real.
            labels: Labels, or None if no loss is computed.
        """
        self._set_text_loops(run, input_ids, attention_mask, labels, call)
        rule = Fixed(run.loops) if run.counts is not None else rule
        wants_states = call.output_hidden_states
        states = bool(self.config.output_hidden_states if wants_states is None else wants_states)
        slots, head, real = units
        moves = all_loops and not self.training
        reading = LoopReading(slots, head, rule, real, all_loops, states, moves, call.generator)
        return run_loops(self.model, run, reading), rule

    def build_state_maps(self, batch: Mapping[str, Tensor]) -> StateMaps:
        """Return the first state of a batch, joined with the low-level state, and the map of every loop."""
        run = self.model.begin(**{name: batch.get(name) for name in ("input_ids", *_OF_STATES)})

        def run_loop(done: int, state: Tensor) -> Tensor:
            high = self.model.split_state(state)[0]
            normed = high if self.config.state_norm == "fed" else self.model.norm(high)
            looping = replace(run, state=state, normed=normed if done else None, done=done)
            self.model.loop_once(looping)
            return looping.state

        real = find_real_tokens(batch.get("attention_mask"), run.embedded.shape[:2], run.embedded.device)
        return StateMaps(run.state, real, [partial(run_loop, done) for done in range(run.loops)])

    def least_activations(self, lengths: Sequence[int], recomputed: bool) -> dict[str, int]:
        """Return the number of activation values stored for loops with gradients, by part of the model.

        Logits exist only in parts and are not counted.
        """
        return count_stored_numbers(self.config, lengths, recomputed)

    def count_units(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the number of real tokens in a batch."""
        return batch["attention_mask"].sum()

    def _show_moves(self, results: LoopResults, all_loops: bool, shape: torch.Size) -> Tensor | None:
        """Return how far hidden states moved in each loop, or None in training or without predictions of all loops."""
        moves = results.moves if all_loops and not self.training else None
        return None if moves is None else moves.view(*shape, -1, 2)

    def _trace(self, exits: Tensor, real: Tensor, run: Looping, tokens: Tensor | None = None) -> DepthTrace:
        width, before = run.embedded.shape[1], 0 if run.cache is None else run.cache.get_seq_length()
        computed = ComputedSteps.from_counts(run.computed) if run.computed else None
        execution = Execution(run.done, tokens, width, computed=computed, memory_length=max(before - width, 0))
        unit: DepthUnit = "token" if exits.dim() == 2 else "sequence"
        return DepthTrace(unit, exits.float(), real, run.loops, execution=execution)

    def price(self, trace: DepthTrace) -> Work:
        """Return the MACs of a batch from its depth trace, without predictions, which `reading_work` counts.

        A layer takes 2 D (h + h_kv) d_h + 3 D F per token, and 2 h d_h per query-key pair. An attention gate takes
        D h d_h more per token, the linear injection of a stack 2 D^2, and a low-rank change of a matrix r (in + out).
        Layers of the low-level stack count once per cycle. `adaptive` counts a token until its exit. `executed` counts
        a token until the loops end. If the cache policy stops exited tokens, `executed` counts what was computed,
        including keys and values of frozen states.
        """
        config = self.config
        token, pair = compute_layer_macs(config)
        layers, stacks = config.layers_per_loop, 1 + (config.low_cycles if config.low_layers else 0)
        adapter = 2.0 * config.hidden_size**2 * stacks if config.injection == "linear" else 0.0
        adapter += count_loop_products(self.model.core.loop_products)
        stored = layers * 2.0 * config.hidden_size * config.key_value_heads * config.width_of_head + adapter
        loops = torch.arange(trace.max_updates + 1, dtype=torch.float64)
        passed = config.prelude + layers * loops
        macs = StepMacs(token * passed + adapter * loops, pair * passed, torch.full_like(loops[1:], stored))
        return price_steps(trace, macs)

    def reading_work(self, signal: str, lengths: Tensor) -> Tensor | float:
        """Return the MACs of computing an exit rule's input signal after one loop.

        A prediction takes the coda and the head. To predict a text, the coda runs over all of its tokens. The signal
        `states` takes D for each of three norms: of the state, of its last update, and of the change of that update.
        """
        if signal != LOGITS:
            width, gate = self.config.hidden_size, self.model.gate if self.config.gate else None
            return 3.0 * width if signal == STATES else float(count_unit_macs(gate, width))
        token, pair = compute_layer_macs(self.config)
        tokens = lengths.double() if self.depth_unit == "sequence" else 1.0
        return self.config.coda * tokens * (token + pair * (lengths.double() + 1) / 2) + self.readout_work


def compute_layer_macs(config: LoopedConfig) -> tuple[float, float]:
    """Return the MACs of one layer per token, and per query-key pair."""
    queries, keys = (heads * config.width_of_head for heads in (config.num_attention_heads, config.key_value_heads))
    width, gate = config.hidden_size, queries if config.attention_gate else 0
    return width * (2.0 * (queries + keys) + gate + 3.0 * config.intermediate_size), 2.0 * queries


# ---- Activation memory

# States of width D, or of the heads' width, that a layer stores of a token, by where its norms are.
_STATES = {"pre": 11, "branch": 15, "sandwich": 11}
_HF_STATES = 7  # the same of a layer of another decoder: residual and normed states, and those of attention


def count_stored_numbers(config: Any, lengths: Sequence[int], recomputed: bool) -> dict[str, int]:
    """Return a lower bound on the number of activation values stored for the backward pass, by part of the model.

    The number of values per token and layer was fitted to what autograd stores in float32; see docs/looped.md. D is the
    width, F the inner width of a layer, h and h_kv the number of heads of queries and keys, and d_h their width. Three
    smaller parts are not counted: a few values per token, a mask of T values per token of packed documents, and the
    gates of attention. Low-level cycles without gradients store nothing.

    If texts have different numbers of loops, one loop is counted, because a text may have only one. For recomputed
    loops, only the states before each loop are counted.

    Args:
        config: Configuration of the model, a `LoopedConfig`.
        lengths: Number of tokens of every row.
        recomputed: Whether the backward pass recomputes loops, one at a time.
    """
    tokens, most = sum(lengths), config.backprop_loops or config.num_loops
    loops = min(config.num_loops, most) if config.train_loops == "fixed" else 1
    read = 1 if config.objective == "last" else loops
    trains_prelude = config.backprop_loops is None or config.injection != "none"
    prelude = config.prelude if trains_prelude else 0
    cycles = config.low_gradient_cycles(config.num_loops)[-loops:] if config.low_layers else [0] * loops
    core = [config.core + config.low_layers * count for count in cycles]
    layers = min(core) if recomputed else sum(core) + config.coda * read + prelude
    states, inner = (_STATES[config.norms], 4) if config.base_config is None else (_HF_STATES, 2)
    queries, keys = (heads * config.width_of_head for heads in (config.num_attention_heads, config.key_value_heads))
    layer_states = (states - 4) * config.hidden_size + 2 * min(queries, config.hidden_size) + 2 * keys
    numbers = {
        "states": tokens * (layers * layer_states + ((loops - 1) * config.hidden_size if recomputed else 0)),
        "feed-forward": tokens * layers * inner * config.intermediate_size,
    }
    if config._attn_implementation == "eager":
        numbers["attention"] = layers * config.num_attention_heads * sum(length**2 for length in lengths)
    return numbers
