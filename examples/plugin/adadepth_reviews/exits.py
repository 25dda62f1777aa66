"""An exit rule that learns whether the answer is already that of the last step."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from adadepth.config.declaration import OPEN_SHARE, setting
from adadepth.halting.exit_rules import LOGITS, ExitRule, RecordedSteps, StepView


@dataclass(frozen=True)
class Agreement(ExitRule):
    """Exit once sigmoid(bias + margin M_n + entropy H_n + step n/N) > t, from the margin and the entropy at step n."""

    name = "agreement"
    needs = frozenset({LOGITS})
    classes_only = True
    fitted = ("bias", "margin", "entropy", "step")
    threshold: float = setting(0.9, "t, a probability", OPEN_SHARE)
    bias: float = 0.0
    margin: float = 0.0
    entropy: float = 0.0
    step: float = 0.0

    def fit(self, recorded: RecordedSteps) -> "Agreement":
        """Fit a logistic regression, with weight decay 1, to all steps but the last."""
        answers = [view.logits.argmax(dim=-1) for view in recorded.views]
        x = torch.cat([self._describe(view) for view in recorded.views[:-1]]).double()
        y = torch.cat([answer == answers[-1] for answer in answers[:-1]]).double()
        weights = torch.zeros(x.shape[1], dtype=torch.float64)
        for _ in range(50):  # Newton's method
            p = (x @ weights).sigmoid()
            hessian = (x * (p * (1 - p)).unsqueeze(1)).T @ x + torch.eye(x.shape[1])
            weights -= torch.linalg.solve(hessian, x.T @ (p - y) + weights)
        return replace(self, **dict(zip(self.fitted, weights.tolist(), strict=True)))

    def with_level(self, level: float) -> "Agreement":
        """Return the rule with the level as its threshold."""
        return replace(self, threshold=level)

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return whether the estimated probability is above the threshold."""
        one, margin, entropy, share = self._describe(view).unbind(dim=-1)
        logits = self.bias * one + self.margin * margin + self.entropy * entropy + self.step * share
        return logits.sigmoid() > self.threshold, memory

    def _describe(self, view: StepView) -> Tensor:
        """Return 1, margin, entropy and n/N of every row, (A, 4)."""
        assert view.logits is not None
        p = view.logits.softmax(dim=-1)
        first, second = p.topk(2, dim=-1).values.unbind(dim=-1)
        entropy, share = torch.special.entr(p).sum(dim=-1), torch.full_like(first, view.step / view.max_updates)
        return torch.stack([torch.ones_like(first), first - second, entropy, share], dim=-1)
