"""Plain ALBERT classifier with the `DepthModel` interface: the full-depth baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AlbertConfig, AlbertForSequenceClassification, AlbertModel
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from adadepth.halting.trace import DepthTrace, Execution, Work
from adadepth.models.shared.albert.block import OneBlock
from adadepth.models.shared.albert.convert import FromAnyAlbert, to_albert
from adadepth.models.shared.albert.pricing import price_sequences
from adadepth.models.shared.configuration import WithStockConfig
from adadepth.models.shared.encoders import check_words
from adadepth.models.shared.losses import combine_terms, count_head_classes, count_sequences, sequence_loss


@dataclass
class SequenceOutput(ModelOutput):
    """Output of a sequence classifier: loss, logits (B, C), hidden states, attentions, and depth trace."""

    loss: Tensor | None = None
    loss_parts: dict[str, Tensor] | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    trace: DepthTrace | None = None


class PlainAlbertModel(OneBlock, AlbertModel):
    """Encoder of transformers' ALBERT, which applies one block `num_hidden_layers` times."""


class PlainAlbertForSequenceClassification(OneBlock, WithStockConfig, FromAnyAlbert, AlbertForSequenceClassification):
    """Sequence classifier of transformers' ALBERT, with the same checkpoints, as a baseline without halting.

    Every sequence gets `num_hidden_layers` updates. The model can also start from ACT-ALBERT checkpoints.
    """

    config: AlbertConfig
    config_class = AlbertConfig
    encoder_names = staticmethod(to_albert)
    depth_unit = "sequence"

    @property
    def least_updates(self) -> int:
        """Minimum number of updates of a sequence, equal to the maximum because nothing halts."""
        return self.max_updates

    @property
    def one_depth(self) -> int:
        """Number of updates of every sequence."""
        return self.max_updates

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the number of labelled sequences in a batch, or the sum of their class weights."""
        return {"task": count_sequences(self.config, batch["labels"])}

    def price(self, trace: DepthTrace) -> Work:
        """Return the MACs of a batch from its depth trace."""
        hidden = self.config.hidden_size
        return price_sequences(
            self.config, trace, each_step=0.0, once=hidden * (hidden + count_head_classes(self.config))
        )

    @can_return_tuple
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
    ) -> SequenceOutput:
        """Compute the logits of sequences, (B, C), and the loss if there are labels.

        Labels are classes, (B,), values, (B,) or (B, 1), or multi-hot rows, (B, C).
        """
        if (words := input_ids if inputs_embeds is None else inputs_embeds) is not None:
            check_words(words, self.get_input_embeddings())
        outputs = self.albert(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **(kwargs | {"return_dict": True})
        )
        logits = self.classifier(self.dropout(outputs.pooler_output))
        result = SequenceOutput(
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            trace=self._trace(outputs.last_hidden_state, attention_mask),
        )
        if labels is not None:
            terms = {"task": sequence_loss(self.config, logits, labels)}
            result.loss, result.loss_parts = combine_terms(terms, num_targets)
        return result

    def _trace(self, state: Tensor, attention_mask: Tensor | None) -> DepthTrace:
        rows, width, depth = *state.shape[:2], self.config.num_hidden_layers
        full = torch.full((rows,), width, device=state.device)
        return DepthTrace(
            unit="sequence",
            updates=torch.full((rows,), float(depth), device=state.device),
            valid=torch.ones_like(full, dtype=torch.bool),
            max_updates=depth,
            execution=Execution(
                depth, tokens=full if attention_mask is None else attention_mask.ne(0).sum(dim=1), width=width
            ),
        )
