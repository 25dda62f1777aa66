"""What an exit rule is, and what can be done with any of them.

A rule decides online, step by step, for the rows that still run, and remembers a few numbers a row. So one definition
serves both the model, whose finished rows leave the batch, and the study of many rules on one recorded evaluation.

Shape legend: A rows that still run, M examples, N steps, C classes (1 in regression). Steps count from 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from adadepth.errors import ConfigError
from adadepth.halting.distribution import halting_distribution

LOGITS = "logits"
HALTING = "halting"


class StepView(NamedTuple):
    """What the running rows said at one step: logits (A, C) and halting logits (A,), float32, None if not given."""

    step: int
    max_steps: int
    logits: Tensor | None
    halting_logits: Tensor | None


@dataclass(frozen=True)
class ExitRule(ABC):
    """A rule and its parameters. Whoever is still running at the last step exits there, whatever the rule says.

    Attributes:
        name: The name in configurations.
        needs: What a model must offer, of `logits` and `halting`.
        mixes: Whether the prediction is a mixture over all steps, not that of the exit step.
        classes_only: Whether the rule means nothing in regression.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]]
    mixes: ClassVar[bool] = False
    classes_only: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """Name and parameters, such as `quantile:0.5`; `parse_rule` reads it back. Later defaults are left out."""
        parameters = [(getattr(self, field.name), field.default) for field in fields(self)]
        while len(parameters) > 1 and parameters[-1][0] == parameters[-1][1]:
            parameters.pop()
        return ":".join([self.name, *(_shortest(value) for value, _ in parameters)])

    def start(self, rows: int, device: torch.device | str, generator: torch.Generator | None = None) -> Tensor:
        """Memory before the first step, float32, (rows, k). The caller keeps it row by row with the running rows."""
        return torch.zeros(rows, 1, device=device)

    @abstractmethod
    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return which rows exit now, bool (A,), and the memory for the next step, (A, k)."""

    def _check(self, parameter: str, low: float, high: float = math.inf) -> None:
        value = getattr(self, parameter)
        if not low <= value <= high or math.isinf(value):
            allowed = f"at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
            raise ConfigError(f"exit rule {self.name}: {parameter}={value} must be {allowed}")


def apply_rule(
    rule: ExitRule,
    step_logits: Tensor | None,
    halting_logits: Tensor | None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Exit steps, int64 (M,), by the same decisions as online, on what all steps said.

    Args:
        rule: The rule.
        step_logits: (M, N, C), where the rule needs them.
        halting_logits: (M, N), where the rule needs them.
        generator: For a rule that draws, on the CPU.
    """
    given = step_logits if step_logits is not None else halting_logits
    assert given is not None
    rows, max_steps = given.shape[:2]
    memory = rule.start(rows, given.device, generator)
    exit_steps = torch.full((rows,), max_steps, device=given.device)
    running = all_rows(memory, True)
    for step in range(1, max_steps):
        logits = None if step_logits is None else step_logits[:, step - 1].float()
        halting = None if halting_logits is None else halting_logits[:, step - 1].float()
        exits, memory = rule.decide(StepView(step, max_steps, logits, halting), memory)
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


def random_exits(exit_steps: Tensor, generator: torch.Generator) -> Tensor:
    """Control: the same exit steps, dealt out to the examples at random; int64 (M,). The generator is on the CPU."""
    order = torch.randperm(len(exit_steps), generator=generator)
    return exit_steps[order.to(exit_steps.device)]


def oracle_exits(step_logits: Tensor, labels: Tensor) -> Tensor:
    """Upper bound, not a system: the first step whose prediction is right, else N; int64 (M,).

    In regression the first step with the smallest absolute error.

    Args:
        step_logits: (M, N, C).
        labels: Classes or values, (M,).
    """
    if step_logits.shape[-1] == 1:
        errors = (step_logits.squeeze(-1).float() - labels.float().unsqueeze(1)).abs()
        return errors.argmin(dim=1) + 1
    right = step_logits.argmax(dim=-1) == labels.unsqueeze(1)
    wrong_so_far = (~right).int().cumprod(dim=1).sum(dim=1)
    return (wrong_so_far + 1).clamp(max=step_logits.shape[1])


def all_rows(memory: Tensor, value: bool) -> Tensor:
    """The same decision for every row, bool (A,)."""
    return torch.full((len(memory),), value, device=memory.device)


def _shortest(value: float) -> str:
    """The shortest text that reads back as the number."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)
