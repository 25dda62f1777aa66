"""The multi-exit ALBERT for sequence classification and regression."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adadepth.budget.fit import DepthKnob
from adadepth.families.multi_exit_albert.configuration import MultiExitAlbertConfig
from adadepth.families.shared.albert.stepping import Reading
from adadepth.families.shared.albert.stepwise import StepwiseAlbert
from adadepth.families.shared.losses import LossTerm, expected_loss, label_count
from adadepth.families.shared.stepwise import StepwiseOutput


class MultiExitAlbertForSequenceClassification(DepthKnob, StepwiseAlbert):
    """One linear classifier per step on the pooled first token; all exits are trained together.

    L = sum_j w_j L_j / sum_j w_j with w_j = j (PABEE, equation 6) or 1.
    """

    config: MultiExitAlbertConfig
    config_class = MultiExitAlbertConfig

    def __init__(self, config: MultiExitAlbertConfig) -> None:
        super().__init__(config)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        self.classifiers = nn.ModuleList(
            nn.Linear(config.hidden_size, label_count(config)) for _ in range(config.max_steps)
        )
        self.post_init()

    depth_knob = "exit_rule confidence:t"

    def set_depth_level(self, level: float) -> None:
        """Let a sequence exit at the first step that gives a class a probability above `level`, in (0, 1)."""
        self.config.exit_rule = f"confidence:{level!r}"

    @property
    def head_work(self) -> float:
        """Multiply-accumulates of the pooler and one classifier for one sequence."""
        return float(self.config.hidden_size * (self.config.hidden_size + label_count(self.config)))

    def read(self, state: Tensor, memory: Tensor | None, step: int) -> Reading:
        """Predict with the step's own classifier."""
        return Reading(self.classifiers[step - 1](self.dropout(self.albert.pooled(state))))

    def loss_terms(self, output: StepwiseOutput, losses: Tensor, counted: Tensor) -> dict[str, LossTerm]:
        """The weighted mean of the exits' losses."""
        weights = torch.ones(losses.shape[-1], device=losses.device)
        if self.config.exit_weights == "linear":
            weights = weights.cumsum(dim=0)
        means = expected_loss(losses, weights / weights.sum())
        return {"task": LossTerm((means * counted).sum(), counted.sum())}
