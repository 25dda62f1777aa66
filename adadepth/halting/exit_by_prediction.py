"""Exit rules that read predictions: how certain predictions are, and how much they change between steps.

Shape legend: A running rows, C classes (1 in regression), L cells. Steps are numbered from 1. If an answer has L cells
with C classes each, logits are (A, L, C). The least certain cell then decides, and two answers agree if all their cells
agree.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from adadepth.halting.exit_decisions import LOGITS, ExitRule, StepView


@dataclass(frozen=True)
class _Certainty(ExitRule):
    """Base class of exit rules that stop at the first step at which the prediction is certain enough."""

    counts_steps = False
    needs = frozenset({LOGITS})
    classes_only = True
    largest: ClassVar[float] = 1.0
    threshold: float

    def __post_init__(self) -> None:
        self._check("threshold", 0.0, self.largest)

    def with_level(self, level: float) -> ExitRule:
        """Return a copy of the exit rule whose threshold is the given level in (0, 1)."""
        return replace(self, threshold=level)

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return which rows exit at this step because their predictions are certain enough, bool (A,)."""
        return _combine_cells(self.is_certain(_logits(view))), memory

    @abstractmethod
    def is_certain(self, logits: Tensor) -> Tensor:
        """Return whether each prediction is certain enough, logits (A, C) to bool (A,), or (A, L, C) to (A, L)."""


@dataclass(frozen=True)
class Entropy(_Certainty):
    """Exit at the first step whose prediction has an entropy below the threshold, in nats (DeeBERT, ACL 2020)."""

    name = "entropy"
    largest = math.inf

    def with_level(self, level: float) -> ExitRule:
        """Return a copy of the exit rule with the entropy threshold (1 - l) / l for a level l in (0, 1)."""
        return Entropy((1.0 - level) / level)

    def is_certain(self, logits: Tensor) -> Tensor:
        """Return whether the entropy of each prediction, in nats, is below the threshold."""
        return _entropy(logits) < self.threshold


@dataclass(frozen=True)
class NormalisedEntropy(_Certainty):
    """Exit at the first step with normalised entropy H / log C below the threshold ("speed" in FastBERT, ACL 2020)."""

    name = "normalised_entropy"
    threshold: float = 0.5

    def with_level(self, level: float) -> ExitRule:
        """Return a copy of the exit rule with the threshold 1 - l for a level l in (0, 1)."""
        return NormalisedEntropy(1.0 - level)

    def is_certain(self, logits: Tensor) -> Tensor:
        """Return whether the entropy of each prediction, divided by log C, is below the threshold."""
        return _entropy(logits) / math.log(logits.shape[-1]) < self.threshold


@dataclass(frozen=True)
class Confidence(_Certainty):
    """Exit at the first step at which one class has a probability above the threshold."""

    name = "confidence"

    def is_certain(self, logits: Tensor) -> Tensor:
        """Return whether the probability of the likeliest class is above the threshold."""
        return logits.softmax(dim=-1).amax(dim=-1) > self.threshold


@dataclass(frozen=True)
class Margin(_Certainty):
    """Exit at the first step at which the top-2 class probabilities differ by more than the threshold.

    CALM (NeurIPS 2022) uses this rule.
    """

    name = "margin"

    def is_certain(self, logits: Tensor) -> Tensor:
        """Return whether the top-2 class probabilities differ by more than the threshold."""
        first, second = logits.softmax(dim=-1).topk(2, dim=-1).values.unbind(dim=-1)
        return first - second > self.threshold


@dataclass(frozen=True)
class Patience(ExitRule):
    """Exit once `patience` consecutive steps have left the prediction unchanged (PABEE, arXiv 2006.04152).

    Two classifications agree if the likeliest class is the same. The class is then stable for `patience` + 1 steps. Two
    regression values agree if they differ by less than `tolerance` (0.2 in PABEE's code). The memory holds the number
    of consecutive agreements and the previous prediction, with one column for each cell.
    """

    name = "patience"
    counts_steps = False
    needs = frozenset({LOGITS})
    patience: int = 3
    tolerance: float = 0.2

    def __post_init__(self) -> None:
        self._check("patience", 1)
        self._check("tolerance", 0.0)

    def start(self, rows: int, device: torch.device | str, generator: torch.Generator | None = None) -> Tensor:
        """Return the rule's initial memory: a count of 0 unchanged predictions, and NaN as the previous prediction."""
        nothing = torch.full((rows,), math.nan, device=device)
        return torch.stack([torch.zeros_like(nothing), nothing], dim=1)

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return which rows exit at this step because their prediction has not changed for `patience` steps."""
        logits, agreements, previous = _logits(view), memory[:, 0], memory[:, 1:]
        if logits.shape[-1] == 1:
            prediction = logits.flatten(1)
            agrees = (prediction - previous).abs() < self.tolerance
        else:
            prediction = logits.argmax(dim=-1).float().view(logits.shape[0], -1)
            agrees = prediction == previous
        agreements = torch.where(agrees.all(dim=1), agreements + 1.0, 0.0)
        return agreements >= self.patience, torch.cat([agreements.unsqueeze(1), prediction], dim=1)


@dataclass(frozen=True)
class Divergence(ExitRule):
    """Exit at the first step n with KL(p_{n-1} || p_n) below the threshold, in nats (Huginn, arXiv 2502.05171).

    No row exits at the first step because it has no previous prediction. The memory holds log p_{n-1}, with one column
    for every class of every cell, and so it is as large as the predictions of one step.
    """

    name = "kl"
    counts_steps = False
    needs = frozenset({LOGITS})
    classes_only = True
    threshold: float

    def __post_init__(self) -> None:
        self._check("threshold", 0.0)

    def with_level(self, level: float) -> ExitRule:
        """Return a copy of the exit rule with the threshold (1 - l) / l for a level l in (0, 1)."""
        return Divergence((1.0 - level) / level)

    def start(self, rows: int, device: torch.device | str, generator: torch.Generator | None = None) -> Tensor:
        """Return the rule's initial memory of NaN, which prevents an exit at the first step."""
        return torch.full((rows, 1), math.nan, device=device)

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return which rows exit at this step because their prediction changed too little."""
        now = _logits(view).log_softmax(dim=-1)
        before = memory.view(now.shape) if memory.numel() == now.numel() else torch.full_like(now, math.nan)
        share = before.exp()
        divergence = torch.where(share == 0.0, 0.0, share * (before - now)).sum(dim=-1)
        return _combine_cells(divergence < self.threshold), now.flatten(1)


def _logits(view: StepView) -> Tensor:
    assert view.logits is not None
    return view.logits


def _combine_cells(decisions: Tensor) -> Tensor:
    """Reduce exit decisions per cell, (A, L), to one per row, true if all cells agree; (A,) is returned unchanged."""
    return decisions if decisions.dim() == 1 else decisions.flatten(1).all(dim=1)


def _entropy(logits: Tensor) -> Tensor:
    """Return the entropy of each prediction in nats, from logits (A, C) to (A,)."""
    entropy: Tensor = torch.special.entr(logits.softmax(dim=-1)).sum(dim=-1)
    return entropy
