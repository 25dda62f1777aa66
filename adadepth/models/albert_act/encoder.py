"""The encoder of ACT-ALBERT: embeddings, one shared layer, and the loop that lets tokens halt.

Module names follow the state dict of the published checkpoints. Shape legend: B batch, T tokens, E embedding width,
H hidden width, F feed-forward width, N iterations that ran, A attention heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from adadepth.halting.act import (
    ActState,
    CapRemainder,
    StateRule,
    act_step,
    init_act,
    update_result,
    update_stream,
)
from adadepth.models.albert_act.configuration import AlbertActConfig


class AlbertActEmbeddings(nn.Module):
    """Sum of word, segment and position embeddings, normalised: LN(word + type + position), (B, T, E)."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.embedding_size, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.embedding_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.embedding_size)
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


class AlbertActAttention(nn.Module):
    """Multi-head self-attention with its output projection; residual and norm belong to the layer."""

    is_causal = False

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.config = config
        self.head_size = config.hidden_size // config.num_attention_heads
        self.scaling = self.head_size**-0.5
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.output_dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, state: Tensor, attention_mask: Tensor | None, **kwargs: object) -> tuple[Tensor, Tensor | None]:
        """Attend: (B, T, H) to (B, T, H), and the weights (B, A, T, T) where the implementation has them."""
        heads = (*state.shape[:-1], -1, self.head_size)
        query, key, value = (
            project(state).view(heads).transpose(1, 2) for project in (self.query, self.key, self.value)
        )
        attend: Callable[..., tuple[Tensor, Tensor | None]] = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention
        )
        dropout = self.config.attention_probs_dropout_prob if self.training else 0.0
        context, weights = attend(
            self, query, key, value, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs
        )
        return self.output_dropout(self.dense(context.reshape(state.shape))), weights


class HaltingProjection(nn.Linear):
    """The linear map of the halting unit, computed in float32 whatever the model's precision.

    A class of its own so that initialisation can find it: modules without direct parameters are passed over.
    """

    def forward(self, state: Tensor) -> Tensor:
        """Halting logits, float32: (..., H) to (..., 1)."""
        with torch.autocast(state.device.type, enabled=False):
            return nn.functional.linear(state.float(), self.weight.float(), self.bias.float())


class HaltingUnit(nn.Module):
    """Probability of halting after an update: p = sigmoid(w y + b)."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.dense = HaltingProjection(config.hidden_size, 1)

    def forward(self, state: Tensor) -> Tensor:
        """(B, T, H) to (B, T), float32."""
        return self.dense(state).squeeze(-1).sigmoid()


class AlbertActLayer(GradientCheckpointingLayer):
    """The shared block, post-norm: a = LN(attention(x) + x); y = LN(W_o act(W_i a) + a). It owns the halting unit."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.attention = AlbertActAttention(config)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.ffn = nn.Linear(config.hidden_size, config.intermediate_size)
        self.ffn_output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.full_layer_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.act = HaltingUnit(config)

    def forward(self, state: Tensor, attention_mask: Tensor | None, **kwargs: object) -> Tensor:
        """One application of the block, (B, T, H) to (B, T, H). The halting unit is the encoder's to call."""
        attended = self.LayerNorm(self.attention(state, attention_mask, **kwargs)[0] + state)
        return self.full_layer_layer_norm(self.ffn_output(self.activation(self.ffn(attended))) + attended)


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
