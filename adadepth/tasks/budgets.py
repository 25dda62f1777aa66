"""Fitting of a trained model's depth to targets, with measured quality and compute.

The fit uses one half of the first evaluation set; the reported figures are measured on the other half. With
`score_halves`, the scores on the first half are reported too.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from adadepth.budget.fit import Fit, fit_level
from adadepth.budget.target import TOLERANCE, is_held
from adadepth.config import BudgetConfig, BudgetUnit
from adadepth.config.kinds import PREDICTED
from adadepth.data.labelled.splits import spread_rows
from adadepth.errors import ConfigError
from adadepth.halting.exit_rules import parse_rule
from adadepth.metrics.halves import select_first_half
from adadepth.models.contract import DepthKnob
from adadepth.report.budgets import build_budget_row, build_budget_table, format_budgets, write_budgets
from adadepth.report.depth_correction import build_correction_row, describe_change, describe_lost_depths
from adadepth.report.table import plain, to_records
from adadepth.runtime.console import RESULT, say
from adadepth.runtime.devices import move_to_float64_device, select_float64_device
from adadepth.runtime.distributed import all_reduce_sum
from adadepth.tasks.exit_study import study_fitted_rules
from adadepth.tasks.session import Session
from adadepth.training.depth_budget import BUDGET_PREFIX, MEASURES

_CORRECTION_EXAMPLES = 256  # examples
_SHIFT_SCALE = 2.0  # shift of the bias over the logit of the fit's level: shifts from -26 to 18


def compare_requested_budgets(session: Session) -> None:
    """Compare the target depths of an evaluation, or score the halves of its first set, if the settings ask for it."""
    config = session.config
    if config.budget.targets or config.score_halves:
        compare_budgets(config.budget, session)


def compare_budgets(settings: BudgetConfig, session: Session) -> dict[str, Any]:
    """Evaluate a trained model as trained and fitted to each target depth; write, print, track and return the results.

    Afterwards the model keeps the last target. If an exit rule sets the depth, every row has the rule with its
    threshold. An evaluation also compares these rules with fixed exits (`exits`), as `exit_rules` does.
    """
    trainer: Any = session.trainer
    model = trainer.accelerator.unwrap_model(trainer.model)
    name, dataset = next(iter(trainer.evaluation_sets.items()))
    fitting, reporting = split_into_halves(dataset)

    def evaluate(target: float | None, fit: Fit | None) -> dict[str, Any]:
        row = build_budget_row(
            *_evaluate_half(session, name, reporting),
            target,
            None if fit is None else fit._asdict(),
            getattr(model.config, "exit_rule", None),
        )
        if session.config.score_halves:
            row["fitting_metrics"], _ = _evaluate_half(session, name, fitting)
        return row

    rows = [evaluate(None, None)]
    for target in settings.targets:
        assert isinstance(model, DepthKnob), "validated"
        rows.append(
            evaluate(target, model.fit_depth(target, lambda: _measure_depth(trainer, model, fitting, settings)))
        )
    comparison: dict[str, Any] = {
        "unit": settings.unit.value,
        "set": name,
        "knob": model.depth_knob if settings.targets else None,
        "fitted_on": len(fitting),
        "measured_on": len(reporting),
        "rows": rows,
    }
    rules = [parse_rule(row["rule"]) for row in rows[1:] if "rule" in row]
    predicted = PREDICTED.get(session.data.problem)  # None: next words, which always study exits
    is_evaluation = bool(session.config.budget.targets)  # after training, the matched baseline compares the exits
    if rules and is_evaluation and (predicted is None or predicted.studies_exits):
        comparison["exits"] = study_fitted_rules(rules, session)
    if trainer.is_world_process_zero():
        write_budgets(session.run.directory, comparison)
        if settings.targets:
            say(format_budgets(comparison), RESULT)
        tracker, step = session.tracking.tracker, trainer.state.global_step
        tracker.table("budget/targets", *to_records(build_budget_table(comparison)), step)
    return comparison


def fit_to_target(settings: BudgetConfig, session: Session) -> None:
    """Fit a trained model to its target depth, and report the depth or compute that it reaches on other examples."""
    assert settings.target is not None
    comparison = compare_budgets(replace(settings, targets=[settings.target]), session)
    row = comparison["rows"][-1]
    spent = row["adaptive_over_full"] if settings.unit is BudgetUnit.macs else row["mean"]
    figures = {f"{BUDGET_PREFIX}target": settings.target, f"{BUDGET_PREFIX}measured": spent}
    session.tracking.last_metrics |= figures
    if session.trainer.is_world_process_zero():
        session.tracking.tracker.log(figures, session.trainer.state.global_step)
        setting = f"exit_rule {row['rule']}" if "rule" in row else comparison["knob"]
        remark = "" if is_held(spent, settings.target, settings.unit.value) else f", off by more than {TOLERANCE:.0%}"
        say(
            f"budget.target={settings.target:g}: fitted {setting}, which gives {spent:.3g} {settings.unit} "
            f"on {comparison['measured_on']:,} other sequences{remark}",
            wraps=True,
        )


def correct_depth(settings: BudgetConfig, session: Session) -> bool:
    """Shift the halting bias of a trained model that missed its target depth, until it meets the target.

    In a short run the controller leaves an error. The fit removes it on held-out examples; it uses their depths but not
    their labels. The order of units by depth does not change. The record has depth and metrics of these examples before
    and after the shift. All units get the same shift, so nearly equal depths may become one, with a warning.

    Returns:
        Whether the model was changed. It is not changed if its depth is within half of the tolerance of the target. It
        is also not changed if it has no halting bias or if the run is small.
    """
    trainer: Any = session.trainer
    model = trainer.accelerator.unwrap_model(trainer.model)
    target, bias = settings.target, model.halting_bias
    if target is None or bias is None or session.config.small:
        return False
    name, dataset = next(iter(trainer.evaluation_sets.items()))
    examples = Subset(dataset, spread_rows(len(dataset), _CORRECTION_EXAMPLES).tolist())
    measure = partial(_measure_depth, trainer, model, examples, settings)
    before, learned = measure(), bias.detach().clone()
    if abs(before - target) <= TOLERANCE / 2 * target:
        return False
    evaluated = {"before": _evaluate_half(session, name, examples)}

    def shift_bias(level: float) -> None:
        with torch.no_grad():
            bias.copy_(learned - _SHIFT_SCALE * math.log(level / (1.0 - level)))

    def measure_level(level: float) -> float:
        shift_bias(level)
        return measure()

    fit = fit_level(measure_level, target)
    shift_bias(fit.level)
    evaluated["after"] = _evaluate_half(session, name, examples)
    correction = {"set": name, "examples": len(examples), "shift": float((bias.detach() - learned).sum())}
    correction |= {when: build_correction_row(*results) for when, results in evaluated.items()}
    session.run.update(depth_correction=correction)
    if trainer.is_world_process_zero():
        change = f"halting bias {correction['shift']:+.2f}, now {fit.depth:.3g}"
        say(f"budget.target={target:g}: {before:.3g} {settings.unit} at the end of training; {change}", wraps=True)
        if lost := describe_lost_depths(correction):
            say(plain(f"warning: {lost}: {describe_change(correction)}"), logging.WARNING, wraps=True)
    return True


def split_into_halves(dataset: Any) -> tuple[Subset[Any], Subset[Any]]:
    """Split examples into random halves; see `adadepth.metrics.halves.select_first_half`.

    Examples with the same owner (such as windows of one question) stay together.
    """
    is_first = select_first_half(np.asarray(getattr(dataset, "owners", range(len(dataset)))))
    if not is_first.any():
        raise ConfigError(
            "budget.targets, score_halves: the first evaluation set needs at least two examples, one to fit the exit "
            "rule, and one to measure its depth; it has 1"
        )
    first, second = (Subset(dataset, np.flatnonzero(half).tolist()) for half in (is_first, ~is_first))
    return first, second


def _evaluate_half(session: Session, name: str, examples: Any) -> tuple[dict[str, float], dict[str, Any]]:
    """Return metrics and depth statistics of the model, at the depth to which it is fitted now."""
    evaluation, speed = session.trainer.evaluate_set(name, examples)
    report = evaluation.report()
    assert report is not None, "validated: a budget needs the halting statistics"
    report.statistics["cost"]["ms_per_token"] = 1000 / speed
    return evaluation.metrics(), report.statistics


def _measure_depth(trainer: Any, model: Any, examples: Any, settings: BudgetConfig) -> float:
    """Measure the mean depth of the model over the examples of all processes."""
    sums = torch.zeros(2, dtype=torch.float64, device=select_float64_device(trainer.args.device))
    options = trainer.model_inputs({"logits_to_keep": 1})  # predictions of language models are not needed
    for _, outputs in trainer.forward_passes(examples, lambda batch: options):
        measured = MEASURES[settings.unit.value].read(model, move_to_float64_device(outputs.trace, trainer.args.device))
        sums += torch.stack([measured.total, measured.units]).to(sums)
    all_reduce_sum([sums])
    total, units = sums.tolist()
    return total / units
