"""The objective of PonderNet, shared by the models that train with it.

    L = (1/B) sum_b sum_n p_bn loss(y_b, yhat_bn) + beta (1/B) sum_b KL_b

Banino et al. 2021 (arXiv 2107.05407), section 2.2. The loss is averaged over steps, not the prediction. Shape legend:
B batch, N steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from adadepth.families.contract import DepthKnob, HoldsBudget
from adadepth.families.shared.losses import LossTerm, combine_terms, count_sequences, expected_loss, step_losses
from adadepth.families.shared.steps import StepwiseOutput
from adadepth.halting.distribution import (
    HaltingDistribution,
    continuation_losses,
    geometric_prior,
    halting_distribution,
    halting_kl,
    uniform_prior,
)


def ponder_distributions(config: Any, halting_logits: Tensor) -> tuple[HaltingDistribution, HaltingDistribution]:
    """Posterior p, (B, N), and what it is drawn to, the prior, (N,).

    Args:
        config: With `prior`, `target_halt_probability` and `truncation`.
        halting_logits: z_n, (B, N).
    """
    steps, device = halting_logits.shape[-1], halting_logits.device
    if config.prior == "uniform":
        prior = uniform_prior(steps, device)
    else:
        # Like the posterior, but where that drops what is left the prior's last step gets it, as in PALBERT.
        truncation = "leftover" if config.truncation == "none" else config.truncation
        prior = geometric_prior(config.target_halt_probability, steps, truncation, device)
    return halting_distribution(halting_logits, config.truncation), prior


def ponder_terms(
    config: Any, losses: Tensor, counted: Tensor, posterior: HaltingDistribution, prior: HaltingDistribution
) -> dict[str, LossTerm]:
    """The loss parts `task` and `kl`, summed over the sequences that have a target and counted in them.

    Args:
        config: With `kl_penalty_factor`, beta, `kl_direction`, and maybe `ce_normalisation`; see `PonderAlbertConfig`.
        losses: Task loss after every step, (B, N).
        counted: Sequences with a target, bool, (B,).
        posterior: p, (B, N).
        prior: What p is drawn to, (N,).
    """
    task = expected_loss(losses, posterior.pmf)
    if getattr(config, "ce_normalisation", "sum") == "mean_over_steps":
        task = task / losses.shape[-1]  # as the reference code of PonderALBERT, which makes beta count N times as much
    divergence = halting_kl(posterior, prior, config.kl_direction)
    count = counted.sum()
    return {
        "task": LossTerm((task * counted).sum(), count),
        "kl": LossTerm((divergence * counted).sum(), count, config.kl_penalty_factor),
    }


@dataclass(frozen=True)
class HaltingStage:
    """The second stage of training, see `adadepth.halting.distribution`: slope k and threshold gamma of its targets."""

    slope: float
    threshold: float

    def terms(self, halting_logits: Tensor, losses: Tensor, counted: Tensor) -> dict[str, LossTerm]:
        """The one loss part `halting`: see `continuation_losses`; summed and counted as in `ponder_terms`."""
        per_sequence = continuation_losses(halting_logits, losses, self.slope, self.threshold)
        return {"halting": LossTerm((per_sequence * counted).sum(), counted.sum())}


class PonderTraining(DepthKnob, HoldsBudget, nn.Module):
    """What models that ponder have in common: loss and counts, setting their depth, going on with the halting head.

    Attributes:
        config: With what the functions above ask for, and `exit_rule`.
        halting_stage: The second stage of training, where the model is in it.
    """

    exit_signals = frozenset({"logits", "halting"})
    depth_knob = "exit_rule quantile:q"
    halting_stage: HaltingStage | None = None

    @property
    def halting_head(self) -> nn.Module:
        """What gives the halting logits, and nothing else."""
        raise NotImplementedError

    def weigh(self, output: StepwiseOutput, labels: Tensor | None, num_targets: Mapping[str, Tensor] | None) -> None:
        """Set the distribution over the steps, and with labels the loss.

        Args:
            output: With all steps.
            labels: See `step_losses`.
            num_targets: See `combine_terms`.
        """
        assert output.step_logits is not None
        assert output.halting_logits is not None
        posterior, prior = ponder_distributions(self.config, output.halting_logits)
        output.posterior, output.prior = posterior, prior
        if labels is None:
            return
        losses, counted = step_losses(self.config, output.step_logits, labels)
        if self.halting_stage is None:
            terms = ponder_terms(self.config, losses, counted, posterior, prior)
        else:
            terms = self.halting_stage.terms(output.halting_logits, losses, counted)
        output.loss, output.loss_parts = combine_terms(terms, num_targets)

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What each loss part of a batch is divided by; the trainer adds it up over an optimiser step."""
        names = ("task", "kl") if self.halting_stage is None else ("halting",)
        return dict.fromkeys(names, count_sequences(self.config, batch["labels"]))

    def prior_facts(self, outputs: StepwiseOutput) -> dict[str, Any]:
        """What is told of the prior where all steps ran: its probabilities on the CPU, (N,), and how it is used."""
        if outputs.prior is None:
            return {}
        return {
            "prior_pmf": outputs.prior.pmf.cpu(),
            "truncation": self.config.truncation,
            "kl_direction": self.config.kl_direction,
        }

    def set_depth_level(self, level: float) -> None:
        """Let a sequence exit at the first step with cdf_n > `level`, in (0, 1)."""
        self.config.exit_rule = f"quantile:{level!r}"

    def count_units(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Sequences of a batch, whose depths a budget counts."""
        return torch.full((), len(batch["labels"]), device=batch["labels"].device)

    def soft_depth(self, outputs: StepwiseOutput) -> LossTerm:
        """The expected steps of every sequence: of a distribution over all steps each is differentiable."""
        assert outputs.posterior is not None
        steps = outputs.posterior.expected_steps()
        return LossTerm(steps.sum(), torch.full((), len(steps), device=steps.device))

    def train_halting_alone(self, slope: float, threshold: float) -> None:
        """Enter the second stage: all but the halting head is frozen, and the loss is that head's alone.

        It lasts as long as this object; neither the configuration nor the saved weights know of it.
        """
        self.halting_stage = HaltingStage(slope, threshold)
        self.requires_grad_(False)
        self.halting_head.requires_grad_(True)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """Set the mode; in the second stage what is frozen stays in evaluation mode, without dropout."""
        super().train(mode)
        if self.halting_stage is not None:
            for child in self.children():
                child.train(mode and child is self.halting_head)
        return self
