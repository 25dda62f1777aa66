"""The objective of PonderNet, shared by the models that train with it.

    L = (1/B) sum_b sum_n p_bn loss(y_b, yhat_bn) + beta (1/B) sum_b KL_b

Banino et al. 2021 (arXiv 2107.05407), section 2.2. The loss is averaged over steps, not the prediction. Shape legend:
B batch, N steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from adadepth.budget.fit import DepthKnob
from adadepth.families.shared.losses import (
    LossTerm,
    class_losses,
    combine_terms,
    count_sequences,
    expected_loss,
    step_losses,
)
from adadepth.families.shared.steps import Objective, StepwiseOutput
from adadepth.halting.continuation import continuation_losses
from adadepth.halting.distribution import (
    HaltingDistribution,
    geometric_prior,
    halting_distribution,
    halting_kl,
    uniform_prior,
)


def ponder_distributions(config: Any, halting_logits: Tensor) -> tuple[HaltingDistribution, HaltingDistribution]:
    """Posterior (B, N) and prior (N,) of a batch."""
    prior = _prior(config, halting_logits.shape[-1], halting_logits.device)
    return halting_distribution(halting_logits, config.truncation), prior


def _prior(config: Any, steps: int, device: torch.device) -> HaltingDistribution:
    """The uniform prior, or the geometric one.

    That is truncated like the posterior, but for `truncation: none`, which leaves the posterior as it is and gives the
    prior's last step what is left, as PALBERT does.
    """
    if config.prior == "uniform":
        return uniform_prior(steps, device)
    truncation = "leftover" if config.truncation == "none" else config.truncation
    return geometric_prior(config.target_halt_probability, steps, truncation, device)


def ponder_terms(
    losses: Tensor,
    counted: Tensor,
    posterior: HaltingDistribution,
    prior: HaltingDistribution,
    *,
    kl_penalty_factor: float,
    ce_normalisation: str = "sum",
    kl_direction: str = "posterior_prior",
) -> dict[str, LossTerm]:
    """The loss parts `task` and `kl`, summed over the sequences that have a target and counted in them.

    Args:
        losses: Task loss after every step, (B, N).
        counted: Sequences with a target, bool, (B,).
        posterior: p, (B, N).
        prior: What p is drawn to, (N,).
        kl_penalty_factor: Weight beta.
        ce_normalisation: `sum`: sum_n p_n loss_n; `mean_over_steps`: divided by N besides, as the reference code of
            PonderALBERT does, which makes beta count N times as much.
        kl_direction: `posterior_prior`: KL(p || p_G) (PonderNet); `prior_posterior`: KL(p_G || p) (PALBERT).
    """
    task = expected_loss(losses, posterior.pmf)
    if ce_normalisation == "mean_over_steps":
        task = task / losses.shape[-1]
    divergence = halting_kl(posterior, prior, kl_direction)
    count = counted.sum()
    return {
        "task": LossTerm((task * counted).sum(), count),
        "kl": LossTerm((divergence * counted).sum(), count, kl_penalty_factor),
    }


class PonderObjective:
    """Expected task loss and divergence from the prior, see `ponder_terms`.

    Args:
        config: With `kl_penalty_factor`, `kl_direction`, and maybe `ce_normalisation`.
    """

    names = ("task", "kl")

    def __init__(self, config: PreTrainedConfig) -> None:
        self._config = config

    def terms(self, output: StepwiseOutput, losses: Tensor, counted: Tensor) -> dict[str, LossTerm]:
        """The loss parts; see `adadepth.families.shared.steps.Objective`."""
        assert output.posterior is not None
        assert output.prior is not None
        return ponder_terms(
            losses,
            counted,
            output.posterior,
            output.prior,
            kl_penalty_factor=self._config.kl_penalty_factor,
            ce_normalisation=getattr(self._config, "ce_normalisation", "sum"),
            kl_direction=self._config.kl_direction,
        )


@dataclass(frozen=True)
class HaltingStage:
    """The second stage of training, see `adadepth.halting.continuation`: slope k and threshold gamma of its targets.

    As an objective it is the halting head's loss alone.
    """

    slope: float
    threshold: float

    @property
    def names(self) -> tuple[str, ...]:
        """The one loss part."""
        return ("halting",)

    def terms(self, output: StepwiseOutput, losses: Tensor, counted: Tensor) -> dict[str, LossTerm]:
        """`halting`: see `continuation_losses`; summed over the sequences that have a target and counted in them."""
        assert output.halting_logits is not None
        per_sequence = continuation_losses(output.halting_logits, losses, self.slope, self.threshold)
        return {"halting": LossTerm((per_sequence * counted).sum(), counted.sum())}


class PonderTraining(DepthKnob, nn.Module):
    """What models that ponder have in common: loss and counts, setting their depth, going on with the halting head.

    Attributes:
        config: With `prior`, `target_halt_probability`, `kl_direction`, `truncation` and `exit_rule`.
        objective: A `PonderObjective`, in the second stage of training a `HaltingStage`.
        halting_head: What gives the halting logits, and nothing else.
    """

    exit_signals = frozenset({"logits", "halting"})
    depth_knob = "exit_rule quantile:q"
    config: Any
    objective: Objective

    @property
    def halting_head(self) -> nn.Module:
        """What gives the halting logits, and nothing else."""
        raise NotImplementedError

    def weigh(
        self,
        output: StepwiseOutput,
        labels: Tensor | None,
        num_targets: Mapping[str, Tensor] | None,
        *,
        run_all: bool,
    ) -> None:
        """Set the distribution over the steps, which needs all of them, and with labels the loss.

        Args:
            output: Of `step_through`.
            labels: See `step_losses`.
            num_targets: See `combine_terms`.
            run_all: Whether all rows ran all steps.
        """
        if run_all:
            assert output.halting_logits is not None
            output.posterior, output.prior = ponder_distributions(self.config, output.halting_logits)
        if labels is not None:
            assert output.step_logits is not None
            losses, counted = step_losses(self.config, output.step_logits, labels)
            output.loss, output.loss_parts = combine_terms(self.objective.terms(output, losses, counted), num_targets)

    def count_targets(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What each loss part of a batch is divided by; the trainer adds it up over an optimiser step."""
        return dict.fromkeys(self.objective.names, count_sequences(self.config, batch["labels"]))

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

    def train_halting_alone(self, stage: HaltingStage) -> None:
        """Enter the second stage: all but the halting head is frozen, and the loss is that head's alone.

        It lasts as long as this object; neither the configuration nor the saved weights know of it.
        """
        self.objective = stage
        self.requires_grad_(False)
        self.halting_head.requires_grad_(True)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """Set the mode; in the second stage what is frozen stays in evaluation mode, without dropout."""
        super().train(mode)
        if isinstance(self.objective, HaltingStage):
            for child in self.children():
                child.train(mode and child is self.halting_head)
        return self


class PonderClassificationLoss:
    """The objective as a criterion of its own, for training loops that do not give the model its labels.

    Args:
        kl_penalty_factor: Weight beta of the divergence.
        ce_normalisation: As in `ponder_terms`.
        kl_direction: As in `ponder_terms`.
    """

    def __init__(
        self,
        kl_penalty_factor: float = 1e-2,
        ce_normalisation: str = "sum",
        kl_direction: str = "posterior_prior",
    ) -> None:
        self.kl_penalty_factor = kl_penalty_factor
        self.ce_normalisation = ce_normalisation
        self.kl_direction = kl_direction

    def __call__(self, prediction: StepwiseOutput, labels: Sequence[int] | Tensor) -> dict[str, Tensor]:
        """Compute the loss.

        Args:
            prediction: A model's output with all its steps.
            labels: Classes (B,), as a list or a tensor; negative ones are not targets.

        Returns:
            `task` and `kl`, weighted, means over the examples, and their sum `total_loss`.

        Raises:
            ValueError: If the prediction has steps that did not run.
            DataError: If a label is not one of the model's classes.
        """
        if prediction.posterior is None or prediction.prior is None:
            raise ValueError("the loss needs every step: call the model in training mode or with run_all_steps=True")
        assert prediction.step_logits is not None
        targets = torch.as_tensor(labels, device=prediction.step_logits.device)
        losses, counted = class_losses(prediction.step_logits, targets)
        terms = ponder_terms(losses, counted, prediction.posterior, prediction.prior, **vars(self))
        total, parts = combine_terms(terms)
        return {"total_loss": total, **parts}
