"""What an exit rule is: decisions, step by step, for the rows that still run, and the same on recorded steps.

Shape legend: A rows that still run, M examples, N steps, C classes (1 in regression). Steps count from 1. Where an
answer has many cells, each with its classes, logits have a dimension for the cells before that of the classes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from adadepth.errors import ConfigError
from adadepth.halting.distribution import halting_distribution
from adadepth.halting.rules import label

LOGITS = "logits"
HALTING_SIGNAL = "halting"
CORRECTNESS = "correctness"
STATES = "states"


class StepView(NamedTuple):
    """What the running rows said at one step: logits (A, C) and halting logits (A,), float32, None if not given.

    Of a model that judges its answers, the halting logits are those of being right. Where the model's states are read,
    `moves` (A, 2) says how they moved, see `state_moves`.
    """

    step: int
    max_updates: int
    logits: Tensor | None
    halting_logits: Tensor | None
    moves: Tensor | None = None


@dataclass(frozen=True)
class ExitRule(ABC):
    """A rule and its parameters. Whoever is still running at the last step exits there, whatever the rule says.

    Attributes:
        name: The name in configurations.
        needs: What a model must offer, of `logits`, `halting`, `correctness` and `states`.
        mixes: Whether the prediction is a mixture over all steps, not that of the exit step.
        classes_only: Whether the rule means nothing in regression.
        counts_steps: Whether it asks which step it is, so that only rows at the same step can be asked together.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]]
    mixes: ClassVar[bool] = False
    classes_only: ClassVar[bool] = False
    counts_steps: ClassVar[bool] = True

    @property
    def label(self) -> str:
        """Name and parameters, such as `quantile:0.5`; `parse_rule` reads it back. Later defaults are left out."""
        return label(self)

    def start(self, rows: int, device: torch.device | str, generator: torch.Generator | None = None) -> Tensor:
        """Memory before the first step, float32, (rows, k). The caller keeps it row by row with the running rows."""
        return torch.zeros(rows, 1, device=device)

    @property
    def reads(self) -> frozenset[str]:
        """What it reads of a row after every step, and is priced for; of logits every row is given one prediction."""
        return self.needs

    def at_level(self, level: float) -> ExitRule | None:
        """The same rule with the threshold of a level in (0, 1), of which a higher one never lets a row exit earlier.

        None: it has no threshold that sets its depth.
        """
        return None

    @abstractmethod
    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return which rows exit now, bool (A,), and the memory for the next step, (A, k).

        A rule may remember more of a row once it has seen it, see `widened`; it takes what was filled up as nothing.
        """

    def _check(self, parameter: str, low: float, high: float = math.inf) -> None:
        value = getattr(self, parameter)
        if not low <= value <= high or math.isinf(value):
            allowed = f"at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
            raise ConfigError(f"exit rule {self.name}: {parameter}={value} must be {allowed}")


def widened(memory: Tensor, columns: int) -> Tensor:
    """A memory beside another one that has more columns: filled up with NaN, (A, k) to (A, columns)."""
    return nn.functional.pad(memory, (0, max(columns - memory.shape[1], 0)), value=math.nan)


def all_rows(memory: Tensor, value: bool) -> Tensor:
    """The same decision for every row, bool (A,)."""
    return torch.full((len(memory),), value, device=memory.device)


def apply_rule(
    rule: ExitRule,
    step_logits: Tensor | None,
    halting_logits: Tensor | None,
    generator: torch.Generator | None = None,
    moves: Tensor | None = None,
) -> Tensor:
    """Exit steps, int64 (M,), by the same decisions as online, on what all steps said.

    Args:
        rule: The rule.
        step_logits: (M, N, C), where the rule needs them.
        halting_logits: (M, N), where the rule needs them.
        generator: For a rule that draws, on the CPU.
        moves: (M, N, 2), where the rule needs states.
    """
    recorded = (step_logits, halting_logits, moves)
    given = next(values for values in recorded if values is not None)
    rows, max_updates = given.shape[:2]
    memory = rule.start(rows, given.device, generator)
    exit_steps = torch.full((rows,), max_updates, device=given.device)
    running = all_rows(memory, True)
    for step in range(1, max_updates):
        said = [None if values is None else values[:, step - 1].float() for values in recorded]
        exits, memory = rule.decide(StepView(step, max_updates, *said), memory)
        exit_steps = torch.where(running & exits, step, exit_steps)
        running = running & ~exits
    return exit_steps


def predictions_at(rule: ExitRule, step_logits: Tensor, halting_logits: Tensor | None, exit_steps: Tensor) -> Tensor:
    """Each example's prediction under a rule, (M, C) float32: its logits at its own exit step.

    A rule that mixes gives the logarithm of the mixed probabilities, whose softmax is the mixture, or the mixed value
    in regression; the weights are the halting distribution with the leftover on the last step.

    Args:
        rule: The rule.
        step_logits: (M, N, C); steps after the exit may be NaN.
        halting_logits: (M, N), where the rule mixes.
        exit_steps: int64, (M,).
    """
    step_logits = step_logits.float()
    if not rule.mixes:
        return step_logits[torch.arange(len(exit_steps), device=exit_steps.device), exit_steps - 1]
    assert halting_logits is not None
    log_weights = halting_distribution(halting_logits, "leftover").log_pmf.unsqueeze(-1)
    if step_logits.shape[-1] == 1:
        return (log_weights.exp() * step_logits).sum(dim=1)
    return (log_weights + step_logits.log_softmax(dim=-1)).logsumexp(dim=1)
