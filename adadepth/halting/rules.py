"""Halting rules: how much of its halting mass a unit spends at an update.

    q_n = f(p_n, h_{n-1}, n)

takes the place of p_n in `adadepth.halting.act`, which sums it up, h_n = h_{n-1} + q_n, halts a unit whose sum exceeds
1 - epsilon, and gives the update the weight q_n, the last one what is left. A rule of one's own is a subclass that an
entry point of the group `adadepth.halting_rules` names. This module imports no torch, so that settings can name rules.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from adadepth.halting.named import parse_named, problem_with_rule
from adadepth.plugins import installed

if TYPE_CHECKING:
    from torch import Tensor

GROUP = "adadepth.halting_rules"


@dataclass(frozen=True)
class HaltingRule(ABC):
    """A rule and its parameters, which are its fields: numbers with defaults.

    Attributes:
        name: The name in configurations.
    """

    name: ClassVar[str]

    @abstractmethod
    def mass(self, probability: Tensor, accumulated: Tensor, step: int) -> Tensor:
        """q_n, from 0 on, float32; called for all units, and read of those that still run.

        Args:
            probability: p_n of the halting unit, in (0, 1), float32, any shape.
            accumulated: h_{n-1}, 0 before the first update, the same shape.
            step: n, counted from 1.
        """


@dataclass(frozen=True)
class Act(HaltingRule):
    """q_n = p_n (Graves 2016, arXiv 1603.08983)."""

    name = "act"

    def mass(self, probability: Tensor, accumulated: Tensor, step: int) -> Tensor:
        """See the class."""
        return probability


@cache
def halting_rules() -> Mapping[str, type[HaltingRule]]:
    """The rules by name: this package's, and those of installed packages.

    Raises:
        ConfigError: If one of an installed package is broken, or has a name that is taken.
    """
    own: dict[str, type[HaltingRule]] = {Act.name: Act}
    return own | installed(GROUP, "halting rule", own, _wrong)


def halting_rule(text: str) -> HaltingRule:
    """The rule that `name` or `name:parameter[:parameter]` stands for.

    Raises:
        ConfigError: One line naming the text and what is allowed.
    """
    return parse_named(text, halting_rules(), "halting rule")


def _wrong(rule: object, name: str) -> str | None:
    return problem_with_rule(rule, name, HaltingRule)
