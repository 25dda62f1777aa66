"""Fit of exit rules with learned parameters on one half of the examples, so that the other half scores them.

The halves are those on which `exit_rule_selection` selects and evaluates rules.

Shape legend: M examples, N steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from numbers import Real

import torch
from torch import Tensor

from adadepth.config.kinds import Problem
from adadepth.errors import ConfigError
from adadepth.halting.exit_rules import CORRECTNESS, HALTING_SIGNAL, LOGITS, STATES, ExitRule, RecordedSteps, StepView
from adadepth.metrics.halves import select_first_half
from adadepth.metrics.scoring import compute_example_losses, is_right
from adadepth.metrics.step_records import StepRecords

_DRAWN = 64  # examples of a trial


def fit_rules(
    rules: Sequence[ExitRule], records: StepRecords, sequences: Tensor, problem: Problem
) -> tuple[list[ExitRule], Tensor]:
    """Fit the exit rules that need it on the first half of the examples.

    Args:
        rules: Exit rules; those without parameters to fit are returned as they are.
        records: Records of a labelled set with the logits of every step.
        sequences: Number of the sequence of each example, (M,). Examples of one sequence stay in one half.
        problem: Kind of prediction.

    Returns:
        The rules, and a mask of the examples that may score them, boolean (M,): all if no rule was fitted.

    Raises:
        ConfigError: If there is only one sequence, or the fit of a rule fails or returns no finite parameters.
    """
    unfitted = [rule for rule in rules if rule.needs_fit]
    if not unfitted:
        return list(rules), torch.ones_like(sequences, dtype=torch.bool)
    is_first = torch.from_numpy(select_first_half(sequences.numpy()))
    if not is_first.any():
        raise ConfigError(f"exit rule {unfitted[0].label!r}: needs at least two sequences, to fit it on one")
    half = records.select(is_first)
    return [_fit_rule(rule, half, problem) if rule.needs_fit else rule for rule in rules], ~is_first


def try_fit(rule: ExitRule, classes: int, steps: int) -> None:
    """Fit an exit rule to drawn outputs, so that a mistake in its `fit` shows before an evaluation, not after it.

    Only mistakes that do not depend on the data are reported, such as an unknown field. Random draws of `fit` do not
    change those of the run.

    Args:
        rule: Exit rule with parameters to fit.
        classes: Number of classes C, which is 1 in regression.
        steps: Number of steps N.

    Raises:
        ConfigError: If `fit` has such a mistake, or returns no exit rule of its class.
    """
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(steps, _DRAWN, classes, generator=generator)
    signals, moves = torch.randn(steps, _DRAWN, generator=generator), torch.rand(steps, _DRAWN, 2, generator=generator)
    views = [
        StepView(
            step + 1,
            steps,
            logits[step] if LOGITS in rule.needs else None,
            signals[step] if rule.needs & {HALTING_SIGNAL, CORRECTNESS} else None,
            moves[step] if STATES in rule.needs else None,
        )
        for step in range(steps)
    ]
    losses = torch.rand(_DRAWN, steps, generator=generator)
    right = None if classes == 1 else torch.rand(_DRAWN, steps, generator=generator) < 0.5
    with torch.random.fork_rng(devices=[]), suppress(FitError):
        _call_fit(rule, RecordedSteps(views, losses, right))


class FitError(ConfigError):
    """Failure of a fit that may depend on the data, such as a singular matrix."""


def _call_fit(rule: ExitRule, recorded: RecordedSteps) -> ExitRule:
    """Return the exit rule that `fit` returns, or raise an error of one line that names the rule.

    Raises:
        ConfigError: If `fit` has a mistake in its code, or returns something else than an exit rule of its class.
        FitError: If it fails for another reason.
    """
    try:
        fitted = rule.fit(recorded)
    except (AttributeError, TypeError, NameError) as error:
        fields = f"; recorded steps have {', '.join(RecordedSteps._fields)}" if "RecordedSteps" in str(error) else ""
        raise ConfigError(f"exit rule {rule.label!r}: fit raised {type(error).__name__}: {error}{fields}") from error
    except Exception as error:
        text = " ".join(str(error).split())
        raise FitError(f"exit rule {rule.label!r}: fit raised {type(error).__name__}: {text}") from error
    if type(fitted) is not type(rule):
        raise ConfigError(f"exit rule {rule.label!r}: fit returned {type(fitted).__name__}, not {type(rule).__name__}")
    for name in rule.fitted:
        if not isinstance(value := getattr(fitted, name), Real):
            raise ConfigError(f"exit rule {rule.label!r}: fit returned {name}={value!r:.40}, which is no number")
    return fitted


def _fit_rule(rule: ExitRule, records: StepRecords, problem: Problem) -> ExitRule:
    """Return an exit rule with parameters fitted to all examples of some records."""
    assert records.step_logits is not None
    assert records.labels is not None
    labels, steps = records.labels, range(1, records.max_updates + 1)
    losses = [compute_example_losses(logits, labels, problem) for logits in records.step_logits.unbind(dim=1)]
    right = None if problem == "regression" else is_right(records.step_logits, labels)
    views = [_view_step(rule, records, step) for step in steps]
    fitted = _call_fit(rule, RecordedSteps(views, torch.stack(losses, dim=1), right))
    for name in rule.fitted:
        if not math.isfinite(getattr(fitted, name)):
            raise ConfigError(f"exit rule {rule.label!r}: fit returned {name}={getattr(fitted, name)}")
    return fitted


def _view_step(rule: ExitRule, records: StepRecords, step: int) -> StepView:
    """Return what a rule reads of all examples at a step, counted from 1."""
    signals = {
        LOGITS: records.step_logits,
        HALTING_SIGNAL: records.halting_logits,
        CORRECTNESS: records.halting_logits,
        STATES: records.state_moves,
    }
    read = {name: values[:, step - 1].float() for name in rule.needs if (values := signals[name]) is not None}
    halting = read.get(HALTING_SIGNAL, read.get(CORRECTNESS))
    return StepView(step, records.max_updates, read.get(LOGITS), halting, read.get(STATES))
