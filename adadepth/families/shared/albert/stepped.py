"""The ALBERT encoder of models that step: what their heads stand on, and a model of its own.

Shape legend: B batch, A sequences that still run, T tokens, E embedding width, H hidden width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils.generic import can_return_tuple

from adadepth.families.shared.albert.block import AlbertEmbeddings, SharedBlockModel, words_of
from adadepth.families.shared.albert.configuration import AlbertShape
from adadepth.families.shared.albert.stepper import PaddedRows, SharedLayer


class SteppedAlbert(SharedBlockModel):
    """The ALBERT encoder in a model with heads, its parameters named as ACT-ALBERT's without the halting unit.

    It has no forward pass, and it draws no weights: the model does, of encoder and heads together, once both are made.

    Args:
        config: Its shape.
        add_pooling_layer: Whether first tokens are pooled.
    """

    def __init__(self, config: AlbertShape, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = AlbertEmbeddings(config)
        self.encoder = SharedLayer(config)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if add_pooling_layer else None
        self.post_init()

    def init_weights(self) -> None:
        """Leave the weights to the model that this is a part of."""

    def get_input_embeddings(self) -> nn.Embedding:
        """The word embeddings."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the word embeddings."""
        self.embeddings.word_embeddings = value

    def pooled(self, state: Tensor) -> Tensor:
        """tanh(W h_0) of the first token: (A, T, H) to (A, H)."""
        assert self.pooler is not None
        return torch.tanh(self.pooler(state[:, 0]))


class SteppedAlbertModel(SteppedAlbert):
    """An ALBERT encoder as a model of its own, which draws its own weights; no model with heads may contain one."""

    draws_alone = True

    def init_weights(self) -> None:
        """Draw weights."""
        SharedBlockModel.init_weights(self)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPooling:
        """Take all N steps; without heads nothing says when to stop.

        Args:
            input_ids: Token ids (B, T); or give `inputs_embeds` (B, T, E).
            attention_mask: 1 at real tokens, 0 at padding, (B, T).
            token_type_ids: Segment of each token, (B, T).
            position_ids: (B, T) or (1, T).
            inputs_embeds: Word embeddings instead of ids.
            **kwargs: `output_hidden_states`, `output_attentions`, `return_dict`, and the attention's own.
        """
        words = words_of(input_ids, inputs_embeds, attention_mask, self.get_input_embeddings())
        embedded = self.embeddings(words, token_type_ids, position_ids)
        state = self.encoder.embedding_hidden_mapping_in(embedded)
        rows = PaddedRows(self.config, state, attention_mask, kwargs)
        for _ in range(self.max_updates):
            state = rows.update(self.encoder.albert_layer)
        return BaseModelOutputWithPooling(
            last_hidden_state=state,
            pooler_output=None if self.pooler is None else self.pooled(state),
            hidden_states=rows.hidden_states,  # type: ignore[arg-type]  # None where not chosen
            attentions=rows.attentions,
        )
