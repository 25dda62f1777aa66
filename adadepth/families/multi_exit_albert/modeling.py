"""Configuration of the multi-exit ALBERT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.utils.generic import can_return_tuple

from adadepth.families.contract import DepthKnob
from adadepth.families.multi_exit_albert.family import MultiExitAlbertSettings
from adadepth.families.shared.albert.block import words_of
from adadepth.families.shared.albert.configuration import StepwiseAlbertShape
from adadepth.families.shared.albert.convert import SteppedAlbertPreTrainedModel
from adadepth.families.shared.albert.pricing import price_sequences
from adadepth.families.shared.albert.stepped import SteppedAlbert, SteppedAlbertModel
from adadepth.families.shared.albert.stepper import AlbertStepper, Reading
from adadepth.families.shared.losses import (
    LossTerm,
    combine_terms,
    count_sequences,
    expected_loss,
    label_count,
    step_losses,
)
from adadepth.families.shared.steps import StepwiseOutput, rule_of, run_steps, runs_all, shown, stepwise_output
from adadepth.halting.exit_rules import ExitRule
from adadepth.halting.trace import DepthTrace, Work


@strict
class MultiExitAlbertConfig(StepwiseAlbertShape, settings=MultiExitAlbertSettings):
    """ALBERT with a linear classifier of its own after every step (Zhou et al. 2020, PABEE, arXiv 2006.04152)."""


class MultiExitAlbertModel(SteppedAlbertModel):
    """The encoder, without classifiers: all steps."""

    config: MultiExitAlbertConfig
    config_class = MultiExitAlbertConfig


class MultiExitAlbertForSequenceClassification(DepthKnob, SteppedAlbertPreTrainedModel):
    """One linear classifier per step on the pooled first token."""

    config: MultiExitAlbertConfig
    config_class = MultiExitAlbertConfig
    exit_signals = frozenset({"logits"})
    depth_knob = "exit_rule confidence:t"

    def __init__(self, config: MultiExitAlbertConfig) -> None:
        super().__init__(config)
        self.albert = SteppedAlbert(config)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        self.classifiers = nn.ModuleList(
            nn.Linear(config.hidden_size, label_count(config)) for _ in range(config.max_steps)
        )
        self.post_init()

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
        """Step until every sequence has exited, and with labels compute the loss.

        Args:
            input_ids: Token ids (B, T); or give `inputs_embeds` (B, T, E).
            attention_mask: 1 at real tokens, 0 at padding, (B, T).
            token_type_ids: Segment of each token, (B, T).
            position_ids: (B, T) or (1, T).
            inputs_embeds: Word embeddings instead of ids.
            labels: Classes or values, (B,); see `step_losses`.
            num_targets: Counts that normalise the loss parts instead of this batch's own; see `combine_terms`.
            exit_rule: Lets sequences exit; None: the configuration's.
            run_all_steps: See `runs_all`.
            generator: For rules that draw.
            **kwargs: `output_hidden_states`, `output_attentions`, `return_dict`, and the attention's own.
        """
        words = words_of(input_ids, inputs_embeds, attention_mask, self.get_input_embeddings())
        rule, shows = rule_of(self, exit_rule), bool(shown(self.config, kwargs))
        run_all = runs_all(run_all_steps, labels, training=self.training, shows=shows)

        embedded = self.albert.embeddings(words, token_type_ids, position_ids)
        stepper = AlbertStepper(self.albert.encoder, self.read, embedded, attention_mask, kwargs)
        steps = run_steps(stepper, rule, max_steps=self.max_updates, run_all=run_all, generator=generator)

        output = stepwise_output(steps, rule, stepper.tokens)
        output.hidden_states, output.attentions = stepper.hidden_states, stepper.attentions
        if labels is not None:
            losses, counted = step_losses(self.config, steps.logits, labels)
            output.loss, output.loss_parts = combine_terms({"task": self._task(losses, counted)}, num_targets)
        return output

    def read(self, state: Tensor, memory: Tensor | None, step: int) -> Reading:
        """Predict with the step's own classifier; see `adadepth.families.shared.albert.stepper.Read`."""
        return Reading(self.classifiers[step - 1](self.dropout(self.albert.pooled(state))))

    def _task(self, losses: Tensor, counted: Tensor) -> LossTerm:
        """The weighted mean of the exits' losses, (B, N), over the sequences that have a target, (B,)."""
        weights = torch.ones(losses.shape[-1], device=losses.device)
        if self.config.exit_weights == "linear":
            weights = weights.cumsum(dim=0)
        means = expected_loss(losses, weights / weights.sum())
        return LossTerm((means * counted).sum(), counted.sum())

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What each loss part of a batch is divided by; the trainer adds it up over an optimiser step."""
        return {"task": count_sequences(self.config, batch["labels"])}

    def price(self, trace: DepthTrace) -> Work:
        """Multiply-accumulates of one traced batch; see `price_sequences`."""
        return price_sequences(self.config, trace, each_step=self.head_work)

    @property
    def head_work(self) -> float:
        """Multiply-accumulates of `read` for one sequence: the pooler H^2 and one classifier H C."""
        return float(self.config.hidden_size * (self.config.hidden_size + label_count(self.config)))

    def set_depth_level(self, level: float) -> None:
        """Let a sequence exit at the first step that gives a class a probability above `level`, in (0, 1)."""
        self.config.exit_rule = f"confidence:{level!r}"
