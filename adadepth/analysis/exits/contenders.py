"""What a study of exit rules compares: rules on a small grid, a control that knows nothing, and a ceiling.

Shape legend: M examples, N steps, C classes (1 in regression). Steps count from 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adadepth.analysis.measure.scoring import is_right
from adadepth.halting.exit_rules import (
    Confidence,
    Correct,
    Entropy,
    ExitRule,
    Expectation,
    Fixed,
    Margin,
    NormalisedEntropy,
    Patience,
    Quantile,
    Sample,
    parse_rule,
    supported_rules,
)


def standard_rules(signals: frozenset[str], num_classes: int, max_steps: int) -> list[str]:
    """Labels of every supported rule on a small grid, of an installed package's at its defaults: a study of all."""
    fixed = torch.linspace(1, max_steps, min(max_steps, 12)).round().long().unique().tolist()
    uncertainty = (0.05, 0.1, 0.2, 0.3, 0.5)
    grids: dict[str, list[ExitRule]] = {
        "quantile": [Quantile(q) for q in (0.1, 0.25, 0.5, 0.75, 0.9)],
        "sample": [Sample()],
        "expectation": [Expectation()],
        "fixed": [Fixed(k) for k in fixed],
        "entropy": [Entropy(share) for share in uncertainty],
        "normalised_entropy": [NormalisedEntropy(share) for share in uncertainty],
        "confidence": [Confidence(threshold) for threshold in (0.6, 0.75, 0.9, 0.95, 0.99)],
        "margin": [Margin(threshold) for threshold in (0.2, 0.5, 0.8, 0.9, 0.98)],
        "correct": [Correct(threshold) for threshold in (0.5, 0.8, 0.9, 0.95, 0.99)],
        "patience": [Patience(count) for count in (1, 2, 3, 4, 6) if count < max_steps],
    }
    supported = supported_rules(signals, num_classes)
    return [rule.label for name in supported for rule in (grids[name] if name in grids else [parse_rule(name)])]


def random_exits(exit_steps: Tensor, generator: torch.Generator) -> Tensor:
    """Control: the same exit steps, dealt out to the examples at random; int64 (M,). The generator is on the CPU."""
    order = torch.randperm(len(exit_steps), generator=generator)
    return exit_steps[order.to(exit_steps.device)]


def oracle_exits(step_logits: Tensor, labels: Tensor) -> Tensor:
    """Upper bound, not a system: the first step whose prediction is right, else N; int64 (M,).

    In regression the first step with the smallest absolute error.

    Args:
        step_logits: (M, N, C), or (M, N, L, C).
        labels: Classes or values, (M,), or classes of cells, (M, L).
    """
    if step_logits.shape[-1] == 1:
        errors = (step_logits.squeeze(-1).float() - labels.float().unsqueeze(1)).abs()
        return errors.argmin(dim=1) + 1
    right = is_right(step_logits, labels)
    wrong_so_far = (~right).int().cumprod(dim=1).sum(dim=1)
    return (wrong_so_far + 1).clamp(max=step_logits.shape[1])
