"""Adalayers models for sequence classification and token classification.

torch's attention is called with tokens as the first dimension. Its fast path for the batch as first dimension would
store the scores of all pairs of tokens. For a long text, these need more memory than the base. Shape legend: B batch, T
tokens, k width of the mixed states, C classes.
"""

from __future__ import annotations

from torch import Tensor, nn

from adadepth.models.adalayers.configuration import AdaLayersConfig
from adadepth.models.adalayers.head_layers import attend, class_or_focal_loss, count_classes, masked_mean
from adadepth.models.adalayers.modeling import AdaLayersModel
from adadepth.models.shared.losses import (
    LossTerm,
    count_head_classes,
    count_sequences,
    infer_problem_type,
    sequence_loss,
)


class AdaLayersForSequenceClassification(AdaLayersModel):
    """Adalayers model for classification, regression (`num_labels` = 1) or multi-label tagging of sequences."""

    def build_head(self, config: AdaLayersConfig) -> None:
        """Create the head: self-attention over the averaged states (unless it is linear), and a linear classifier."""
        if config.head == "attention":
            self.self_attention = nn.MultiheadAttention(
                config.project_dim, config.attention_heads_num, config.attention_dropout_prob or 0.0
            )
        self.logits = nn.Linear(config.mixed_width, count_head_classes(config))

    def classify(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """Return the class logits of every sequence, (B, C)."""
        if self.config.head == "linear":
            return self.logits(self.dropout(masked_mean(features, mask)))
        attended = attend(self.self_attention, self.dropout, features, mask)
        return self.logits(masked_mean(self.dropout(nn.functional.gelu(attended)), mask))

    def task_loss(self, logits: Tensor, labels: Tensor) -> LossTerm:
        """Compute the classification loss, or for other labels the regression or multi-label loss."""
        one_class = infer_problem_type(self.config, labels) == "single_label_classification"
        return (class_or_focal_loss if one_class else sequence_loss)(self.config, logits, labels)

    def count_labels(self, labels: Tensor) -> Tensor:
        """Return the number of sequences with a label, or the sum of their class weights."""
        one_class = infer_problem_type(self.config, labels) == "single_label_classification"
        return (count_classes if one_class else count_sequences)(self.config, labels)


class AdaLayersForTokenClassification(AdaLayersModel):
    """Adalayers model that classifies every token."""

    classifies_tokens = True

    def build_head(self, config: AdaLayersConfig) -> None:
        """Create the head: encoder layers over the averaged states (unless it is linear), and a linear classifier."""
        layers = config.attention_layers_num if config.head == "attention" else 0
        self.encoder_layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                config.project_dim,
                config.attention_heads_num,
                config.dim_feedforward,
                config.attention_dropout_prob or 0.0,
                activation="gelu",
                norm_first=True,
            )
            for _ in range(layers)
        )
        self.logits = nn.Linear(config.mixed_width, count_head_classes(config))

    def classify(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """Return the class logits of every token, (B, T, C)."""
        tokens, padding = features.transpose(0, 1), None if mask is None else mask.eq(0)
        for layer in self.encoder_layers:
            tokens = layer(tokens, src_key_padding_mask=padding)
        return self.logits(self.dropout(tokens.transpose(0, 1)))

    def task_loss(self, logits: Tensor, labels: Tensor) -> LossTerm:
        """Compute the cross-entropy or focal loss of all labelled tokens."""
        return class_or_focal_loss(self.config, logits, labels)

    def count_labels(self, labels: Tensor) -> Tensor:
        """Return the number of tokens with a label, or the sum of their class weights."""
        return count_classes(self.config, labels)
