"""ACT-ALBERT in pretraining: a masked language model and sentence order, L = MLM + SOP + tau (N + R).

Shape legend: B batch, T tokens, P predicted positions, E embedding width, H hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.utils.generic import can_return_tuple

from adadepth.families.albert_act.modeling import AlbertActModel, AlbertActPreTrainedModel, HaltingOutput
from adadepth.families.albert_act.recurrence import AlbertActConfig, labelled_tokens, readout_term
from adadepth.families.shared.albert.heads import PretrainingHeads
from adadepth.families.shared.losses import combine_terms


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


class AlbertActForPreTraining(PretrainingHeads, AlbertActPreTrainedModel):
    """Masked language model and sentence order, with the ponder cost: L = MLM + SOP + tau (N + R)."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.albert = AlbertActModel(config, add_pooling_layer=self.has_sentence_order)
        self.make_heads(config)
        self.post_init()

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What each loss part of a batch is divided by; the trainer adds it up over an optimiser step."""
        counts = {"ponder": self.count_payers(batch["attention_mask"]), **self.count_predicted(batch)}
        return counts | ({"readouts": counts["mlm"]} if self.config.readout_weight and "mlm" in counts else {})

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
        terms = self.predict_words(result, outputs.last_hidden_state, labels)
        if units is not None:
            terms["readouts"] = readout_term(self.config, outputs, units, self.predictions)
        if self.has_sentence_order:
            terms |= self.predict_order(result, outputs.pooler_output, sentence_order_label)
        else:
            result.logits = result.prediction_logits
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
