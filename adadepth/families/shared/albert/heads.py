"""What an ALBERT is pretrained with: masked words and sentence order, whatever says how deep it is.

Shape legend: B batch, T tokens, P predicted positions, E embedding width, H hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from adadepth.families.shared.albert.block import activation
from adadepth.families.shared.albert.configuration import AlbertShape
from adadepth.families.shared.losses import LossTerm, sum_cross_entropy


class MaskedWordsHead(nn.Module):
    """Vocabulary scores: LN(act(W h)) times the word embeddings, (..., H) to (..., V)."""

    def __init__(self, config: AlbertShape) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self.activation = activation(config.hidden_act)
        self.LayerNorm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.embedding_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, state: Tensor) -> Tensor:
        """Score."""
        return self.decoder(self.LayerNorm(self.activation(self.dense(state))))


class SentenceOrderHead(nn.Module):
    """Sentence order from the pooled first token: two classes, and no dropout, as the published model was trained."""

    def __init__(self, config: AlbertShape) -> None:
        super().__init__()
        self.classifier = nn.Linear(config.hidden_size, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        """(B, H) to (B, 2)."""
        return self.classifier(pooled)


class PretrainingHeads(PreTrainedModel):
    """A model with an encoder at `albert`, a masked language model at `predictions`, and maybe sentence order.

    Attributes:
        has_sentence_order: Whether it has the second head, at `sop_classifier`.
    """

    _tied_weights_keys = {
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    }
    has_sentence_order = True

    def make_heads(self, config: AlbertShape) -> None:
        """Add the heads, behind the encoder."""
        self.predictions = MaskedWordsHead(config)
        if self.has_sentence_order:
            self.sop_classifier = SentenceOrderHead(config)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, MaskedWordsHead):
            init.zeros_(module.bias)

    def get_output_embeddings(self) -> nn.Linear:
        """The decoder, tied to the word embeddings."""
        return self.predictions.decoder

    def set_output_embeddings(self, value: nn.Linear) -> None:
        """Replace the decoder; its bias is the head's."""
        self.predictions.decoder = value
        self.predictions.bias = value.bias

    def count_predicted(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the loss parts `mlm` and `sop` of a batch are divided by, as far as it has their labels."""
        labels = {"mlm": batch.get("labels")}
        if self.has_sentence_order:
            labels["sop"] = batch.get("sentence_order_label")
        return {name: (found >= 0).sum() for name, found in labels.items() if found is not None}

    def predict_words(self, result: Any, state: Tensor, labels: Tensor | None) -> dict[str, LossTerm]:
        """Set the vocabulary's scores, and with labels the losses of the predicted positions; returns the part `mlm`.

        Args:
            result: An output with `prediction_logits`, (B, T, V) or with labels (P, V), and `token_losses`, (P,).
            state: (B, T, H).
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
        """Set `sop_logits`, (B, 2); returns the part `sop` where there are labels.

        Args:
            result: The output.
            pooled: Of first tokens, (B, H).
            labels: 0 original order, 1 swapped, negative for none, (B,).
        """
        result.sop_logits = self.sop_classifier(pooled)
        return {} if labels is None else {"sop": sum_cross_entropy(result.sop_logits, labels)}
