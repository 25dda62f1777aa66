"""Multi-exit ALBERT (PABEE), with a classifier after every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils.generic import can_return_tuple

from adadepth.halting.exit_rules import ExitRule
from adadepth.halting.step_losses import parse_step_loss
from adadepth.halting.trace import DepthTrace, Work
from adadepth.models.depth.engine import ExitRuleKnob
from adadepth.models.depth.outputs import StepwiseOutput
from adadepth.models.multi_exit_albert.configuration import MultiExitAlbertConfig
from adadepth.models.shared.albert.pricing import price_sequences
from adadepth.models.shared.albert.stepper import (
    Reading,
    SteppedAlbert,
    SteppedAlbertModel,
    SteppedAlbertPreTrainedModel,
)
from adadepth.models.shared.halting_settings import find_loss_problems
from adadepth.models.shared.losses import (
    LossTerm,
    combine_terms,
    count_head_classes,
    count_sequences,
    expected_loss,
    step_losses,
    weigh_steps,
)


class MultiExitAlbertModel(SteppedAlbertModel):
    """Encoder of multi-exit ALBERT without classifiers, which runs all steps."""

    config: MultiExitAlbertConfig
    config_class = MultiExitAlbertConfig


class MultiExitAlbertForSequenceClassification(ExitRuleKnob, SteppedAlbertPreTrainedModel):
    """ALBERT with one linear classifier per step on the pooled first token, for early exit (PABEE)."""

    config: MultiExitAlbertConfig
    config_class = MultiExitAlbertConfig
    exit_signals = frozenset({"logits"})
    level_rule = "confidence:0.5"

    def __init__(self, config: MultiExitAlbertConfig) -> None:
        super().__init__(config)
        self.albert = SteppedAlbert(config)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        self.classifiers = nn.ModuleList(
            nn.Linear(config.hidden_size, count_head_classes(config)) for _ in range(config.max_updates)
        )
        self.post_init()

    @property
    def step_loss_problem(self) -> str | None:
        """Reason why the loss over exits cannot be computed, such as a missing package, or None."""
        return next(find_loss_problems("model.exit_weights", self.config.exit_weights), None)

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
        exit_rule: str | ExitRule | None = None,
        run_all_steps: bool | None = None,
        generator: torch.Generator | None = None,
        **kwargs: Any,
    ) -> StepwiseOutput:
        """Run steps until every sequence has exited, and compute the loss if there are labels.

        Labels are classes or values, (B,); see `step_losses`. `num_targets` are the counts that normalise the loss
        parts; see `combine_terms`.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        output, _ = self.take_steps(inputs, labels, exit_rule, run_all_steps, generator, kwargs)
        if labels is not None and output.step_logits is not None:
            losses, counted = step_losses(self.config, output.step_logits, labels)
            steps = range(1, losses.shape[-1] + 1)
            means = expected_loss(losses, weigh_steps(parse_step_loss(self.config.exit_weights), losses, steps))
            task = LossTerm((means * counted).sum(), counted.sum())  # over sequences that have a target
            output.loss, output.loss_parts = combine_terms({"task": task}, num_targets)
        return output

    def read(self, state: Tensor, memory: Tensor | None, step: int) -> Reading:
        """Apply the classifier of a step to its hidden states."""
        return Reading(self.classifiers[step - 1](self.dropout(self.albert.pooled(state))))

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the number of labelled sequences in a batch, or the sum of their class weights."""
        return {"task": count_sequences(self.config, batch["labels"])}

    def price(self, trace: DepthTrace) -> Work:
        """Return the MACs of a batch from its depth trace."""
        return price_sequences(self.config, trace, each_step=self.head_work)

    @property
    def head_work(self) -> float:
        """MACs of the pooler (H^2) and one classifier (H C) for one sequence."""
        return float(self.config.hidden_size * (self.config.hidden_size + count_head_classes(self.config)))
