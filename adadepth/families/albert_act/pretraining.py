"""ACT-ALBERT in pretraining: a masked language model and sentence order, L = MLM + SOP + tau (N + R).

Shape legend: B batch, T tokens, P predicted positions, E embedding width, H hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.utils.generic import can_return_tuple

from adadepth.families.albert_act.modeling import AlbertActModel, AlbertActPreTrainedModel, HaltingOutput
from adadepth.families.albert_act.recurrence import AlbertActConfig, labelled_tokens, readout_term
from adadepth.families.shared.albert.block import activation
from adadepth.families.shared.losses import LossTerm, combine_terms, sum_cross_entropy


@dataclass
class MaskedPredictionOutput(HaltingOutput):
    """Masked-language-model and sentence-order predictions.

    Attributes:
        prediction_logits: Vocabulary logits: (B, T, V) without labels; with labels only at the P positions that have
            one, (P, V), in row-major order of `labels != -100`.
        token_losses: Cross-entropy of each of those P positions in nats, float32, detached.
        sop_logits: Sentence-order logits, (B, 2): original order, swapped. None without that head.
        logits: The vocabulary logits again where the masked language model is the only head, under the name that
            pipelines read.
    """

    prediction_logits: Tensor | None = None
    token_losses: Tensor | None = None
    sop_logits: Tensor | None = None
    logits: Tensor | None = None


class AlbertActMLMHead(nn.Module):
    """Vocabulary scores: LN(act(W h)) times the word embeddings, (..., H) to (..., V)."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self.activation = activation(config.hidden_act)
        self.LayerNorm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.embedding_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, state: Tensor) -> Tensor:
        """Score."""
        return self.decoder(self.LayerNorm(self.activation(self.dense(state))))


class AlbertActSOPHead(nn.Module):
    """Sentence order from the pooled first token: two classes, and no dropout, as the published model was trained."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.classifier = nn.Linear(config.hidden_size, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        """(B, H) to (B, 2)."""
        return self.classifier(pooled)


class AlbertActForPreTraining(AlbertActPreTrainedModel):
    """Masked language model and sentence order, with the ponder cost: L = MLM + SOP + tau (N + R)."""

    _tied_weights_keys = {
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    }
    has_sentence_order = True

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.albert = AlbertActModel(config, add_pooling_layer=self.has_sentence_order)
        self.predictions = AlbertActMLMHead(config)
        if self.has_sentence_order:
            self.sop_classifier = AlbertActSOPHead(config)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, AlbertActMLMHead):
            init.zeros_(module.bias)

    def get_output_embeddings(self) -> nn.Linear:
        """The decoder, tied to the word embeddings."""
        return self.predictions.decoder

    def set_output_embeddings(self, value: nn.Linear) -> None:
        """Replace the decoder; its bias is the head's."""
        self.predictions.decoder = value
        self.predictions.bias = value.bias

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What each loss part of a batch is divided by; the trainer adds it up over an optimiser step."""
        counts = {"ponder": self.count_payers(batch["attention_mask"])}
        if "labels" in batch:
            counts["mlm"] = (batch["labels"] >= 0).sum()
            if self.config.readout_weight:
                counts["readouts"] = counts["mlm"]
        if self.has_sentence_order and "sentence_order_label" in batch:
            counts["sop"] = (batch["sentence_order_label"] >= 0).sum()
        return counts

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        sentence_order_label: Tensor | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        **kwargs: Any,
    ) -> MaskedPredictionOutput:
        """Predict, and with labels compute the loss.

        Args:
            input_ids: This and the next four as in `AlbertActModel`.
            attention_mask: See there.
            token_type_ids: See there.
            position_ids: See there.
            inputs_embeds: See there.
            labels: Original ids at the positions to predict, -100 elsewhere, (B, T). With labels the vocabulary is
                scored at those positions only.
            sentence_order_label: 0 original order, 1 swapped, negative for none, (B,).
            num_targets: Counts that normalise the loss parts instead of this batch's own; see `combine_terms`.
            **kwargs: As in `AlbertActModel`.
        """
        units = None if labels is None or not self.config.readout_weight else labelled_tokens(labels)
        if units is not None:
            kwargs["readout_slots"] = units.slots
        outputs = self.albert(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **(kwargs | {"return_dict": True})
        )
        result = MaskedPredictionOutput.of(outputs)
        terms: dict[str, LossTerm] = {}
        state = outputs.last_hidden_state
        if labels is not None:
            chosen = labels >= 0
            state, targets = state[chosen], labels[chosen]
        result.prediction_logits = self.predictions(state)
        if labels is not None:
            losses = nn.functional.cross_entropy(result.prediction_logits.float(), targets, reduction="none")
            result.token_losses = losses.detach()
            terms["mlm"] = LossTerm(losses.sum(), chosen.sum())
        if units is not None:
            terms["readouts"] = readout_term(self.config, outputs, units, self.predictions)
        if not self.has_sentence_order:
            result.logits = result.prediction_logits
        else:
            result.sop_logits = self.sop_classifier(outputs.pooler_output)
            if sentence_order_label is not None:
                terms["sop"] = sum_cross_entropy(result.sop_logits, sentence_order_label)
        if terms:
            terms["ponder"] = self.ponder_term(outputs)
            result.loss, result.loss_parts = combine_terms(terms, num_targets)
        return result


class AlbertActForMaskedLM(AlbertActForPreTraining):
    """Masked language model alone: L = MLM + tau (N + R)."""

    has_sentence_order = False

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        **kwargs: Any,
    ) -> MaskedPredictionOutput:
        """As in `AlbertActForPreTraining`, with one kind of labels: trainers read those off this signature."""
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        return super().forward(*inputs, labels=labels, num_targets=num_targets, **kwargs)
