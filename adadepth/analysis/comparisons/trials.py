"""What a search by Optuna tried, as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Parameter:
    """One dimension of what was searched.

    Attributes:
        key: Of the configuration.
        low: The lowest value, or the first choice.
        high: The highest value, or the last choice.
        is_log: Whether it was drawn evenly in the logarithm.
        choices: All values, of one that has no order.
    """

    key: str
    low: Any
    high: Any
    is_log: bool = False
    choices: Sequence[Any] = ()

    def place(self, value: Any) -> float:
        """Where a value lies between lowest (0) and highest (1)."""
        if self.choices:
            return self.choices.index(value) / max(len(self.choices) - 1, 1)
        low, high, at = (math.log(each) if self.is_log else float(each) for each in (self.low, self.high, value))
        return (at - low) / (high - low) if high > low else 0.5

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition(".")[2]


@dataclass(frozen=True)
class Search:
    """Finished trials of a study.

    Attributes:
        metric: What was optimised.
        less_is_better: Whether it was minimised.
        parameters: What was searched.
        trials: The values of the parameters, and the metric, of every trial that has one.
        importances: By key the share of the metric's variance that the parameter explains (fANOVA, Hutter et al. 2014);
            empty where the trials do not tell.
    """

    metric: str
    less_is_better: bool
    parameters: Sequence[Parameter]
    trials: Sequence[tuple[Mapping[str, Any], float]]
    importances: Mapping[str, float]

    @property
    def best_first(self) -> list[tuple[Mapping[str, Any], float]]:
        """The trials by what they reached."""
        return sorted(self.trials, key=lambda trial: trial[1] if self.less_is_better else -trial[1])
