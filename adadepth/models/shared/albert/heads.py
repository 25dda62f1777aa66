"""Pretraining heads shared by all ALBERT families: masked words and sentence order.

Shape legend: B batch, T tokens, P predicted positions, E embedding width, H hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from adadepth.models.shared.albert.block import activation
from adadepth.models.shared.albert.configuration import AlbertShape
from adadepth.models.shared.losses import LossTerm, sum_cross_entropy


class MaskedWordsHead(nn.Module):
    """Masked-language-model head, whose logits, (..., V), are LN(act(W h)) times the word embeddings."""

    def __init__(self, config: AlbertShape) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self.activation = activation(config.hidden_act)
        self.LayerNorm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.embedding_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, state: Tensor) -> Tensor:
        """Return the vocabulary logits, (..., V), of states, (..., H)."""
        return self.decoder(self.LayerNorm(self.activation(self.dense(state))))


class SentenceOrderHead(nn.Module):
    """Classifier of the sentence order (2 classes) on the pooled first token, without dropout, as published."""

    def __init__(self, config: AlbertShape) -> None:
        super().__init__()
        self.classifier = nn.Linear(config.hidden_size, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        """Return the sentence-order logits, (B, 2), of pooled first tokens, (B, H)."""
        return self.classifier(pooled)


class PretrainingHeads(PreTrainedModel):
    """Mixin for models with an ALBERT encoder, a masked-words head and an optional sentence-order head.

    Attributes:
        has_sentence_order: Whether the model has the sentence-order head, at `sop_classifier`.
    """

    _tied_weights_keys = {
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    }
    has_sentence_order = True

    def make_heads(self, config: AlbertShape) -> None:
        """Create the pretraining heads in a model that already has its encoder."""
        self.predictions = MaskedWordsHead(config)
        if self.has_sentence_order:
            self.sop_classifier = SentenceOrderHead(config)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, MaskedWordsHead):
            init.zeros_(module.bias)

    def get_output_embeddings(self) -> nn.Linear:
        """Return the output layer of the masked-words head, tied to the word embeddings."""
        return self.predictions.decoder

    def set_output_embeddings(self, value: nn.Linear) -> None:
        """Replace the output layer of the masked-words head, and use the bias of the new one."""
        self.predictions.decoder = value
        self.predictions.bias = value.bias

    def count_predicted(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the numbers of targets that normalise the loss parts `mlm` and `sop`, if the batch has labels."""
        labels = {"mlm": batch.get("labels")}
        if self.has_sentence_order:
            labels["sop"] = batch.get("sentence_order_label")
        return {name: (targets >= 0).sum() for name, targets in labels.items() if targets is not None}

    def predict_words(self, result: Any, state: Tensor, labels: Tensor | None) -> dict[str, LossTerm]:
        """Compute the vocabulary logits of masked words, and store them in the model's output.

        If there are labels, also set its token losses and return the loss part `mlm`.

        Args:
            result: Output with the fields `prediction_logits`, (B, T, V), or (P, V) if there are labels, and
                `token_losses`, (P,).
            state: States after the encoder, (B, T, H).
            labels: Original ids at the positions to predict, negative elsewhere, (B, T).
        """
        if labels is None:
            result.prediction_logits = self.predictions(state)
            return {}
        labels = labels.flatten()
        slots = (labels >= 0).nonzero().squeeze(1)  # waits for the device, once
        result.prediction_logits = self.predictions(state.flatten(0, 1)[slots])
        losses = nn.functional.cross_entropy(result.prediction_logits.float(), labels[slots], reduction="none")
        result.token_losses = losses.detach()
        return {"mlm": LossTerm(losses.sum(), torch.full_like(losses.sum(), len(slots)))}

    def predict_order(self, result: Any, pooled: Tensor, labels: Tensor | None) -> dict[str, LossTerm]:
        """Compute the sentence-order logits, store them in the model's output, and return the loss part `sop`.

        Args:
            result: Output with the field `sop_logits`, (B, 2).
            pooled: Pooled first tokens, (B, H).
            labels: 0 for original order, 1 for swapped order, negative for no label, (B,).
        """
        result.sop_logits = self.sop_classifier(pooled)
        return {} if labels is None else {"sop": sum_cross_entropy(result.sop_logits, labels)}
