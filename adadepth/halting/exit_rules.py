"""Registry of exit rules, which decide at which step an example stops, and checks that a model supports a rule.

A rule decides step by step which of the running rows exit, with a memory of a few numbers per row. The same definition
is used online, where exited rows leave the batch, and by `apply_rule` on recorded steps. The base class is in
`adadepth.halting.exit_decisions`. Rules that read predictions are in `exit_by_prediction`. Rules that read halting
probabilities, estimates of correctness or states are in `exit_by_signal`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeVar

from torch import Tensor

from adadepth.config.plugins import load_plugins, register_class
from adadepth.errors import ConfigError
from adadepth.halting.exit_by_prediction import (
    Confidence,
    Divergence,
    Entropy,
    Margin,
    NormalisedEntropy,
    Patience,
)
from adadepth.halting.exit_by_signal import (
    Acceleration,
    Correct,
    Distance,
    Expectation,
    Hazard,
    Quantile,
    Sample,
    state_moves,
)
from adadepth.halting.exit_decisions import (
    CORRECTNESS,
    HALTING_SIGNAL,
    LOGITS,
    STATES,
    ExitRule,
    RecordedSteps,
    StepView,
    all_rows,
    apply_rule,
    pad_memory,
    select_predictions,
)
from adadepth.halting.rules import find_rule_problem, parse_named

__all__ = [
    "CORRECTNESS",
    "HALTING_SIGNAL",
    "LOGITS",
    "RULES",
    "STATES",
    "Acceleration",
    "Confidence",
    "Correct",
    "Distance",
    "Divergence",
    "Entropy",
    "ExitRule",
    "Expectation",
    "Fixed",
    "Hazard",
    "Margin",
    "NormalisedEntropy",
    "Patience",
    "Quantile",
    "RecordedSteps",
    "Sample",
    "StepView",
    "apply_rule",
    "check_fitted",
    "check_rule",
    "exit_rules",
    "list_supported_rules",
    "pad_memory",
    "parse_rule",
    "register_exit_rule",
    "select_predictions",
    "state_moves",
]

GROUP = "adadepth.exit_rules"
_SIGNAL_NAMES = {
    LOGITS: "logits of every step",
    HALTING_SIGNAL: "halting probabilities",
    CORRECTNESS: "an estimate of whether the answer is right",
    STATES: "states of every step",
}


@dataclass(frozen=True)
class Fixed(ExitRule):
    """Exit at step k for every example: a baseline that does not adapt."""

    name = "fixed"
    needs = frozenset({LOGITS})
    k: int

    def __post_init__(self) -> None:
        self._check("k", 1)

    @property
    def reads(self) -> frozenset[str]:
        """Names of the signals that the exit rule reads after every step. There are none by default."""
        return frozenset()

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return true for every row from step k on, so that all rows exit at step k."""
        return all_rows(memory, view.step >= self.k), memory


_ALL = (
    Quantile,
    Hazard,
    Sample,
    Expectation,
    Fixed,
    Entropy,
    NormalisedEntropy,
    Confidence,
    Margin,
    Divergence,
    Patience,
    Correct,
    Distance,
    Acceleration,
)
RULES: dict[str, type[ExitRule]] = {rule.name: rule for rule in _ALL}


_registered: dict[str, type[ExitRule]] = {}
RuleClass = TypeVar("RuleClass", bound="type[ExitRule]")


@cache
def exit_rules() -> Mapping[str, type[ExitRule]]:
    """Return all exit rules by name, including those of plug-ins and of the running program.

    The entry point of a plug-in names the class of its rule.

    Raises:
        ConfigError: If a rule of a plug-in is broken, or if its name is already taken.
    """
    return RULES | load_plugins(GROUP, "exit rule", RULES, _find_problem) | _registered


def register_exit_rule(rule: RuleClass) -> RuleClass:
    """Register an exit rule of the running program, under its name, and return it. It is usable as a decorator.

    A rule that was registered before under this name is replaced, as when a notebook runs a cell again.

    Raises:
        ConfigError: If the rule is broken, or its name is that of another rule.
    """
    register_class(_registered, rule, "exit rule", {*exit_rules()} - {*_registered}, _find_problem)
    exit_rules.cache_clear()
    _PARSED.clear()
    return rule


def _find_problem(rule: Any, name: str) -> str | None:
    """Return why an object is not a valid exit rule with this name, or None if it is valid."""
    if problem := find_rule_problem(rule, name, ExitRule):
        return problem
    if unknown := sorted({*rule.fitted} - {field.name for field in fields(rule)}):
        return f"fits {unknown[0]}, which is no parameter"
    if rule.fitted and rule.fit is ExitRule.fit:
        return "must define fit, because it has fitted parameters"
    return None


# A compiled forward pass reads the name of a rule but cannot inspect classes or packages, so every text is parsed once,
# that of a model by its configuration.
_PARSED: dict[str, ExitRule] = {}


def parse_rule(text: str) -> ExitRule:
    """Parse an exit rule from its text, `name` or `name:parameter[:parameter]`, such as `quantile:0.5`.

    Raises:
        ConfigError: If the text is no rule. The message is one line that names the text and the allowed values.
    """
    if text not in _PARSED:
        _PARSED[text] = parse_named(text, exit_rules(), "exit rule")
    return _PARSED[text]


def check_fitted(rule: ExitRule) -> None:
    """Raise an error if the parameters of an exit rule must be fitted before it can decide.

    Raises:
        ConfigError: The message is one line that names the commands that fit and save them.
    """
    if rule.needs_fit:
        how = f"exit_rules=[{rule.name}] fits them, and adopt_rule=true saves the model with the recommended rule"
        raise ConfigError(f"exit rule {rule.label!r}: its parameters {', '.join(rule.fitted)} are not fitted; {how}")


def list_supported_rules(signals: frozenset[str], num_classes: int, *, one_class: bool = True) -> list[str]:
    """Return the names of the exit rules that a model supports, given the signals it computes."""
    return [
        name
        for name, rule in exit_rules().items()
        if rule.needs <= signals
        and not (rule.classes_only and num_classes == 1)
        and (one_class or not (rule.classes_only or rule.mixes))
    ]


def check_rule(
    rule: ExitRule,
    signals: frozenset[str],
    num_classes: int,
    max_updates: int,
    model_type: str,
    *,
    one_class: bool = True,
    may_fit: bool = False,
) -> None:
    """Raise an error if a model does not support an exit rule, for example because it has no halting probabilities.

    Args:
        rule: Exit rule.
        signals: Signals that the model provides: any of `logits`, `halting`, `correctness` and `states`.
        num_classes: Number of classes, which is 1 in regression.
        max_updates: Largest number of updates N.
        model_type: Name of the model for the message.
        one_class: Whether an example has exactly one class, so that the classes share one distribution.
        may_fit: Whether the caller fits a rule whose parameters are not fitted.

    Raises:
        ConfigError: If the model does not support the rule, or its parameters are not fitted. The message is one line
            with the reason and the supported rules.
    """
    if not may_fit:
        check_fitted(rule)
    if missing := sorted(rule.needs - signals):
        reason = f"needs {' and '.join(_SIGNAL_NAMES[name] for name in missing)}, which {model_type} does not have"
    elif rule.classes_only and num_classes == 1:
        reason = "needs classes, but this is a regression"
    elif not one_class and (rule.classes_only or rule.mixes):
        reason = "needs exclusive classes, but a text has several labels"
    elif isinstance(rule, Fixed) and rule.k > max_updates:
        reason = f"the model has {max_updates} steps"
    else:
        return
    supported = ", ".join(list_supported_rules(signals, num_classes, one_class=one_class)) or "no exit rule"
    raise ConfigError(f"exit rule {rule.label!r}: {reason}; {model_type} supports {supported}")
