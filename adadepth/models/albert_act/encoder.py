"""The encoder of ACT-ALBERT: the shared layer with its halting unit, and the loop that lets tokens halt.

Module names follow the state dict of the published checkpoints. Shape legend: B batch, T tokens, E embedding width,
H hidden width, N iterations that ran.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from adadepth.halting.act import (
    ActState,
    CapRemainder,
    StateRule,
    act_step,
    init_act,
    update_result,
    update_stream,
)
from adadepth.models.albert.encoder import AlbertLayer, HaltingProjection
from adadepth.models.albert_act.configuration import AlbertActConfig


class HaltingUnit(nn.Module):
    """Probability of halting after an update: p = sigmoid(w y + b)."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.dense = HaltingProjection(config.hidden_size, 1)

    def forward(self, state: Tensor) -> Tensor:
        """(B, T, H) to (B, T), float32."""
        return self.dense(state).squeeze(-1).sigmoid()


class AlbertActLayer(AlbertLayer):
    """The shared block with the halting unit, which is the encoder's to call."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.act = HaltingUnit(config)


class StateUpdate(nn.Module):
    """The rule that turns a block's output into the next state; a module so that states can be recorded by a hook."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.rule = cast(StateRule, config.state_rule)

    def forward(self, state: Tensor, output: Tensor, weight: Tensor, running: Tensor) -> Tensor:
        """See `adadepth.halting.act.update_stream`."""
        return update_stream(self.rule, state, output, weight, running)


class EncoderResult(NamedTuple):
    """What the loop leaves: the final states (B, T, H), the halting sums (B, T), the probabilities (B, T, N)."""

    state: Tensor
    halting: ActState
    probabilities: Tensor


class AlbertActTransformer(nn.Module):
    """Applies the shared layer until every token has halted, at most `num_hidden_layers` times."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding_hidden_mapping_in = nn.Linear(config.embedding_size, config.hidden_size)
        self.albert_layer = AlbertActLayer(config)
        self.state_update = StateUpdate(config)

    def forward(
        self, embedded: Tensor, attention_mask: Tensor | None, valid: Tensor, **kwargs: object
    ) -> EncoderResult:
        """Run the recurrence of `adadepth.halting.act`.

        Args:
            embedded: (B, T, E).
            attention_mask: In the form the attention implementation wants.
            valid: True at real tokens, (B, T).
            **kwargs: For the attention implementation.
        """
        config = self.config
        state = self.embedding_hidden_mapping_in(embedded)
        result = None if config.state_rule == "single" else torch.zeros_like(state)
        halting, probabilities = init_act(valid), []
        for step in range(1, config.num_hidden_layers + 1):
            running = halting.running
            if step > 1 and self._may_wait() and not running.any():
                break
            output = self.albert_layer(state, attention_mask, **kwargs)
            probability = self._halting_probability(state, output, valid)
            halting, weight = act_step(
                halting,
                probability,
                threshold=1.0 - config.act_epsilon,
                is_last=step == config.num_hidden_layers,
                cap_remainder=cast(CapRemainder, config.cap_remainder),
            )
            state = self.state_update(state, output, weight, running)
            if result is not None:
                result = update_result(self.state_update.rule, result, output, weight)
            probabilities.append(probability * running)
        return EncoderResult(state if result is None else result, halting, torch.stack(probabilities, dim=-1))

    def _halting_probability(self, state: Tensor, output: Tensor, valid: Tensor) -> Tensor:
        probability = self.albert_layer.act(output if self.config.halting_input == "block_output" else state)
        if self.config.halting_scope == "sequence":
            mean = (probability * valid).sum(dim=1, keepdim=True) / valid.sum(dim=1, keepdim=True).clamp(min=1)
            probability = mean.expand_as(probability)
        return probability

    def _may_wait(self) -> bool:
        """Whether the loop may ask the device if anybody still runs.

        The answer costs a host synchronisation: nothing on a CPU, worth it in evaluation, but in training on an
        accelerator it would empty the queue in every iteration, and in a compiled graph it would break the graph.
        Iterations after the last token has halted change nothing, neither states nor gradients.
        """
        if torch.compiler.is_compiling():
            return False
        return not self.training or self.embedding_hidden_mapping_in.weight.device.type == "cpu"
