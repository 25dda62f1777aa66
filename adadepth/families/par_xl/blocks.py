"""A block: the branches of the operations that it can run, and their mix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from adadepth.errors import ConfigError, DataError
from adadepth.families.loading import StrictLoading
from adadepth.families.par_xl.adaptive_softmax import AdaptiveEmbedding, init_glorot
from adadepth.families.par_xl.attention import (
    Context,
    ParXLCache,
    Positions,
    RelativeAttention,
    branch_norm,
    check_cache,
    count_cached_positions,
    position_biases,
    relative_positions,
)
from adadepth.families.par_xl.configuration import OPERATIONS, ParXLConfig
from adadepth.families.shared.encoders import check_words
from adadepth.families.shared.layers import Dropout, Product
from adadepth.halting.trace import DepthTrace, Execution, Operations

ATTENTION, FEED_FORWARD, IDENTITY = range(3)  # in the order of OPERATIONS

# The operations of a block that run, each with its weight; None: it runs alone, and nothing is multiplied.
Mix = Mapping[int, Tensor | None]


def make_path_mixes(path: Iterable[int]) -> list[Mix]:
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


@dataclass
class ParXLModelOutput(ModelOutput):
    """What the blocks make of a segment.

    Attributes:
        last_hidden_state: What the output layer reads, (B, T, d).
        memory: For the next segment of the same rows, (A, B, M', d) with M' up to the context's, detached; None where a
            cache holds the text so far.
        past_key_values: The cache that was given or asked for, with this segment.
        hidden_states: The embeddings and the state after every block, N + 1 tensors (B, T, d), on request.
        attentions: The weights of every block that attended, (B, h, T, M + T) each, on request.
    """

    last_hidden_state: Tensor | None = None
    memory: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class ParXLOutput(ModelOutput):
    """Predictions of one segment.

    Attributes:
        loss: Sum of `loss_parts`, when labels or targets are given.
        loss_parts: `lm`, and `latency` where it has a weight: normalised and weighted.
        logits: Log-probabilities of the next token, float32, (B, T, V); not with targets.
        token_losses: Of every target in row-major order, nats, float32, detached.
        memory: See `ParXLModelOutput`, as for the three that follow.
        past_key_values: See there.
        hidden_states: See there.
        attentions: See there.
        gate_probabilities: Of a supernet softmax(a), without noise, float32, (N, 3), differentiable.
        trace: Which operations ran, with which weights.
    """

    loss: Tensor | None = None
    loss_parts: dict[str, Tensor] | None = None
    logits: Tensor | None = None
    token_losses: Tensor | None = None
    memory: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    gate_probabilities: Tensor | None = None
    trace: DepthTrace | None = None


def one_hot(path: Sequence[int], device: torch.device) -> Tensor:
    """The weights of a path of N operations, float32, (N, 3)."""
    return nn.functional.one_hot(torch.tensor(path, device=device), len(OPERATIONS)).float()


def make_architecture_trace(weights: Tensor, mixes: Sequence[Mix], real: Tensor, remembered: int) -> DepthTrace:
    """What ran: weights (N, 3) and mixes of the blocks, which of the tokens are no padding (B, T), and M."""
    executed = [[operation in mix for operation in range(len(OPERATIONS))] for mix in mixes]
    return DepthTrace(
        unit="architecture",
        updates=(1.0 - weights[:, IDENTITY]).sum(dim=0, keepdim=True),
        valid=torch.ones(1, dtype=torch.bool, device=real.device),
        max_updates=len(mixes),
        execution=Execution(
            sum(any(operation != IDENTITY for operation in mix) for mix in mixes),
            tokens=real.sum(dim=1),
            width=real.shape[1],
            memory_length=remembered,
        ),
        operations=Operations(weights, executed=torch.tensor(executed, device=real.device)),
    )


class ParXLPreTrainedModel(StrictLoading, PreTrainedModel):
    """What all models of the family have in common: loading, initialisation, and the words that they read."""

    config: ParXLConfig
    config_class = ParXLConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["ParXLBlock"]
    _skip_keys_device_placement = ["past_key_values"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        glorot = self.config.initializer == "glorot"
        if glorot:
            init_glorot(module)
        for name, parameter in module.named_parameters(recurse=False):
            if name.startswith("position_bias"):
                # The original's shape, (1, h, 1, d / h), counts as h inputs and d outputs.
                fans = self.config.num_attention_heads + self.config.hidden_size
                init.normal_(parameter, std=(2.0 / fans) ** 0.5 if glorot else self.config.initializer_range)

    def get_input_embeddings(self) -> nn.Module:
        """The table of all words; where words are tied and in clusters, the module with a table for each."""
        words = self._words
        return words if len(words.clusters) > 1 else words.tables[0]

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the table of all words.

        Raises:
            ConfigError: If words are tied and in clusters.
        """
        if len(self._words.clusters) > 1:
            raise ConfigError(f"cutoffs={self.config.cutoffs}: with tied words there is no single table to replace")
        self._words.set_last(value)

    @property
    def _words(self) -> AdaptiveEmbedding:
        found = self.base_model.embedding
        assert isinstance(found, AdaptiveEmbedding)
        return found


class ParXLModel(ParXLPreTrainedModel):
    """Embedding and blocks; each block has modules for the operations that it can run, and for no others.

    Args:
        config: Widths and switches.
        alone: Whether it is no part of a model that initialises its weights together with those of a head.
    """

    def __init__(self, config: ParXLConfig, *, alone: bool = True) -> None:
        super().__init__(config)
        cutoffs = config.cutoffs if config.tie_word_embeddings else ()
        widths = config.proj_dims if config.tie_word_embeddings else None
        self.embedding = AdaptiveEmbedding(config.vocab_size, config.hidden_size, cutoffs, config.proj_factor, widths)
        self.attending = config.attending
        self.blocks = nn.ModuleList(
            ParXLBlock(config, operations, layer=sum(before < number for before in self.attending))
            for number, operations in enumerate(config.operations)
        )
        if config.share_position_bias and self.attending:
            self.position_bias_u, self.position_bias_v = position_biases(config)
        self.dropout = Dropout(config.hidden_dropout_prob)
        last = config.output_dropout_prob
        self.output_dropout = Dropout(config.hidden_dropout_prob if last is None else last)
        self._is_alone = alone
        self.post_init()

    def init_weights(self) -> None:
        """Draw the initial weights, unless the whole model does."""
        if self._is_alone:
            super().init_weights()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        memory: Tensor | None = None,
        mixes: Sequence[Mix] | None = None,
        context: Context | None = None,
    ) -> ParXLModelOutput:
        """Run the blocks.

        Args:
            input_ids: (B, T).
            attention_mask: 0 at padding, 1 elsewhere, of all positions so far and the new ones, (B, M + T).
            past_key_values: The text so far, as keys and values; the new tokens are added to it.
            inputs_embeds: Vectors of the embedding instead of `input_ids`, (B, T, d).
            use_cache: Make a `ParXLCache` where none is given.
            output_attentions: Return the weights of attention, which are then computed without a fused kernel.
            output_hidden_states: Return the states between blocks.
            memory: The text so far, as the states that blocks read, (A, B, M, d) with any M, or None.
            mixes: What runs in each block; None in a fixed network.
            context: What attention sees; None: as configured.

        Raises:
            ConfigError: If a network without an architecture is not told what runs.
            DataError: If inputs do not fit each other, the memory or the mask.
        """
        config = self.config
        if (input_ids is None) == (inputs_embeds is None):
            raise DataError("input_ids and inputs_embeds: exactly one of them is needed")
        given = input_ids if inputs_embeds is None else inputs_embeds
        assert given is not None
        check_words(given, self.embedding)
        words = self.embedding(given) if inputs_embeds is None else given
        state = self.dropout(words * config.hidden_size**0.5)
        past = self._past_of_blocks(memory, state)
        if use_cache and past_key_values is None:
            past_key_values = ParXLCache(config)
        positions = self._positions(state, memory, past_key_values, attention_mask, context, output_attentions)
        states, weights = [state], []
        for block, mix, block_memory in zip(self.blocks, mixes or self._mixes(), past, strict=True):
            state, attended = block(
                states[-1], tuple(mix), block_memory, positions, *mix.values(), past_key_values=past_key_values
            )
            states.append(state)
            weights += [] if attended is None else [attended]
        wants_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        length = config.memory_length if context is None else context.memory_length
        read = [states[number] for number in self.attending]
        return ParXLModelOutput(
            last_hidden_state=self.output_dropout(state),
            memory=_remember(read, memory, state, length) if past_key_values is None else None,
            past_key_values=past_key_values,
            hidden_states=tuple(states) if wants_states else None,
            attentions=tuple(weights) if positions.wants_weights else None,
        )

    def _mixes(self) -> list[Mix]:
        if self.config.architecture is None:
            raise ConfigError("architecture=None: ParXLModel runs a fixed network; ParXLSupernet has gates")
        return make_path_mixes(self.config.path)

    def _positions(
        self,
        state: Tensor,
        memory: Tensor | None,
        cache: Cache | None,
        attention_mask: Tensor | None,
        context: Context | None,
        wants_weights: bool | None,
    ) -> Positions:
        """What all blocks share, for new states (B, T, d) behind a memory or what a cache keeps."""
        config = self.config
        context = context or Context(config.memory_length, config.clamp_length, config.same_length)
        shared = (self.position_bias_u, self.position_bias_v) if hasattr(self, "position_bias_u") else None
        remembered = count_memory_positions(memory, cache)
        length = state.shape[1]
        if attention_mask is not None and self.attending:
            # A cache may have dropped what the mask still knows.
            attention_mask = _last_positions(
                attention_mask, remembered + length, length + (remembered if cache is None else cache.get_seq_length())
            )
        wants_weights = config.output_attentions if wants_weights is None else wants_weights
        positions = relative_positions(length, remembered, context, state, shared, attention_mask)
        return positions._replace(wants_weights=wants_weights)

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


def count_memory_positions(memory: Tensor | None, cache: Cache | None) -> int:
    """M, the positions before a segment that attention can see.

    Raises:
        DataError: If both a memory and a cache are given, or a cache of fixed size.
    """
    if cache is None:
        return 0 if memory is None else memory.shape[2]
    if memory is not None:
        raise DataError("memory and past_key_values: both hold the text so far; pass one of them, without use_cache")
    check_cache(cache)
    return count_cached_positions(cache)


def _last_positions(attention_mask: Tensor, keys: int, whole: int) -> Tensor:
    """The mask of the positions that attention can see, (B, L), of one of the whole text."""
    if attention_mask.dim() != 2 or attention_mask.shape[1] != whole:
        raise DataError(
            f"attention_mask of shape {tuple(attention_mask.shape)}: needed is (rows, {whole}), of the text so far and "
            "the new tokens"
        )
    return attention_mask[:, -keys:]


@torch.no_grad()
def _remember(inputs: Sequence[Tensor], memory: Tensor | None, state: Tensor, length: int) -> Tensor:
    """The last positions of what attention saw: inputs of A blocks (B, T, d) behind (A, B, M, d), at most `length`."""
    new = state.shape[1]
    latest = [states[:, max(new - length, 0) :] for states in inputs]
    kept = torch.stack(latest) if latest else state.new_zeros(0, len(state), min(new, length), state.shape[2])
    if memory is None or length <= new:
        return kept
    return torch.cat([memory[:, :, -(length - new) :].to(kept.dtype), kept], dim=2)
