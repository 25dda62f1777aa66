"""The encoder of ACT-ALBERT: the shared layer with its halting unit, and the loop that lets tokens halt.

Module names follow the state dict of the published checkpoints. Shape legend: B batch, T tokens, P packed tokens, E
embedding width, H hidden width, N iterations that ran.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from adadepth.families.albert_act.configuration import AlbertActConfig
from adadepth.families.albert_act.ragged import run_ragged
from adadepth.families.albert_act.readouts import ReadoutStates
from adadepth.families.shared.albert.encoder import AlbertLayer, HaltingProjection
from adadepth.families.shared.albert.ragged import Kernel
from adadepth.halting.act import (
    ActState,
    CapRemainder,
    StateRule,
    act_step,
    init_act,
    recalled,
    update_result,
    update_stream,
)
from adadepth.halting.trace import ComputedSteps


class HaltingUnit(nn.Module):
    """Probability of halting after an update: p = sigmoid(w y + b)."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.dense = HaltingProjection(config.hidden_size, 1)

    def forward(self, state: Tensor) -> Tensor:
        """(..., H) to (...), float32."""
        return self.dense(state).squeeze(-1).sigmoid()


class AlbertActLayer(AlbertLayer):
    """The shared block with the halting unit, which is the encoder's to call."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.act = HaltingUnit(config)


class StateRecord(nn.Module):
    """Hands on the states after an iteration; a module, so that a hook can record them and those before the first."""

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        """The states after, (B, T, H)."""
        return after


class EncoderResult(NamedTuple):
    """What the loop leaves.

    Attributes:
        state: The final states, (B, T, H).
        halting: The halting sums, (B, T).
        probabilities: Of every iteration, 0 once a token has halted, (B, T, N).
        computed: What each iteration computed; None where that was everything.
        readouts: The states of the wanted tokens after every iteration, (K, N, H); None where none are.
    """

    state: Tensor
    halting: ActState
    probabilities: Tensor
    computed: ComputedSteps | None = None
    readouts: Tensor | None = None


class AlbertActTransformer(nn.Module):
    """Applies the shared layer until every token has halted, at most `num_hidden_layers` times."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding_hidden_mapping_in = nn.Linear(config.embedding_size, config.hidden_size)
        self.albert_layer = AlbertActLayer(config)
        self.state_record = StateRecord()
        self.forced_depth: int | None = None

    @property
    def fixed_depth(self) -> int | None:
        """Updates that every token gets while nobody halts: what training forces, else the configuration's; or None."""
        return self.config.fixed_depth if self.forced_depth is None else self.forced_depth

    @property
    def cap(self) -> int:
        """Most updates of a token."""
        return self.config.num_hidden_layers if self.fixed_depth is None else self.fixed_depth

    @property
    def rule(self) -> StateRule:
        """How states are updated; where nobody halts there is nothing to interpolate, and a block's output follows."""
        return cast(StateRule, self.config.state_rule if self.fixed_depth is None else "graves")

    def forward(
        self,
        embedded: Tensor,
        attention_mask: Tensor | None,
        valid: Tensor,
        *,
        kernel: Kernel | None = None,
        wants_states: bool = False,
        readout_slots: Tensor | None = None,
        **kwargs: Any,
    ) -> EncoderResult:
        """Run the recurrence of `adadepth.halting.act`.

        Args:
            embedded: (B, T, E).
            attention_mask: In the form the attention implementation wants.
            valid: True at real tokens, (B, T).
            kernel: What attends in the ragged execution; None for the dense one.
            wants_states: Whether the states of every iteration are recorded.
            readout_slots: b T + t of the tokens whose states are wanted after every iteration, (K,); None for none.
            **kwargs: For the attention implementation.
        """
        state = self.embedding_hidden_mapping_in(embedded)
        readouts = None if readout_slots is None else ReadoutStates(readout_slots, state)
        if kernel is None:
            found = EncoderResult(*self._run_dense(state, attention_mask, valid, readouts, kwargs))
        else:
            found = EncoderResult(
                *run_ragged(self, state, attention_mask, valid, kernel, wants_states, readouts, kwargs)
            )
        return found if readouts is None else found._replace(readouts=readouts.stack())

    def _run_dense(
        self,
        state: Tensor,
        attention_mask: Tensor | None,
        valid: Tensor,
        readouts: ReadoutStates | None,
        options: dict[str, Any],
    ) -> tuple[Tensor, ActState, Tensor]:
        """Every position in every iteration, until the last token has halted."""
        rule, first = self.rule, state if self.config.recall else None
        result = None if rule == "single" else torch.zeros_like(state)
        halting, probabilities = init_act(valid), []
        for step in range(1, self.cap + 1):
            running = halting.running
            if step > 1 and self._may_wait() and not running.any():
                break
            read = recalled(state, first)
            output = self.albert_layer(read, attention_mask, **options)
            probability = self.halting_probability(read, output, valid)
            halting, weight = self.halt(halting, probability, step)
            state = self.state_record(state, update_stream(rule, state, output, weight, running))
            if result is not None:
                result = update_result(rule, result, output, weight)
            if readouts is not None:
                readouts.add(state)
            probabilities.append(probability * running)
        return state if result is None else result, halting, torch.stack(probabilities, dim=-1)

    def halting_probability(self, state: Tensor, output: Tensor, valid: Tensor, slots: Tensor | None = None) -> Tensor:
        """The probability p_n that tokens halt at this update, float32.

        Args:
            state: What the block read: x_{n-1}, or with `recall` x_{n-1} + x_0; (B, T, H), or packed (P, H).
            output: y_n, the same shape.
            valid: True at real tokens, (B, T).
            slots: b T + t of packed tokens, (P,): whole sequences, where sequences halt.

        Returns:
            (B, T), or (P,).
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

    def halt(self, halting: ActState, probability: Tensor, step: int) -> tuple[ActState, Tensor]:
        """Advance the halting sums by iteration `step`, counted from 1; see `adadepth.halting.act.act_step`."""
        return act_step(
            halting,
            probability,
            threshold=1.0 - self.config.act_epsilon,
            is_last=step == self.cap,
            cap_remainder=cast(CapRemainder, self.config.cap_remainder) if self.fixed_depth is None else "forced",
        )

    def _may_wait(self) -> bool:
        """Whether the dense loop may ask the device if anybody still runs.

        The answer costs a host synchronisation: nothing on a CPU, worth it in evaluation, but in training on an
        accelerator it would empty the queue in every iteration, and in a compiled graph it would break the graph.
        Iterations after the last token has halted change nothing, neither states nor gradients.
        """
        if torch.compiler.is_compiling():
            return False
        return not self.training or self.embedding_hidden_mapping_in.weight.device.type == "cpu"
