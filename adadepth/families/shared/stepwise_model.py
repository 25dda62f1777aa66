"""What models that predict after every step have in common, whatever computes the steps."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from adadepth.families.contract import DepthUnit
from adadepth.families.shared.losses import LossTerm, combine_terms, count_sequences, label_count, step_losses
from adadepth.families.shared.stepwise import Stepper, StepwiseOutput, run_steps, stepwise_output
from adadepth.halting.exit_rules import ExitRule, check_rule, parse_rule


class StepwiseModel(PreTrainedModel):
    """Steps, exits and losses; a family adds its forward pass and `loss_terms`.

    Its configuration has `max_steps` and `exit_rule`, the rule in use where a call names none.

    Attributes:
        exit_signals: What exit rules can read: `logits` after every step, `halting` logits.
        loss_names: Names of the loss parts.
    """

    # Its losses are normalised by `num_targets`, never by the trainer's count of items.
    accepts_loss_kwargs = False
    exit_signals: frozenset[str] = frozenset({"logits"})
    loss_names: tuple[str, ...] = ("task",)
    depth_unit: DepthUnit = "sequence"

    @property
    def longest_sequence(self) -> int | None:
        """The most tokens it has positions for; None for inputs without."""
        return None

    @property
    def max_updates(self) -> int:
        """The most updates of a unit."""
        return self.config.max_steps

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What each loss part of a batch is divided by; the trainer adds it up over an optimiser step."""
        return dict.fromkeys(self.loss_names, count_sequences(self.config, batch["labels"]))

    def loss_terms(self, output: StepwiseOutput, losses: Tensor, counted: Tensor) -> dict[str, LossTerm]:
        """The loss parts by name.

        Args:
            output: With all steps.
            losses: Task loss after every step, (B, N).
            counted: Sequences with a target, (B,).
        """
        raise NotImplementedError

    def complete(self, output: StepwiseOutput) -> None:
        """Add what a family derives from all steps."""

    def rule(self, exit_rule: str | ExitRule | None) -> ExitRule:
        """The exit rule of a call, or the configuration's.

        Raises:
            ConfigError: If there is no such rule, or it needs what this model does not have.
        """
        given = self.config.exit_rule if exit_rule is None else exit_rule
        rule = parse_rule(given) if isinstance(given, str) else given
        check_rule(rule, self.exit_signals, label_count(self.config), self.config.max_steps, self.config.model_type)
        return rule

    def run(
        self,
        stepper: Stepper,
        *,
        rows: int,
        device: torch.device,
        tokens: Tensor | None = None,
        labels: Tensor | None = None,
        num_targets: Mapping[str, Tensor] | None = None,
        exit_rule: str | ExitRule | None = None,
        run_all_steps: bool | None = None,
        generator: torch.Generator | None = None,
    ) -> StepwiseOutput:
        """Run a batch through its steps, and with labels compute the loss.

        Args:
            stepper: The batch before its first step.
            rows: B.
            device: Of the rows.
            tokens: Real tokens of each row, (B,), for inputs that have tokens.
            labels: Classes or values, (B,); see `step_losses`.
            num_targets: Counts that normalise the loss parts instead of this batch's own; see `combine_terms`.
            exit_rule: The rule, or its text.
            run_all_steps: Whether examples go on after their exit, which changes neither exit steps nor predictions.
                None: only in training and with labels, where the loss needs every step.
            generator: For rules that draw.

        Raises:
            ValueError: With labels and `run_all_steps=False`.
        """
        needed = self.training or labels is not None
        if labels is not None and run_all_steps is False:
            raise ValueError("run_all_steps=False with labels: the loss needs every step")
        run_all = needed if run_all_steps is None else run_all_steps
        rule = self.rule(exit_rule)
        steps = run_steps(
            stepper,
            rule,
            rows=rows,
            max_steps=self.config.max_steps,
            device=device,
            run_all=run_all,
            generator=generator,
        )
        output = stepwise_output(steps, rule, tokens)
        if run_all:
            self.complete(output)
        if labels is not None:
            assert output.step_logits is not None
            losses, counted = step_losses(self.config, output.step_logits, labels)
            output.loss, output.loss_parts = combine_terms(self.loss_terms(output, losses, counted), num_targets)
        return output
