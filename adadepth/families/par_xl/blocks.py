"""A block: the branches of the operations that it can run, and their mix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor, nn
from transformers import Cache
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from adadepth.families.par_xl.attention import Positions, RelativeAttention, branch_norm
from adadepth.families.par_xl.configuration import ParXLConfig
from adadepth.families.shared.dropout import Dropout
from adadepth.families.shared.products import Product

ATTENTION, FEED_FORWARD, IDENTITY = range(3)  # in the order of OPERATIONS

# The operations of a block that run, each with its weight; None: it runs alone, and nothing is multiplied.
Mix = Mapping[int, Tensor | None]


def run_alone(path: Iterable[int]) -> list[Mix]:
    """The mixes of blocks that each run one operation."""
    return [{operation: None} for operation in path]


class FeedForward(nn.Module):
    """W_2 drop(act(W_1 x + b_1)) + b_2, (B, T, d) to (B, T, d); the residual belongs to the block."""

    def __init__(self, config: ParXLConfig) -> None:
        super().__init__()
        self.inner = Product(config.hidden_size, config.intermediate_size)
        self.output = Product(config.intermediate_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.dropout = Dropout(config.activation_dropout_prob)
        self.norm = branch_norm(config)

    def forward(self, state: Tensor) -> Tensor:
        """Transform each position by itself."""
        return self.output(self.dropout(self.activation(self.inner(state))))


class ParXLBlock(GradientCheckpointingLayer):
    """The mix of the operations that run.

        per_branch    w_s LN(x + drop(attention(x)))  +  w_f LN(x + drop(ffn(x)))  +  w_- x
        paper         LN(x  +  w_s drop(attention(x))  +  w_f drop(ffn(x)))

    Args:
        config: Widths and switches.
        operations: Those that it can run; it has no modules for others.
        layer: Of the blocks that attend, which one it is.
    """

    def __init__(self, config: ParXLConfig, operations: str, layer: int = 0) -> None:
        super().__init__()
        self.attention = RelativeAttention(config, layer) if "s" in operations else None
        self.feed_forward = FeedForward(config) if "f" in operations else None
        paper = config.branch_norm == "paper"
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if paper else None
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        state: Tensor,
        operations: Sequence[int],
        memory: Tensor | None,
        positions: Positions,
        *weights: Tensor | None,
        past_key_values: Cache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Run: state (B, T, d), and for attention the memory (B, M, d) and the positions, to (B, T, d).

        `operations` and `weights` are a mix, apart: reentrant checkpoints find gradients of plain arguments alone.
        Where attention ran and the positions want them, its weights are returned too, (B, h, T, L).
        """
        attended: Tensor | None = None
        total: Tensor | None = None if self.norm is None else state
        for operation, weight in zip(operations, weights, strict=True):
            if operation == IDENTITY and self.norm is not None:
                continue  # the state itself is in the sum already
            if operation == ATTENTION:
                assert self.attention is not None
                change, attended = self.attention(state, memory, positions, past_key_values)
                term = self._added(state, change, self.attention.norm)
            elif operation == FEED_FORWARD:
                assert self.feed_forward is not None
                term = self._added(state, self.feed_forward(state), self.feed_forward.norm)
            else:
                term = state
            term = term if weight is None else weight * term
            total = term if total is None else total + term
        assert total is not None
        return (total if self.norm is None else self.norm(total)), attended

    def _added(self, state: Tensor, change: Tensor, norm: nn.LayerNorm | None) -> Tensor:
        """A branch with its residual and its norm; without a norm of its own, what it adds to the state."""
        return self.dropout(change) if norm is None else norm(self.dropout.added(state, change))
