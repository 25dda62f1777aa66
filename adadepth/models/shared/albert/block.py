"""ALBERT encoder shared by several families: embeddings, attention, the shared layer, and base classes of models.

Module names follow the state dict of the published ACT-ALBERT checkpoints. Shape legend: B batch, T tokens, E embedding
width, H hidden width, A attention heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from adadepth.models.contract import DepthModel
from adadepth.models.shared.albert.configuration import AlbertShape
from adadepth.models.shared.albert.packed_attention import Attend, Memory, Refresh, attend_packed, remember
from adadepth.models.shared.encoders import check_words
from adadepth.models.shared.layers import Product, apply_linear_and_activation, init_halting_unit


def may_wait(device: torch.device, *, training: bool) -> bool:
    """Return whether the host may wait for the device: always on a CPU, else only outside training (decision 0003).

    In a training step on an accelerator, synchronising would empty the queue. It would also break a compiled graph.
    """
    return not torch.compiler.is_compiling() and (not training or device.type == "cpu")


def build_attention_mask(config: AlbertShape, states: Tensor, valid: Tensor | None, *, training: bool) -> Any:
    """Return the attention mask in the format that the attention implementation expects, or None.

    Without padding the mask is None, for which attention has a faster kernel. The mask is checked for padding only if
    the host may synchronise with the device.

    Args:
        config: Configuration of the model.
        states: Tensor with the shape, dtype and device of the states, (B, T, *).
        valid: 1 at real tokens, (B, T), or None if all tokens are real.
        training: Whether the model is in training mode.
    """
    may_skip = may_wait(states.device, training=training)
    return create_bidirectional_mask(
        config=config, inputs_embeds=states, attention_mask=valid, allow_is_bidirectional_skip=valid is None or may_skip
    )


class PositionEmbedding(nn.Embedding):
    """Position embeddings, in a class of their own so that weight initialisation can treat them separately."""


class TypeEmbedding(nn.Embedding):
    """Embeddings of token types (segments), or of the columns of a grid.

    This is a separate class so that weight initialisation recognises the embeddings.
    """


def sinusoids(positions: int, width: int, deviation: float) -> Tensor:
    """Return sinusoidal encodings with wavelengths from 2 to 4 P in geometric progression, (P, width).

    The encoding is that of Vaswani et al. 2017 (arXiv 1706.03762, section 3.5), with the wavelengths that P positions
    can resolve. It gives neighbouring positions similar embeddings at initialisation. With random embeddings, a model
    must learn which positions are neighbours.

    Args:
        positions: Number of positions P.
        width: Width of the embeddings, even.
        deviation: Standard deviation of the entries; the amplitude is sqrt(2) times as large.
    """
    shares = torch.linspace(0.0, 1.0, width // 2)
    angles = torch.arange(positions).unsqueeze(1) * (math.pi * (2.0 * positions) ** -shares)
    return math.sqrt(2.0) * deviation * torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


class AlbertEmbeddings(nn.Module):
    """Normalised sum of word, segment and position embeddings: LN(word + type + position), (B, T, E)."""

    def __init__(self, config: AlbertShape) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.embedding_size, padding_idx=config.pad_token_id)
        self.position_embeddings = PositionEmbedding(config.max_position_embeddings, config.embedding_size)
        self.token_type_embeddings = TypeEmbedding(config.type_vocab_size, config.embedding_size)
        self.LayerNorm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self, words: Tensor, token_type_ids: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        """Return the embeddings, (B, T, E), of token ids, (B, T), or of word embeddings, (B, T, E)."""
        embedded = words if words.is_floating_point() else self.word_embeddings(words)
        length, limit = embedded.shape[1], self.position_embeddings.num_embeddings
        if position_ids is None:
            if length > limit:
                raise ValueError(f"a sequence of {length} tokens is longer than max_position_embeddings={limit}")
            position_ids = torch.arange(length, device=embedded.device).unsqueeze(0)
        if token_type_ids is None:
            token_type_ids = torch.zeros(embedded.shape[:2], dtype=torch.long, device=embedded.device)
        embedded = embedded + self.token_type_embeddings(token_type_ids) + self.position_embeddings(position_ids)
        return self.dropout(self.LayerNorm(embedded))


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: object,
) -> tuple[Tensor, Tensor]:
    """Return softmax(Q K' / sqrt(d) + mask) V and the attention weights, without a fused kernel."""
    scores = query @ key.transpose(-1, -2) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.dropout(scores.softmax(dim=-1), p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class AlbertAttention(nn.Module):
    """Multi-head self-attention with output projection, without residual connection and layer norm."""

    is_causal = False

    def __init__(self, config: AlbertShape) -> None:
        super().__init__()
        self.config = config
        self.head_size = config.hidden_size // config.num_attention_heads
        self.scaling = self.head_size**-0.5
        self.query = Product(config.hidden_size, config.hidden_size)
        self.key = Product(config.hidden_size, config.hidden_size)
        self.value = Product(config.hidden_size, config.hidden_size)
        self.dense = Product(config.hidden_size, config.hidden_size)
        self.output_dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, state: Tensor, attention_mask: Tensor | None, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Return the attention output, (B, T, H), and the attention weights, (B, A, T, T) or None if not available."""
        heads = (*state.shape[:-1], -1, self.head_size)
        projected = (project(state).view(heads).transpose(1, 2) for project in (self.query, self.key, self.value))
        context, weights = self._interface(self, *projected, attention_mask, **self._build_options(kwargs))
        return self._project(context, state), weights

    def packed(
        self,
        state: Tensor,
        attention_mask: Tensor | None,
        refresh: Refresh,
        changed: Tensor,
        memory: Memory | None,
        **kwargs: Any,
    ) -> tuple[Tensor, Memory]:
        """Compute attention for packed states, (P, H); return its output and the updated keys and values."""
        # Gradients and recomputed activations need the previous memory.
        overwrites = not (self.training or torch.is_grad_enabled())
        memory = remember(refresh, memory, self.key(changed), self.value(changed), overwrites=overwrites)
        query, size = self.query(state), self.head_size
        attend, options = self._interface, self._build_options(kwargs)
        context = attend_packed(attend, self, query, memory, refresh, attention_mask, size=size, **options)
        return self._project(context, state), memory

    @property
    def _interface(self) -> Attend:
        attend: Attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        return attend

    def _build_options(self, options: dict[str, Any]) -> dict[str, Any]:
        dropout = self.config.attention_probs_dropout_prob if self.training else 0.0
        return {"dropout": dropout, "scaling": self.scaling, **options}

    def _project(self, context: Tensor, state: Tensor) -> Tensor:
        return self.output_dropout(self.dense(context.reshape(state.shape)))


def activation(name: str) -> nn.Module:
    """Return an activation function by its name in transformers. `gelu_new` runs as one kernel.

    `gelu_new` and `gelu_pytorch_tanh` are the same formula. transformers computes `gelu_new` with eight elementwise
    operations, which take half of the block's time on a CPU.
    """
    return ACT2FN["gelu_pytorch_tanh" if name == "gelu_new" else name]


class AlbertLayer(GradientCheckpointingLayer):
    """Shared post-norm block: a = LN(attention(x) + x), y = LN(W_o act(W_i a) + a)."""

    def __init__(self, config: AlbertShape) -> None:
        super().__init__()
        self.attention = AlbertAttention(config)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.ffn = Product(config.hidden_size, config.intermediate_size)
        self.ffn_output = Product(config.intermediate_size, config.hidden_size)
        self.activation = activation(config.hidden_act)
        self.full_layer_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(
        self,
        state: Tensor,
        attention_mask: Tensor | None,
        refresh: Refresh | None = None,
        changed: Tensor | None = None,
        keys: Tensor | None = None,
        values: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """Apply the block to padded states, (B, T, H), or to packed states, (P, H), if `refresh` is given.

        Dense and packed execution share this call, because checkpointing and sharding wrap the call of a module. Every
        tensor with a gradient is an argument or a result, because reentrant checkpointing sees no others.

        Args:
            state: States that the block reads, (B, T, H) or (P, H).
            attention_mask: Mask in the form of the attention implementation.
            refresh: Kernel and positions of packed attention, or None for dense execution.
            changed: States of the refreshed positions, (C, H). They are required if `refresh` is given.
            keys: Keys stored in the previous packed iteration, (M, H), or None in the first iteration.
            values: Values stored in the previous packed iteration, (M, H), or None in the first iteration.
            **kwargs: `output_attentions`, and options of the attention.

        Returns:
            The states after the block; the attention weights, or None if not requested or not supported; and the keys
            and the values for the next packed iteration, which are None in dense execution.
        """
        weights = after = None
        if refresh is None:
            context, weights = self.attention(state, attention_mask, **kwargs)
        else:
            assert changed is not None
            before = None if keys is None or values is None else Memory(keys, values)
            context, after = self.attention.packed(state, attention_mask, refresh, changed, before, **kwargs)
        attended = self.LayerNorm(context + state)
        output = self.full_layer_layer_norm(
            self.ffn_output(apply_linear_and_activation(self.ffn, self.activation, attended)) + attended
        )
        return output, weights if kwargs.get("output_attentions") else None, *(after or (None, None))


def select_inputs(
    input_ids: Tensor | None, inputs_embeds: Tensor | None, attention_mask: Tensor | None, table: nn.Module
) -> Tensor:
    """Check the inputs of a batch, and return whichever is given: token ids, (B, T), or word embeddings, (B, T, E).

    Raises:
        ValueError: If not exactly one of ids and embeddings is given, if the mask is not (B, T), or if `check_words`
            refuses the words.
    """
    words = input_ids if inputs_embeds is None else inputs_embeds
    if words is None or (input_ids is not None and inputs_embeds is not None):
        raise ValueError("input_ids, inputs_embeds: give exactly one of them")
    check_words(words, table)
    if attention_mask is not None and attention_mask.shape != words.shape[:2]:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}; halting needs (batch, sequence) = "
            f"{tuple(words.shape[:2])} to identify real tokens"
        )
    return words


class OneBlock(DepthModel):
    """Mixin for models that apply one ALBERT block repeatedly: depth limits, sizes and activation memory."""

    # `num_targets` normalises the losses, never the trainer's count of items.
    accepts_loss_kwargs = False

    @property
    def max_updates(self) -> int:
        """Maximum number of updates of a unit."""
        return int(self.config.num_hidden_layers)

    @property
    def longest_sequence(self) -> int | None:
        """Maximum sequence length in tokens, which is the number of position embeddings."""
        return int(self.config.max_position_embeddings)

    @property
    def vocabulary_size(self) -> int | None:
        """Number of tokens in the embedding table."""
        return int(self.config.vocab_size)

    @property
    def least_updates(self) -> int:
        """Smallest number of updates that any training batch runs, however early its tokens halt."""
        return 1

    def least_activations(self, lengths: Sequence[int], recomputed: bool) -> dict[str, int]:
        """Return the number of activation values that a training batch stores for the backward pass, by part.

        The values are states, inner states and, with eager attention, attention weights.

        Logits are not counted, because their number depends on the masking.

        Args:
            lengths: Sequence lengths of the batch, in tokens.
            recomputed: Whether the backward pass recomputes the activations within the block.

        Returns:
            Minimum number of values by kind of activation.
        """
        config, tokens, updates = self.config, sum(lengths), self.least_updates
        stored_updates = 1 if recomputed else updates
        counts = {
            "states": updates * tokens * config.hidden_size,
            "feed-forward": stored_updates * tokens * config.intermediate_size,
        }
        if config._attn_implementation == "eager":
            pairs = sum(length**2 for length in lengths)
            counts["attention"] = stored_updates * config.num_attention_heads * pairs
        return counts


class SharedBlockModel(OneBlock, PreTrainedModel):
    """Base class of all models that apply one ALBERT block repeatedly."""

    config: AlbertShape
    base_model_prefix = "albert"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        init_halting_unit(module)
