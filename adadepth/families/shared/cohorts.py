"""Who still runs, and at which step: rows that began together stay together until they exit.

Rows that waited for a place begin later than others, so one pass of the model may have rows at several steps. An exit
rule is asked cohort by cohort, and so knows nothing of the others. Shape legend: A rows that still run, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adadepth.halting.exit_rules import ExitRule, StepView


@dataclass
class Cohort:
    """Rows at the same step.

    Attributes:
        rows: Their numbers, int64, (A,).
        memory: What the exit rule remembers of each, (A, k).
        step: The last one that they took; 0 before the first.
    """

    rows: Tensor
    memory: Tensor
    step: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def split(self, rows: int) -> tuple[Cohort, Cohort]:
        """The first so many rows, and the others."""
        first, others = slice(rows), slice(rows, None)
        return (
            Cohort(self.rows[first], self.memory[first], self.step),
            Cohort(self.rows[others], self.memory[others], self.step),
        )

    def decide(self, rule: ExitRule, logits: Tensor, halting_logits: Tensor | None, max_steps: int) -> Tensor:
        """Ask the rule who exits after the last step, boolean (A,), and remember what it says; in the end everybody."""
        if self.step == max_steps:
            return torch.ones_like(self.rows, dtype=torch.bool)
        exits, self.memory = rule.decide(StepView(self.step, max_steps, logits, halting_logits), self.memory)
        return exits

    def keep(self, positions: Tensor) -> None:
        """Go on with these of the rows only, int64 (A',)."""
        self.rows, self.memory = self.rows[positions], self.memory[positions]


def let_exit(
    rule: ExitRule, running: Sequence[Cohort], logits: Tensor, halting_logits: Tensor | None, max_steps: int
) -> Tensor:
    """Take out of the cohorts who exits; returns the positions of the others among the rows that ran, int64 (A',).

    Args:
        rule: Decides.
        running: Those that took the step.
        logits: Of the first cohort's rows, then of the next one's, (A, C).
        halting_logits: Likewise, (A,).
        max_steps: N.
    """
    sizes = [len(cohort) for cohort in running]
    halting = [None] * len(sizes) if halting_logits is None else _apart(halting_logits, sizes)
    exits = [
        cohort.decide(rule, own_logits, own_halting, max_steps)
        for cohort, own_logits, own_halting in zip(running, _apart(logits, sizes), halting, strict=True)
    ]
    # Waits for the device, once for all cohorts: the next step's shape depends on it.
    stays = torch.cat(exits).logical_not().cpu()
    staying = stays.nonzero().squeeze(1)
    if len(staying) < len(stays):
        for cohort, part in zip(running, _apart(stays, sizes), strict=True):
            cohort.keep(part.nonzero().squeeze(1).to(logits.device))
    return staying.to(logits.device)


def _apart(values: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    """What belongs to each cohort; mostly there is one."""
    return values.split(sizes) if len(sizes) > 1 else [values]
