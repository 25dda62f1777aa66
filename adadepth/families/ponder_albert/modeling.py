"""PonderALBERT for sequence classification and regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from adadepth.errors import ConfigError
from adadepth.families.ponder_albert.configuration import PonderAlbertConfig
from adadepth.families.ponder_albert.texts import encode_texts
from adadepth.families.shared.albert.configuration import derive_config
from adadepth.families.shared.albert.encoder import HaltingProjection
from adadepth.families.shared.albert.stepping import Reading
from adadepth.families.shared.albert.stepwise import StepwiseAlbert
from adadepth.families.shared.losses import label_count
from adadepth.families.shared.ponder_objective import PonderModel
from adadepth.families.shared.stepwise import StepwiseOutput
from adadepth.halting.exit_rules import ExitRule

Text = str | tuple[str, str]


class PonderAlbertForSequenceClassification(StepwiseAlbert, PonderModel):
    """A classifier (or, with one label, a regressor) and a halting head on every step of an ALBERT.

    Args:
        config: A PonderAlbertConfig, or the configuration of another ALBERT, whose shape it takes.
        tokenizer: For calls with texts; without it they fetch the one beside the weights.
        **overrides: Fields of the configuration to change.

    Raises:
        ConfigError: If an override is no field, or has a value that is not allowed.
    """

    config: PonderAlbertConfig
    config_class = PonderAlbertConfig

    def __init__(
        self, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase | None = None, **overrides: Any
    ) -> None:
        own = derive_config(PonderAlbertConfig, config, overrides)
        super().__init__(own, add_pooling_layer=own.readout == "pooler")
        self.tokenizer = tokenizer
        self.dropout = nn.Dropout(own.classifier_dropout_prob)
        self.classifier = _classifier(own)
        self.ponder = _halting_head(own)
        self.post_init()

    @property
    def halting_head(self) -> nn.Module:
        """What gives the halting logits."""
        return self.ponder

    @property
    def head_work(self) -> float:
        """Multiply-accumulates of pooler, classifier and halting head for one sequence."""
        modules = [self.classifier, self.ponder, self.albert.pooler]
        linear = [m for module in modules if module is not None for m in module.modules() if isinstance(m, nn.Linear)]
        return float(sum(module.in_features * module.out_features for module in linear))

    def read(self, state: Tensor, memory: Tensor | None, step: int) -> Reading:
        """Predict and ponder; the memory is the previous step's features, (A, H)."""
        if self.config.readout == "tokens":
            predicting, pondering = state[:, 0], state[:, 1]
            seen = self._halting_features(pondering, memory)
        else:
            pondering = self.albert.pooled(state)
            predicting = self.dropout(pondering)
            seen = self.dropout(self._halting_features(pondering, memory))
        return Reading(self.classifier(predicting), self.ponder(seen).squeeze(-1), pondering)

    def _halting_features(self, features: Tensor, previous: Tensor | None) -> Tensor:
        """What the halting head reads, (A, H) or (A, 2H)."""
        if self.config.halting_head in ("mlp", "linear"):
            return features
        if previous is None:
            previous = torch.zeros_like(features)
        if self.config.halting_head == "linear_diff":
            return features - previous
        return torch.cat([features, previous], dim=-1)

    def forward(
        self,
        input_ids: Tensor | Sequence[Text] | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        exit_rule: str | ExitRule | None = None,
        run_all_steps: bool | None = None,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> StepwiseOutput:
        """As `StepwiseAlbert.forward`, and texts, or pairs of texts, may stand in the place of ids."""
        if input_ids is not None and not isinstance(input_ids, Tensor):
            encoded = encode_texts(self._tokenizer(), input_ids, self.config)
            input_ids, attention_mask, token_type_ids = (tensor.to(self.device) for tensor in encoded)
        return super().forward(
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            labels,
            num_targets,
            exit_rule,
            run_all_steps,
            generator,
            **kwargs,
        )

    def _tokenizer(self) -> PreTrainedTokenizerBase:
        if self.tokenizer is None:
            if not self.config.name_or_path:
                raise ConfigError("a call with texts needs a tokenizer: give one when the model is built")
            self.tokenizer = AutoTokenizer.from_pretrained(self.config.name_or_path)
        return self.tokenizer


PonderAlbertClassifier = PonderAlbertForSequenceClassification


def _classifier(config: PonderAlbertConfig) -> nn.Module:
    hidden, classes = config.hidden_size, label_count(config)
    if config.readout == "pooler":
        return nn.Linear(hidden, classes)
    return nn.Sequential(nn.Linear(hidden, config.head_size), nn.GELU(), nn.Linear(config.head_size, classes))


def _halting_head(config: PonderAlbertConfig) -> nn.Sequential:
    width = config.hidden_size * (2 if config.halting_head == "linear_cat" else 1)
    if config.halting_head == "mlp":
        return nn.Sequential(nn.Linear(width, config.head_size), nn.GELU(), HaltingProjection(config.head_size, 1))
    blocks: list[nn.Module] = []
    if config.halting_head_layers > 1:  # PALBERT's k = 1 is the linear map alone
        for _ in range(config.halting_head_layers):
            blocks += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*blocks, HaltingProjection(width, 1))
