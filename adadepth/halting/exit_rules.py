"""The exit rules: when does an example stop, given what the steps so far have said?

A rule decides online, step by step, for the rows that still run, and remembers a few numbers a row. So one definition
serves a model whose finished rows leave the batch, and `apply_rule` on what all steps said.

Shape legend: A rows that still run, M examples, N steps, C classes (1 in regression). Steps count from 1. Where an
answer has many cells, each with its classes, logits have a dimension for the cells before that of the classes, and a
rule asks all of them: the least certain cell decides, and answers agree where all of their cells do.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from adadepth.errors import ConfigError
from adadepth.halting.distribution import halting_distribution
from adadepth.halting.rules import label, parse_named, problem_with_rule
from adadepth.settings.plugins import installed

GROUP = "adadepth.exit_rules"
LOGITS = "logits"
HALTING_SIGNAL = "halting"
CORRECTNESS = "correctness"
_SIGNAL_NAMES = {
    LOGITS: "logits of every step",
    HALTING_SIGNAL: "halting probabilities",
    CORRECTNESS: "a judgement whether its answer is right",
}


class StepView(NamedTuple):
    """What the running rows said at one step: logits (A, C) and halting logits (A,), float32, None if not given.

    Of a model that judges its answers, the halting logits are those of being right.
    """

    step: int
    max_updates: int
    logits: Tensor | None
    halting_logits: Tensor | None


@dataclass(frozen=True)
class ExitRule(ABC):
    """A rule and its parameters. Whoever is still running at the last step exits there, whatever the rule says.

    Attributes:
        name: The name in configurations.
        needs: What a model must offer, of `logits`, `halting` and `correctness`.
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
    rows, max_updates = given.shape[:2]
    memory = rule.start(rows, given.device, generator)
    exit_steps = torch.full((rows,), max_updates, device=given.device)
    running = _all_rows(memory, True)
    for step in range(1, max_updates):
        logits = None if step_logits is None else step_logits[:, step - 1].float()
        halting = None if halting_logits is None else halting_logits[:, step - 1].float()
        exits, memory = rule.decide(StepView(step, max_updates, logits, halting), memory)
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


@dataclass(frozen=True)
class Quantile(ExitRule):
    """Exit at the first step with cdf_n > q (Q-exit, Balagansky & Gavrilov 2022, arXiv 2204.03276).

    The cdf is the online one, 1 - prod_{j<=n} (1 - lambda_j): how the distribution will be truncated at its end is not
    known yet. The memory is that product, the probability of still running.
    """

    name = "quantile"
    counts_steps = False
    needs = frozenset({HALTING_SIGNAL})
    q: float = 0.5

    def __post_init__(self) -> None:
        self._check("q", 0.0, 1.0)

    def start(self, rows: int, device: torch.device | str, generator: torch.Generator | None = None) -> Tensor:
        """A probability of 1 that a row is still running."""
        return torch.ones(rows, 1, device=device)

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Rows exit where the online cdf is above q."""
        running = memory * _continues(view)
        return 1.0 - running[:, 0] > self.q, running


@dataclass(frozen=True)
class Sample(ExitRule):
    """Draw the exit step from the halting distribution (PonderNet): stop at each step with probability lambda_n.

    One uniform number u a row, drawn at the start, and exit at the first n with cdf_n > u: the law is that of a draw at
    every step, and neither the batch nor the order in which rows leave it changes what a row gets.
    """

    name = "sample"
    counts_steps = False
    needs = frozenset({HALTING_SIGNAL})

    def start(self, rows: int, device: torch.device | str, generator: torch.Generator | None = None) -> Tensor:
        """The probability of still running, and u from the generator, which lives on the CPU."""
        level = torch.rand(rows, 1, generator=generator).to(device, non_blocking=True)
        return torch.cat([torch.ones_like(level), level], dim=1)

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Rows exit where the online cdf is above the number drawn for them."""
        running, level = memory[:, :1] * _continues(view), memory[:, 1:]
        return (1.0 - running > level)[:, 0], torch.cat([running, level], dim=1)


@dataclass(frozen=True)
class Expectation(ExitRule):
    """Mix the predictions of all steps: sum_n p_n softmax(logits_n), or sum_n p_n y_n in regression.

    Nobody exits early, so it saves nothing.
    """

    name = "expectation"
    needs = frozenset({LOGITS, HALTING_SIGNAL})
    mixes = True

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """No row exits before the last step."""
        return _all_rows(memory, False), memory


@dataclass(frozen=True)
class Fixed(ExitRule):
    """Exit at step k: the control that adapts nothing."""

    name = "fixed"
    needs = frozenset({LOGITS})
    k: int

    def __post_init__(self) -> None:
        self._check("k", 1)

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """All rows exit at step k."""
        return _all_rows(memory, view.step >= self.k), memory


@dataclass(frozen=True)
class _Certainty(ExitRule):
    """Exit at the first step whose prediction is certain enough, by a measure of its own and a threshold."""

    needs = frozenset({LOGITS})
    classes_only = True
    counts_steps = False
    largest: ClassVar[float] = 1.0
    threshold: float

    def __post_init__(self) -> None:
        self._check("threshold", 0.0, self.largest)

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Rows exit where all their cells are certain."""
        return _all_cells(self.is_certain(_logits(view))), memory

    @abstractmethod
    def is_certain(self, logits: Tensor) -> Tensor:
        """(A, C) to bool (A,), or cell by cell."""


@dataclass(frozen=True)
class Entropy(_Certainty):
    """Exit at the first step whose prediction has an entropy below the threshold, in nats (DeeBERT, ACL 2020)."""

    name = "entropy"
    largest = math.inf

    def is_certain(self, logits: Tensor) -> Tensor:
        """Whether the entropy in nats is below the threshold."""
        return _entropy(logits) < self.threshold


@dataclass(frozen=True)
class NormalisedEntropy(_Certainty):
    """Exit at the first step with H / log C below the threshold, which FastBERT (ACL 2020) calls speed."""

    name = "normalised_entropy"
    threshold: float = 0.5

    def is_certain(self, logits: Tensor) -> Tensor:
        """Whether the entropy over that of equal chances is below the threshold."""
        return _entropy(logits) / math.log(logits.shape[-1]) < self.threshold


@dataclass(frozen=True)
class Confidence(_Certainty):
    """Exit at the first step that gives one class a probability above the threshold."""

    name = "confidence"

    def is_certain(self, logits: Tensor) -> Tensor:
        """Whether the likeliest class is likelier than the threshold."""
        return logits.softmax(dim=-1).amax(dim=-1) > self.threshold


@dataclass(frozen=True)
class Margin(_Certainty):
    """Exit at the first step whose two likeliest classes differ by more than the threshold (CALM, NeurIPS 2022)."""

    name = "margin"

    def is_certain(self, logits: Tensor) -> Tensor:
        """Whether the two likeliest classes differ by more than the threshold."""
        first, second = logits.softmax(dim=-1).topk(2, dim=-1).values.unbind(dim=-1)
        return first - second > self.threshold


@dataclass(frozen=True)
class Patience(ExitRule):
    """Exit once `patience` steps in a row agreed with the step before them (PABEE, arXiv 2006.04152).

    Classes agree when the likeliest one is the same, values when they differ by less than `tolerance` (0.2 in PABEE's
    code). The memory is the number of agreements up to now and the previous prediction, a column for every cell.
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
        """No agreement yet; no prediction yet, NaN, which agrees with nothing."""
        nothing = torch.full((rows,), math.nan, device=device)
        return torch.stack([torch.zeros_like(nothing), nothing], dim=1)

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Rows exit after enough steps in a row that agreed."""
        logits, agreements, previous = _logits(view), memory[:, 0], memory[:, 1:]
        if logits.shape[-1] == 1:
            prediction = logits.flatten(1)
            agrees = (prediction - previous).abs() < self.tolerance
        else:
            prediction = logits.argmax(dim=-1).float().view(len(logits), -1)
            agrees = prediction == previous
        agreements = torch.where(agrees.all(dim=1), agreements + 1.0, 0.0)
        return agreements >= self.patience, torch.cat([agreements.unsqueeze(1), prediction], dim=1)


@dataclass(frozen=True)
class Correct(ExitRule):
    """Exit at the first step whose answer the model takes to be right with a probability above the threshold.

    One half is what tiny recursive models train with (Jolicoeur-Martineau 2025, arXiv 2510.04871: q > 0).
    """

    name = "correct"
    counts_steps = False
    needs = frozenset({CORRECTNESS})
    threshold: float = 0.5

    def __post_init__(self) -> None:
        self._check("threshold", 0.0, 1.0)

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Rows exit where the judgement of their answer is above the threshold."""
        assert view.halting_logits is not None
        return view.halting_logits.sigmoid() > self.threshold, memory


_ALL = (Quantile, Sample, Expectation, Fixed, Entropy, NormalisedEntropy, Confidence, Margin, Patience, Correct)
RULES: dict[str, type[ExitRule]] = {rule.name: rule for rule in _ALL}


@cache
def exit_rules() -> Mapping[str, type[ExitRule]]:
    """The rules by name: this package's, and those of installed packages, whose entry points name the class.

    Raises:
        ConfigError: If one of an installed package is broken, or has a name that is taken.
    """
    return RULES | installed(GROUP, "exit rule", RULES, lambda rule, name: problem_with_rule(rule, name, ExitRule))


# A compiled forward pass, which reads the name of a rule, cannot look into classes or packages: every text is parsed
# once, that of a model by its configuration.
_PARSED: dict[str, ExitRule] = {}


def parse_rule(text: str) -> ExitRule:
    """The rule that `name` or `name:parameter[:parameter]` stands for.

    Raises:
        ConfigError: One line naming the text and what is allowed.
    """
    if text not in _PARSED:
        _PARSED[text] = parse_named(text, exit_rules(), "exit rule")
    return _PARSED[text]


def supported_rules(signals: frozenset[str], num_classes: int, *, one_class: bool = True) -> list[str]:
    """Names of the rules that a model can be run with, see `check_rule`."""
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
) -> None:
    """Refuse a rule that a model cannot support.

    Args:
        rule: The rule.
        signals: What the model offers, of `logits` and `halting`.
        num_classes: Classes, 1 in regression.
        max_updates: N.
        model_type: Names the model in the message.
        one_class: Whether the classes exclude each other; then only do they have one distribution.

    Raises:
        ConfigError: One line with the reason and the rules that the model supports.
    """
    if missing := sorted(rule.needs - signals):
        reason = f"needs {' and '.join(_SIGNAL_NAMES[name] for name in missing)}, which {model_type} does not have"
    elif rule.classes_only and num_classes == 1:
        reason = "needs classes, and this is a regression"
    elif not one_class and (rule.classes_only or rule.mixes):
        reason = "needs classes that exclude each other, and a text has several labels"
    elif isinstance(rule, Fixed) and rule.k > max_updates:
        reason = f"the model has {max_updates} steps"
    else:
        return
    supported = ", ".join(supported_rules(signals, num_classes, one_class=one_class)) or "no exit rule"
    raise ConfigError(f"exit rule {rule.label!r}: {reason}; {model_type} supports {supported}")


def _all_rows(memory: Tensor, value: bool) -> Tensor:
    """The same decision for every row, bool (A,)."""
    return torch.full((len(memory),), value, device=memory.device)


def _continues(view: StepView) -> Tensor:
    """1 - lambda_n, (A, 1)."""
    assert view.halting_logits is not None
    return torch.sigmoid(-view.halting_logits).unsqueeze(1)


def _logits(view: StepView) -> Tensor:
    assert view.logits is not None
    return view.logits


def _all_cells(decisions: Tensor) -> Tensor:
    """What all cells of a row agree to: bool (A,) as it is, (A, L) to (A,)."""
    return decisions if decisions.dim() == 1 else decisions.flatten(1).all(dim=1)


def _entropy(logits: Tensor) -> Tensor:
    """Of the prediction, in nats; (A, C) to (A,)."""
    entropy: Tensor = torch.special.entr(logits.softmax(dim=-1)).sum(dim=-1)
    return entropy
