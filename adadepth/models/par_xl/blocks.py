"""Blocks of the PAR Transformer-XL, each a weighted mix of operations, and the base model of embedding and blocks.

Shape legend: B rows, T new tokens, M positions before them, L = M + T keys, N blocks, A attending blocks, d width, h
heads, V words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils.generic import can_return_tuple

from adadepth.errors import ConfigError, DataError
from adadepth.halting.trace import DepthTrace, Execution, Operations
from adadepth.models.loading import StrictLoading
from adadepth.models.par_xl.adaptive_softmax import AdaptiveEmbedding, init_glorot
from adadepth.models.par_xl.attention import (
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
from adadepth.models.par_xl.configuration import OPERATIONS, ParXLConfig
from adadepth.models.shared.encoders import check_words
from adadepth.models.shared.generation import CACHE_ARGUMENT, CacheOutput, accept_former_name
from adadepth.models.shared.layers import Dropout, Product
from adadepth.runtime.devices import fill_values

ATTENTION, FEED_FORWARD, IDENTITY = range(3)  # in the order of OPERATIONS

# Weight of each operation that a block runs; None: the block runs this operation alone, without a factor.
Mix = Mapping[int, Tensor | None]


def make_path_mixes(path: Iterable[int]) -> list[Mix]:
    """Return weights that select a single operation in every block, given the path of operation numbers."""
    return [{operation: None} for operation in path]


class FeedForward(nn.Module):
    """Feed-forward layer W_2 drop(act(W_1 x + b_1)) + b_2, without the residual connection."""

    def __init__(self, config: ParXLConfig) -> None:
        super().__init__()
        self.inner = Product(config.hidden_size, config.intermediate_size)
        self.output = Product(config.intermediate_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.dropout = Dropout(config.activation_dropout_prob)
        self.norm = branch_norm(config)

    def forward(self, state: Tensor) -> Tensor:
        """Apply the layer to states, (B, T, d), at every position independently."""
        return self.output(self.dropout(self.activation(self.inner(state))))


class ParXLBlock(GradientCheckpointingLayer):
    """Block that computes a weighted mix of attention, feed-forward layer and identity.

        per_branch    w_s LN(x + drop(attention(x)))  +  w_f LN(x + drop(ffn(x)))  +  w_- x
        paper         LN(x  +  w_s drop(attention(x))  +  w_f drop(ffn(x)))

    Args:
        config: Configuration with widths and switches.
        operations: Operations that the block can run, a string of letters of `OPERATIONS`. Other operations have no
            modules.
        layer: Index of the block among the attending ones.
    """

    def __init__(self, config: ParXLConfig, operations: str, layer: int = 0) -> None:
        super().__init__()
        self.attention = RelativeAttention(config, layer) if "s" in operations else None
        self.feed_forward = FeedForward(config) if "f" in operations else None
        paper = config.branch_norm == "paper"
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if paper else None
        self.dropout = Dropout(config.hidden_dropout_prob)

    @accept_former_name
    def forward(
        self,
        state: Tensor,
        operations: Sequence[int],
        memory: Tensor | None,
        positions: Positions,
        *weights: Tensor | None,
        cache: Cache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Run the operations of a weighted mix on the block's input.

        A mix is passed as `operations` and `weights`, because reentrant checkpointing computes gradients only of
        arguments that are tensors themselves.

        Args:
            state: States that the block reads, (B, T, d).
            operations: Operation numbers of the mix.
            memory: States of earlier positions for attention, (B, M, d), or None.
            positions: Relative positions and masks of attention.
            *weights: Weight of each operation, a scalar, or None for no factor.
            cache: Cache of earlier keys and values.

        Returns:
            The states after the block, (B, T, d), and the attention weights, (B, h, T, L), if attention ran and
            `positions` requests them.
        """
        attended: Tensor | None = None
        total: Tensor | None = None if self.norm is None else state
        for operation, weight in zip(operations, weights, strict=True):
            if operation == IDENTITY and self.norm is not None:
                continue  # the sum starts with the state
            if operation == ATTENTION:
                assert self.attention is not None
                change, attended = self.attention(state, memory, positions, cache)
                term = self._add_branch(state, change, self.attention.norm)
            elif operation == FEED_FORWARD:
                assert self.feed_forward is not None
                term = self._add_branch(state, self.feed_forward(state), self.feed_forward.norm)
            else:
                term = state
            term = term if weight is None else weight * term
            total = term if total is None else total + term
        assert total is not None
        return (total if self.norm is None else self.norm(total)), attended

    def _add_branch(self, state: Tensor, change: Tensor, norm: nn.LayerNorm | None) -> Tensor:
        """Add an operation's output to the state: LN(state + drop(change)), or only drop(change) without a norm."""
        return self.dropout(change) if norm is None else norm(self.dropout.added(state, change))


@dataclass
class ParXLModelOutput(CacheOutput):
    """Output of the PAR-XL encoder for one text segment.

    Attributes:
        last_hidden_state: Input of the output layer, (B, T, d).
        memory: Memory for the next segment of the same rows, (A, B, M', d), detached, or None with a cache. M' is at
            most the memory length of the context.
        cache: Cache with this segment added, or None without a cache.
        hidden_states: Embeddings and the state after every block, N + 1 tensors (B, T, d), if requested.
        attentions: Attention weights of every attending block, (B, h, T, M + T) each, if requested.
    """

    last_hidden_state: Tensor | None = None
    memory: Tensor | None = None
    cache: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class ParXLOutput(CacheOutput):
    """Output of a PAR-XL language model for one text segment.

    Attributes:
        loss: Sum of `loss_parts`, or None without labels and targets.
        loss_parts: Normalised and weighted parts by name: `lm`, and `latency` if it has a weight.
        logits: Log-probabilities of the next token, float32, (B, T, V), or None with targets.
        token_losses: Loss of every target in nats, in row-major order, float32, detached, (P,).
        memory: Same as in `ParXLModelOutput`.
        cache: Same as in `ParXLModelOutput`.
        hidden_states: Same as in `ParXLModelOutput`.
        attentions: Same as in `ParXLModelOutput`.
        gate_probabilities: Gate probabilities softmax(a) of a supernet without noise, float32, (N, 3), differentiable.
        trace: Trace of the operations that ran and their weights.
    """

    loss: Tensor | None = None
    loss_parts: dict[str, Tensor] | None = None
    logits: Tensor | None = None
    token_losses: Tensor | None = None
    memory: Tensor | None = None
    cache: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    gate_probabilities: Tensor | None = None
    trace: DepthTrace | None = None


def one_hot(path: Sequence[int], device: torch.device) -> Tensor:
    """Return one-hot weights for a path, the operation numbers of N blocks, float32, (N, 3)."""
    return nn.functional.one_hot(fill_values(path, device, torch.long), len(OPERATIONS)).float()


def make_architecture_trace(weights: Tensor, mixes: Sequence[Mix], real: Tensor, remembered: int) -> DepthTrace:
    """Build the depth trace of a PAR-XL network, which records the operations that ran in each block.

    Args:
        weights: Weight of every operation in every block, (N, 3).
        mixes: Mixes of the blocks.
        real: Mask of the new tokens that are not padding, boolean, (B, T).
        remembered: Number of positions before the new tokens, M.
    """
    bits = fill_values([sum(1 << operation for operation in mix) for mix in mixes], real.device, torch.long)
    operations = torch.arange(len(OPERATIONS), device=real.device)
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
        operations=Operations(weights, executed=(bits.unsqueeze(1) >> operations & 1).bool()),
    )


class ParXLPreTrainedModel(StrictLoading, PreTrainedModel):
    """Base class of all PAR-XL models: loading, initialisation and word embeddings."""

    config: ParXLConfig
    config_class = ParXLConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["ParXLBlock"]
    _skip_keys_device_placement = ["cache", "past_key_values"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        glorot = self.config.initializer == "glorot"
        if glorot:
            init_glorot(module)
        for name, parameter in module.named_parameters(recurse=False):
            if name.startswith("position_bias"):
                # The original's tensor (1, h, 1, d / h) has fan-in h and fan-out d.
                fans = self.config.num_attention_heads + self.config.hidden_size
                init.normal_(parameter, std=(2.0 / fans) ** 0.5 if glorot else self.config.initializer_range)

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding of all words.

        For tied words in clusters, this is the module with a table per cluster.
        """
        words = self._words
        return words if len(words.clusters) > 1 else words.tables[0]

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding table of all words.

        Raises:
            ConfigError: If words are tied and in clusters, and therefore in several tables.
        """
        if len(self._words.clusters) > 1:
            raise ConfigError(f"cutoffs={self.config.cutoffs}: tied embeddings have no single table to replace")
        self._words.set_last(value)

    @property
    def _words(self) -> AdaptiveEmbedding:
        embedding = self.base_model.embedding
        assert isinstance(embedding, AdaptiveEmbedding)
        return embedding


class ParXLModel(ParXLPreTrainedModel):
    """PAR-XL model without output layer: embedding and blocks, which contain only the operations they can run.

    Args:
        config: Configuration with widths and switches.
        alone: Whether the model initialises its own weights. This is False inside a model with an output layer.
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
        """Initialise the weights, unless a model that contains this one does."""
        if self._is_alone:
            super().init_weights()

    @accept_former_name
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        memory: Tensor | None = None,
        mixes: Sequence[Mix] | None = None,
        context: Context | None = None,
    ) -> ParXLModelOutput:
        """Compute the hidden states of a text segment.

        Args:
            input_ids: Token ids, (B, T); exclusive with `inputs_embeds`.
            attention_mask: 0 at padding, 1 elsewhere, for earlier and new positions, (B, M + T).
            cache: Cache of keys and values of the text so far; the new tokens are added to it.
            inputs_embeds: Word embeddings instead of `input_ids`, (B, T, d).
            use_cache: Whether to create a `ParXLCache` if no cache is given.
            output_attentions: Whether to return attention weights, which fused kernels do not compute.
            output_hidden_states: Whether to return the embeddings and the states after every block.
            memory: Block inputs of the text so far, (A, B, M, d) with any M, or None at the start of a text.
            mixes: Mix of operations of every block, or None in a network with an architecture.
            context: Context of attention; None: the configured one.

        Raises:
            ConfigError: If the configuration has no architecture and `mixes` is None.
            DataError: If the shapes of inputs, memory and mask do not fit each other.
        """
        config = self.config
        if (input_ids is None) == (inputs_embeds is None):
            raise DataError("input_ids, inputs_embeds: give exactly one of them")
        inputs = input_ids if inputs_embeds is None else inputs_embeds
        assert inputs is not None
        check_words(inputs, self.embedding)
        words = self.embedding(inputs) if inputs_embeds is None else inputs
        state = self.dropout(words * config.hidden_size**0.5)
        block_memories = self._split_memory(memory, state)
        if use_cache and cache is None:
            cache = ParXLCache(config)
        positions = self._build_positions(state, memory, cache, attention_mask, context, output_attentions)
        states, weights = [state], []
        for block, mix, block_memory in zip(self.blocks, mixes or self._build_mixes(), block_memories, strict=True):
            state, attended = block(
                states[-1], tuple(mix), block_memory, positions, *mix.values(), **{CACHE_ARGUMENT: cache}
            )
            states.append(state)
            weights += [] if attended is None else [attended]
        returns_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        length = config.memory_length if context is None else context.memory_length
        attended_states = [states[number] for number in self.attending]
        return ParXLModelOutput(
            last_hidden_state=self.output_dropout(state),
            memory=_remember(attended_states, memory, state, length) if cache is None else None,
            cache=cache,
            hidden_states=tuple(states) if returns_states else None,
            attentions=tuple(weights) if positions.wants_weights else None,
        )

    def _build_mixes(self) -> list[Mix]:
        if self.config.architecture is None:
            raise ConfigError(
                "architecture=None: ParXLModel needs a fixed architecture; ParXLSupernet searches for one"
            )
        return make_path_mixes(self.config.path)

    def _build_positions(
        self,
        state: Tensor,
        memory: Tensor | None,
        cache: Cache | None,
        attention_mask: Tensor | None,
        context: Context | None,
        wants_weights: bool | None,
    ) -> Positions:
        """Build the relative positions and masks for new states, (B, T, d), after a memory or cache.

        All blocks share them.
        """
        config = self.config
        context = context or Context(config.memory_length, config.clamp_length, config.same_length)
        shared = (self.position_bias_u, self.position_bias_v) if hasattr(self, "position_bias_u") else None
        remembered = count_memory_positions(memory, cache)
        length = state.shape[1]
        if attention_mask is not None and self.attending:
            # The mask covers the whole text; a cache may have dropped its first positions.
            attention_mask = _select_visible_mask(
                attention_mask, remembered + length, length + (remembered if cache is None else cache.get_seq_length())
            )
        wants_weights = config.output_attentions if wants_weights is None else wants_weights
        positions = relative_positions(length, remembered, context, state, shared, attention_mask)
        return positions._replace(wants_weights=wants_weights)

    def _split_memory(self, memory: Tensor | None, state: Tensor) -> list[Tensor | None]:
        """Return the memory of every attention block, (B, M, d), without gradients, or None for other blocks."""
        block_memories: list[Tensor | None] = [None] * len(self.blocks)
        if memory is None:
            return block_memories
        rows, _, width = state.shape
        blocks = len(self.attending)
        if memory.dim() != 4 or (*memory.shape[:2], memory.shape[3]) != (blocks, rows, width):
            raise DataError(
                f"memory of shape {tuple(memory.shape)}: must be ({blocks}, {rows}, any length, {width}): "
                "attending blocks x rows x positions x width"
            )
        for number, remembered in zip(self.attending, memory.detach().to(state.dtype), strict=True):
            block_memories[number] = remembered
        return block_memories


def count_memory_positions(memory: Tensor | None, cache: Cache | None) -> int:
    """Return the number M of earlier positions that a segment's queries can attend to.

    Raises:
        DataError: If both a memory and a cache are given, or the cache has a fixed size.
    """
    if cache is None:
        return 0 if memory is None else memory.shape[2]
    if memory is not None:
        raise DataError("memory and cache: both hold the previous text; pass one of them, without use_cache")
    check_cache(cache)
    return count_cached_positions(cache)


def _select_visible_mask(attention_mask: Tensor, keys: int, length: int) -> Tensor:
    """Return the attention mask of the last `keys` positions, (B, L), from that of the whole text, (B, `length`)."""
    if attention_mask.dim() != 2 or attention_mask.shape[1] != length:
        raise DataError(
            f"attention_mask of shape {tuple(attention_mask.shape)}: must be (rows, {length}), for the previous "
            "text and the new tokens"
        )
    return attention_mask[:, -keys:]


@torch.no_grad()
def _remember(inputs: Sequence[Tensor], memory: Tensor | None, state: Tensor, length: int) -> Tensor:
    """Return the memory for the next segment, (A, B, M', d): the last positions of this memory and segment.

    Args:
        inputs: Inputs of the A attending blocks, (B, T, d) each.
        memory: Memory of this segment, (A, B, M, d), or None.
        state: State after the last block, (B, T, d). It gives the shape of the memory if no block attends.
        length: Maximum length M' of the result.
    """
    new = state.shape[1]
    latest = [states[:, max(new - length, 0) :] for states in inputs]
    updated = torch.stack(latest) if latest else state.new_zeros(0, len(state), min(new, length), state.shape[2])
    if memory is None or length <= new:
        return updated
    return torch.cat([memory[:, :, -(length - new) :].to(updated.dtype), updated], dim=2)
