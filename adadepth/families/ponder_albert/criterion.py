"""The loss of PonderALBERT outside of the model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adadepth.families.shared.losses import class_losses, combine_terms
from adadepth.families.shared.ponder_objective import ponder_terms
from adadepth.families.shared.steps import StepwiseOutput


class PonderClassificationLoss:
    """The objective as a criterion of its own, for training loops that do not give the model its labels.

    Args:
        kl_penalty_factor: Weight beta of the divergence.
        ce_normalisation: As in `PonderAlbertConfig`.
        kl_direction: As in `PonderAlbertConfig`.
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
        terms = ponder_terms(self, losses, counted, prediction.posterior, prediction.prior)
        total, parts = combine_terms(terms)
        return {"total_loss": total, **parts}
