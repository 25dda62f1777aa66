"""The encoder of ACT-ALBERT: parameters and settings, of which it makes the recurrence that a loop runs.

Module names follow the state dict of the published checkpoints. Shape legend: B batch, T tokens, P packed tokens, E
embedding width, H hidden width, N iterations that ran.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from adadepth.families.albert_act.configuration import AlbertActConfig
from adadepth.families.albert_act.loops import EncoderResult, StateRecord, run_dense, run_ragged
from adadepth.families.albert_act.readouts import ReadoutStates
from adadepth.families.albert_act.recurrence import AlbertActLayer, Dense, Packed, Recurrence
from adadepth.families.shared.albert.packed_attention import Kernel
from adadepth.halting.act import CapRemainder, StateRule


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
    def recurrence(self) -> Recurrence:
        """What an iteration does, as the encoder is set now.

        Where nobody halts there is nothing to interpolate: a block's output follows, and the last one is the result.
        """
        config, fixed = self.config, self.fixed_depth
        return Recurrence(
            layer=self.albert_layer,
            probability=self.halting_probability,
            rule=cast(StateRule, config.state_rule if fixed is None else "graves"),
            recall=config.recall,
            threshold=1.0 - config.act_epsilon,
            cap=config.num_hidden_layers if fixed is None else fixed,
            cap_remainder=cast(CapRemainder, config.cap_remainder if fixed is None else "forced"),
        )

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
        """Run the recurrence until every token has halted.

        Args:
            embedded: (B, T, E).
            attention_mask: In the form the attention implementation wants.
            valid: True at real tokens, (B, T).
            kernel: What attends in the ragged execution; None for the dense one.
            wants_states: Whether the states of every iteration are recorded.
            readout_slots: b T + t of the tokens whose states are wanted after every iteration, (K,); None for none.
            **kwargs: For the attention implementation.
        """
        state, record = self.embedding_hidden_mapping_in(embedded), self.state_record
        readouts = None if readout_slots is None else ReadoutStates(readout_slots, state)
        if kernel is None:
            dense = Dense(valid, attention_mask, kwargs)
            found = run_dense(self.recurrence, dense, state, record, readouts, may_wait=self._may_wait())
        else:
            packed = Packed(valid, attention_mask, kwargs, kernel)
            shown = record if wants_states else None
            found = run_ragged(self.recurrence, packed, state, shown, readouts, self.config)
        return found if readouts is None else found._replace(readouts=readouts.stack())

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

    def _may_wait(self) -> bool:
        """Whether the dense loop may ask the device if anybody still runs.

        The answer costs a host synchronisation: nothing on a CPU, worth it in evaluation, but in training on an
        accelerator it would empty the queue in every iteration, and in a compiled graph it would break the graph.
        Iterations after the last token has halted change nothing, neither states nor gradients.
        """
        if torch.compiler.is_compiling():
            return False
        return not self.training or self.embedding_hidden_mapping_in.weight.device.type == "cpu"
