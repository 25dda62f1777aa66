"""The ALBERT encoder of every family: embeddings, attention, and the one layer that all steps share.

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
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from adadepth.families.contract import DepthModel
from adadepth.families.shared.albert.configuration import AlbertShape
from adadepth.families.shared.albert.packed_attention import Attend, Memory, Refresh, attend_packed, remember
from adadepth.families.shared.encoders import check_words
from adadepth.families.shared.layers import Product, activated, linear_in_float32


def may_wait(device: torch.device, *, training: bool) -> bool:
    """Whether the host may read what a device has computed: on a CPU, and outside training (decision 0003).

    Elsewhere the answer would empty the queue of a training step, and in a compiled graph it would break the graph.
    """
    return not torch.compiler.is_compiling() and (not training or device.type == "cpu")


def attention_mask_for(config: AlbertShape, states: Tensor, valid: Tensor | None, *, training: bool) -> Any:
    """The mask in the form that the attention implementation wants.

    Args:
        config: Of the model.
        states: (B, T, *), for its shape, type and device.
        valid: 1 at real tokens, (B, T); None: all are, and there is no mask. That a mask says the same, for which
            attention has a faster kernel, is asked only where the host may wait for the answer.
        training: Whether the model is.
    """
    may_skip = may_wait(states.device, training=training)
    return create_bidirectional_mask(
        config=config, inputs_embeds=states, attention_mask=valid, allow_is_bidirectional_skip=valid is None or may_skip
    )


class PositionEmbedding(nn.Embedding):
    """The embeddings of positions; a class of its own so that initialisation can find it, as is the next one."""


class TypeEmbedding(nn.Embedding):
    """The embeddings of segment types, which are columns where positions are rows."""


def sinusoids(positions: int, width: int, deviation: float) -> Tensor:
    """Sines and cosines of wavelengths from 2 to 4 P in geometric progression, (P, width).

    Vaswani et al. 2017 (arXiv 1706.03762, section 3.5), with the wavelengths that P positions can tell apart.
    Neighbours are alike from the start, where with random positions a model must learn who is next to whom.

    Args:
        positions: P.
        width: Even.
        deviation: Of the entries: the amplitude is its square root of two.
    """
    shares = torch.linspace(0.0, 1.0, width // 2)
    angles = torch.arange(positions).unsqueeze(1) * (math.pi * (2.0 * positions) ** -shares)
    return math.sqrt(2.0) * deviation * torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


class AlbertEmbeddings(nn.Module):
    """Sum of word, segment and position embeddings, normalised: LN(word + type + position), (B, T, E)."""

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
        """Embed. `words` are ids (B, T) or already embedded words (B, T, E)."""
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
    """softmax(Q K' / sqrt(d) + mask) V, returning the weights too; the interface's slow and readable member."""
    scores = query @ key.transpose(-1, -2) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.dropout(scores.softmax(dim=-1), p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class AlbertAttention(nn.Module):
    """Multi-head self-attention with its output projection; residual and norm belong to the layer."""

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
        """Attend: (B, T, H) to (B, T, H), and the weights (B, A, T, T) where the implementation has them."""
        heads = (*state.shape[:-1], -1, self.head_size)
        projected = (project(state).view(heads).transpose(1, 2) for project in (self.query, self.key, self.value))
        context, weights = self._interface(self, *projected, attention_mask, **self._options(kwargs))
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
        """Attend with packed states, (P, H) to (P, H), and the memory that the next iteration reads."""
        # Recomputed activations need what was there, and so does a gradient.
        overwrites = not (self.training or torch.is_grad_enabled())
        memory = remember(refresh, memory, self.key(changed), self.value(changed), overwrites=overwrites)
        query, size = self.query(state), self.head_size
        attend, options = self._interface, self._options(kwargs)
        context = attend_packed(attend, self, query, memory, refresh, attention_mask, size=size, **options)
        return self._project(context, state), memory

    @property
    def _interface(self) -> Attend:
        attend: Attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        return attend

    def _options(self, given: dict[str, Any]) -> dict[str, Any]:
        dropout = self.config.attention_probs_dropout_prob if self.training else 0.0
        return {"dropout": dropout, "scaling": self.scaling, **given}

    def _project(self, context: Tensor, state: Tensor) -> Tensor:
        return self.output_dropout(self.dense(context.reshape(state.shape)))


def activation(name: str) -> nn.Module:
    """An activation of transformers; the tanh form of gelu as one kernel, which spares a CPU half of the block's time.

    `gelu_new` and `gelu_pytorch_tanh` are one formula: the first is written out in eight elementwise steps.
    """
    return ACT2FN["gelu_pytorch_tanh" if name == "gelu_new" else name]


class HaltingProjection(nn.Linear):
    """The linear map of a halting unit to one logit, computed in float32 whatever the model's precision.

    A class of its own so that initialisation can find it: modules without direct parameters are passed over.

    Args:
        width: H.
        bias_init: What the bias is initialised to.
    """

    def __init__(self, width: int, bias_init: float) -> None:
        super().__init__(width, 1)
        self.bias_init = bias_init

    def forward(self, state: Tensor) -> Tensor:
        """Halting logits, float32: (..., H) to (..., 1)."""
        return linear_in_float32(self, state)


class AlbertLayer(GradientCheckpointingLayer):
    """The shared block, post-norm: a = LN(attention(x) + x); y = LN(W_o act(W_i a) + a)."""

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
        """One application of the block, (B, T, H) to (B, T, H), or with a refresh of packed states, (P, H) to (P, H).

        Both ways lead through this one call, because checkpointing and sharding hold on to a module's call; and every
        tensor with a gradient is an argument or a result of its own, because reentrant checkpointing sees no others.

        Args:
            state: What the block reads.
            attention_mask: In the form the attention implementation wants.
            refresh: Of packed states; None where they are not packed.
            changed: States whose keys and values are out of date, (C, H), with a refresh.
            keys: What the last packed iteration left, (M, H); None in the first one.
            values: The same.
            **kwargs: `output_attentions`, and the attention's own.

        Returns:
            The states after the block; the attention's weights, where they are asked for and the implementation has
            them; and the keys and values that the next packed iteration reads.
        """
        weights = after = None
        if refresh is None:
            context, weights = self.attention(state, attention_mask, **kwargs)
        else:
            assert changed is not None
            before = None if keys is None or values is None else Memory(keys, values)
            context, after = self.attention.packed(state, attention_mask, refresh, changed, before, **kwargs)
        attended = self.LayerNorm(context + state)
        output = self.full_layer_layer_norm(self.ffn_output(activated(self.ffn, self.activation, attended)) + attended)
        return output, weights if kwargs.get("output_attentions") else None, *(after or (None, None))


def words_of(
    input_ids: Tensor | None, inputs_embeds: Tensor | None, attention_mask: Tensor | None, table: nn.Module
) -> Tensor:
    """The batch's words, ids (B, T) or embedded (B, T, E), once the inputs have been found consistent.

    Raises:
        ValueError: If not exactly one of ids and embeddings is given, if the mask is not (B, T), or as `check_words`.
    """
    words = input_ids if inputs_embeds is None else inputs_embeds
    if words is None or (input_ids is not None and inputs_embeds is not None):
        raise ValueError("give exactly one of input_ids and inputs_embeds")
    check_words(words, table)
    if attention_mask is not None and attention_mask.shape != words.shape[:2]:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}; halting needs (batch, sequence) = "
            f"{tuple(words.shape[:2])} to know which tokens exist"
        )
    return words


class OneBlock(DepthModel):
    """How often a model applies its ALBERT block, to how many tokens, and who normalises its losses."""

    # Its losses are normalised by `num_targets`, never by the trainer's count of items.
    accepts_loss_kwargs = False

    @property
    def max_updates(self) -> int:
        """The most updates of a unit."""
        return int(self.config.num_hidden_layers)

    @property
    def longest_sequence(self) -> int | None:
        """The most tokens it has positions for."""
        return int(self.config.max_position_embeddings)

    @property
    def vocabulary_size(self) -> int | None:
        """Pieces that it has embeddings for."""
        return int(self.config.vocab_size)

    @property
    def least_updates(self) -> int:
        """The fewest updates that a batch of training can need, whatever its units decide."""
        return 1

    def least_activations(self, lengths: Sequence[int], recomputed: bool) -> dict[str, int]:
        """The states, the inner states, and attention probabilities where they are written down; not the logits.

        Which tokens have logits, the masking decides.
        """
        config, tokens, updates = self.config, sum(lengths), self.least_updates
        at_once = 1 if recomputed else updates
        found = {
            "states": updates * tokens * config.hidden_size,
            "feed-forward": at_once * tokens * config.intermediate_size,
        }
        if config._attn_implementation == "eager":
            pairs = sum(length**2 for length in lengths)
            found["attention"] = at_once * config.num_attention_heads * pairs
        return found


class SharedBlockModel(OneBlock, PreTrainedModel):
    """What all models have in common that apply one ALBERT block again and again."""

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
        if isinstance(module, HaltingProjection):
            init.constant_(module.bias, module.bias_init)
