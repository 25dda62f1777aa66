"""Base class of exit rules, which decide after each step which examples exit, and offline evaluation on recorded steps.

Shape legend: A running rows, M examples, N steps, C classes (1 in regression). Steps are numbered from 1. If an answer
has many cells with several classes each, logits have a dimension for the cells before that of the classes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple, Self

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
    """Model outputs at one step that an exit rule reads, for the rows that are still running.

    Attributes:
        step: Number of the step, counted from 1.
        max_updates: Largest number of updates N.
        logits: Logits, float32, (A, C), or None if the rule does not need them.
        halting_logits: Halting logits, float32, (A,), or None if the rule does not need them. If the model estimates
            whether its answers are right, these are the logits of that estimate.
        moves: Distance and acceleration of the states, (A, 2), or None if the rule does not need them; see
            `state_moves`.
    """

    step: int
    max_updates: int
    logits: Tensor | None
    halting_logits: Tensor | None
    moves: Tensor | None = None


class RecordedSteps(NamedTuple):
    """Examples that ran all steps, to which the parameters of an exit rule are fitted.

    Attributes:
        views: Outputs at every step that the rule reads, for all M examples.
        losses: Loss after every step, float32 (M, N): cross-entropy in nats, or squared error in regression.
        right: Whether the prediction after every step is right, boolean (M, N), or None in regression.
    """

    views: Sequence[StepView]
    losses: Tensor
    right: Tensor | None


@dataclass(frozen=True)
class ExitRule(ABC):
    """Base class of exit rules, which decide at which step each row exits. Every row exits at the last step.

    Attributes:
        name: Name in configurations.
        needs: Signals that the model must provide: any of `logits`, `halting`, `correctness` and `states`.
        mixes: Whether the prediction is a mixture over all steps instead of the prediction at the exit step.
        classes_only: Whether the rule is undefined for regression.
        counts_steps: Whether decisions depend on the number of the step, so that rows at different steps need separate
            calls.
        fitted: Names of the parameters that `fit` sets. Others, such as a threshold, belong to the user.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]]
    mixes: ClassVar[bool] = False
    classes_only: ClassVar[bool] = False
    counts_steps: ClassVar[bool] = True
    fitted: ClassVar[tuple[str, ...]] = ()

    @property
    def label(self) -> str:
        """Exit rule as text, name and parameters, such as `quantile:0.5`; `parse_rule` parses it."""
        return label(self)

    def start(self, rows: int, device: torch.device | str, generator: torch.Generator | None = None) -> Tensor:
        """Return the initial memory of an exit rule, k numbers for each row, float32, (rows, k).

        The memory holds the k numbers per row that the rule needs from earlier steps. The caller keeps it for the
        running rows.
        """
        return torch.zeros(rows, 1, device=device)

    @property
    def reads(self) -> frozenset[str]:
        """Signals, such as logits, that the rule reads after every step; their compute counts as its cost."""
        return self.needs

    def with_level(self, level: float) -> ExitRule | None:
        """Return a copy of the exit rule with the threshold for a level in (0, 1), or None if it has no threshold.

        Levels put the thresholds of all rules on one scale. A higher level never makes a row exit earlier.
        """
        return None

    @property
    def needs_fit(self) -> bool:
        """Whether the rule has parameters for `fit`, and all of them still have their defaults."""
        defaults = {field.name: field.default for field in fields(self)}
        return bool(self.fitted) and all(getattr(self, name) == defaults[name] for name in self.fitted)

    def fit(self, recorded: RecordedSteps) -> Self:
        """Return a copy of the exit rule with the parameters `fitted`, which are finite numbers.

        A comparison of exit rules calls it with one half of the examples, and scores the copy on the other half.
        """
        raise NotImplementedError

    @abstractmethod
    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Decide which rows exit at this step, bool (A,), and return the rule's memory for the next step, (A, k).

        The memory of a row may have more columns after its first step (see `pad_memory`). A rule must ignore this
        padding.
        """

    def _check(self, parameter: str, low: float, high: float = math.inf) -> None:
        value = getattr(self, parameter)
        if not low <= value <= high or math.isinf(value):
            allowed = f"at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
            raise ConfigError(f"exit rule {self.name}: {parameter}={value} must be {allowed}")


def start_memory(
    rule: ExitRule, rows: int, device: torch.device | str, generator: torch.Generator | None = None
) -> Tensor:
    """Return the initial memory of an exit rule, (rows, k); see `ExitRule.start`.

    Raises:
        ConfigError: If the memory has another shape.
    """
    return _check_memory(rule, rule.start(rows, device, generator), rows)


def decide_exits(rule: ExitRule, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Return which rows exit at this step, bool (A,), and the new memory, (A, k); see `ExitRule.decide`.

    Raises:
        ConfigError: If the decision or the memory has another shape, or the decision is not boolean.
    """
    rows = memory.shape[0]
    exits, memory = rule.decide(view, memory)
    if exits.shape != (rows,) or exits.dtype != torch.bool:
        returned = f"a decision of shape {tuple(exits.shape)} and {exits.dtype}"
        raise ConfigError(f"exit rule {rule.name!r}: returned {returned}, not ({rows},) and torch.bool")
    return exits, _check_memory(rule, memory, rows)


def _check_memory(rule: ExitRule, memory: Tensor, rows: int) -> Tensor:
    """Return the memory of an exit rule, or raise an error if its shape is not (rows, k)."""
    if memory.dim() != 2 or memory.shape[0] != rows:
        shape = tuple(memory.shape)
        raise ConfigError(f"exit rule {rule.name!r}: returned a memory of shape {shape}, not ({rows}, k)")
    return memory


def pad_memory(memory: Tensor, columns: int) -> Tensor:
    """Pad the memory of an exit rule with columns of NaN, (A, k) to (A, columns)."""
    return nn.functional.pad(memory, (0, max(columns - memory.shape[1], 0)), value=math.nan)


def all_rows(memory: Tensor, value: bool) -> Tensor:
    """Return the same exit decision, true or false, for every row, bool (A,)."""
    return torch.full(memory.shape[:1], value, device=memory.device)


def apply_rule(
    rule: ExitRule,
    step_logits: Tensor | None,
    halting_logits: Tensor | None,
    generator: torch.Generator | None = None,
    moves: Tensor | None = None,
) -> Tensor:
    """Return the step at which each recorded example exits under a rule, int64 (M,), as in an online run.

    Args:
        rule: Exit rule.
        step_logits: Logits of every step, (M, N, C), if the rule needs them.
        halting_logits: Halting logits of every step, (M, N), if the rule needs them.
        generator: Generator on the CPU for a rule that samples.
        moves: Distances and accelerations of the states, (M, N, 2), if the rule needs them.

    Raises:
        ConfigError: If the rule returns tensors of wrong shapes.
    """
    recorded = (step_logits, halting_logits, moves)
    signal = next(values for values in recorded if values is not None)
    rows, max_updates = signal.shape[:2]
    memory = start_memory(rule, rows, signal.device, generator)
    exit_steps = torch.full((rows,), max_updates, device=signal.device)
    running = all_rows(memory, True)
    for step in range(1, max_updates):
        outputs = [None if values is None else values[:, step - 1].float() for values in recorded]
        exits, memory = decide_exits(rule, StepView(step, max_updates, *outputs), memory)
        exit_steps = torch.where(running & exits, step, exit_steps)
        running = running & ~exits
    return exit_steps


def select_predictions(
    rule: ExitRule, step_logits: Tensor, halting_logits: Tensor | None, exit_steps: Tensor
) -> Tensor:
    """Return the logits of each recorded example at its exit step, or the mixture over steps, float32, (M, C).

    For a mixing rule the prediction is the logarithm of the mixed probabilities, so that its softmax is the mixture. In
    regression it is the mixed value. The mixture is weighted by the halting distribution, in which the last step gets
    the leftover.

    Args:
        rule: Exit rule.
        step_logits: Logits of every step, (M, N, C). Steps after the exit may be NaN.
        halting_logits: Halting logits of every step, (M, N), if the rule mixes.
        exit_steps: Exit steps, int64, (M,).
    """
    step_logits = step_logits.float()
    if not rule.mixes:
        return step_logits[torch.arange(exit_steps.shape[0], device=exit_steps.device), exit_steps - 1]
    assert halting_logits is not None
    log_weights = halting_distribution(halting_logits, "leftover").log_pmf.unsqueeze(-1)
    if step_logits.shape[-1] == 1:
        return (log_weights.exp() * step_logits).sum(dim=1)
    return (log_weights + step_logits.log_softmax(dim=-1)).logsumexp(dim=1)
