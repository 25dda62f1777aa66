"""The stack that supernet and fixed network share: embedding, blocks, and the memory that they hand on.

Shape legend: B rows, T new tokens, M remembered positions, d width, N blocks, A blocks that can attend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from adadepth.errors import DataError
from adadepth.families.par_xl.adaptive_softmax import AdaptiveEmbedding
from adadepth.families.par_xl.attention import Context, position_biases, relative_positions
from adadepth.families.par_xl.blocks import Mix, ParXLBlock, run_alone
from adadepth.families.par_xl.configuration import ParXLConfig


class StackOutput(NamedTuple):
    """What the blocks make of a segment: see the fields of `ParXLOutput`."""

    state: Tensor
    memory: Tensor
    hidden_states: tuple[Tensor, ...]


class ParXLModel(nn.Module):
    """Embedding and blocks; each block has modules for the operations that it can run, and for no others."""

    def __init__(self, config: ParXLConfig) -> None:
        super().__init__()
        self.config = config
        cutoffs = config.cutoffs if config.tie_word_embeddings else ()
        widths = config.proj_dims if config.tie_word_embeddings else None
        self.embedding = AdaptiveEmbedding(config.vocab_size, config.hidden_size, cutoffs, config.proj_factor, widths)
        self.blocks = nn.ModuleList(ParXLBlock(config, operations) for operations in config.operations)
        self.attending = [number for number, operations in enumerate(config.operations) if "s" in operations]
        if config.share_position_bias and self.attending:
            self.position_bias_u, self.position_bias_v = position_biases(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        last = config.output_dropout_prob
        self.output_dropout = nn.Dropout(config.hidden_dropout_prob if last is None else last)

    def forward(
        self,
        input_ids: Tensor,
        memory: Tensor | None = None,
        mixes: Sequence[Mix] | None = None,
        context: Context | None = None,
    ) -> StackOutput:
        """Run the blocks.

        Args:
            input_ids: (B, T).
            memory: (A, B, M, d) with any M, or None.
            mixes: What runs in each block; None in a fixed network.
            context: What attention sees; None: as configured.
        """
        config = self.config
        context = context or Context(config.memory_length, config.clamp_length, config.same_length)
        mixes = run_alone(config.path) if mixes is None else mixes
        state = self.dropout(self.embedding(input_ids) * config.hidden_size**0.5)
        past = self._past_of_blocks(memory, state)
        shared = (self.position_bias_u, self.position_bias_v) if hasattr(self, "position_bias_u") else None
        remembered = 0 if memory is None else memory.shape[2]
        positions = relative_positions(input_ids.shape[1], remembered, context, state, shared)
        states = [state]
        for block, mix, block_memory in zip(self.blocks, mixes, past, strict=True):
            states.append(block(states[-1], mix, block_memory, positions))
        kept = _remember([states[number] for number in self.attending], memory, state, context.memory_length)
        return StackOutput(self.output_dropout(states[-1]), kept, tuple(states))

    def _past_of_blocks(self, memory: Tensor | None, state: Tensor) -> list[Tensor | None]:
        """The memory of every block, without gradient; None where there is none."""
        past: list[Tensor | None] = [None] * len(self.blocks)
        if memory is None:
            return past
        rows, _, width = state.shape
        blocks = len(self.attending)
        if memory.dim() != 4 or (*memory.shape[:2], memory.shape[3]) != (blocks, rows, width):
            raise DataError(
                f"memory of shape {tuple(memory.shape)}: needed is ({blocks}, {rows}, any length, {width}), "
                "attending blocks x rows x positions x width"
            )
        for number, remembered in zip(self.attending, memory.detach().to(state.dtype), strict=True):
            past[number] = remembered
        return past


@torch.no_grad()
def _remember(inputs: Sequence[Tensor], memory: Tensor | None, state: Tensor, length: int) -> Tensor:
    """The last positions of what attention saw: inputs of A blocks (B, T, d) behind (A, B, M, d), at most `length`."""
    new = state.shape[1]
    latest = [states[:, max(new - length, 0) :] for states in inputs]
    kept = torch.stack(latest) if latest else state.new_zeros(0, len(state), min(new, length), state.shape[2])
    if memory is None or length <= new:
        return kept
    return torch.cat([memory[:, :, -(length - new) :].to(kept.dtype), kept], dim=2)
