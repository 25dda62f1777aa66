"""One checkpoint, many budgets: what decides its depth is fitted to each target, and quality and work are measured.

The fit is on a half of the first evaluation set, the figures are of the other: nothing that is told was chosen on what
tells it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from adadepth.budget.fit import Fit, fit_level
from adadepth.budget.target import TOLERANCE, is_held
from adadepth.data.labelled.contract import spread_rows
from adadepth.data.randomness import EVALUATION_SEED, FIXED_EPOCH, Purpose, random_generator
from adadepth.errors import ConfigError
from adadepth.families.contract import DepthKnob
from adadepth.report.budgets import budget_row, budget_table, budgets_text, write_budgets
from adadepth.report.table import as_records
from adadepth.settings import BudgetConfig, BudgetUnit
from adadepth.system.console import say
from adadepth.system.processes import add_over_processes
from adadepth.tasks.session import Session
from adadepth.training.held_depth import BUDGET_PREFIX, MEASURES

_FITTED_ON = 256  # examples
_REACH = 2.0  # of a shift, over the logit of the fit's level: from -26 to 18


def compare_budgets(settings: BudgetConfig, session: Session) -> dict[str, Any]:
    """Fit the model to every target, evaluate it there, and write, print and track the table; returns it.

    The model is left at the last target.
    """
    trainer: Any = session.trainer
    model = trainer.accelerator.unwrap_model(trainer.model)
    assert isinstance(model, DepthKnob), "validated"
    name, dataset = next(iter(trainer.evaluation_sets.items()))
    fitting, reporting = halves(dataset)
    rows = [_row(session, name, reporting, None, None)]
    for target in settings.targets:
        fit = model.fit_depth(target, lambda: _depth(trainer, model, fitting, settings))
        rows.append(_row(session, name, reporting, target, fit))
    found = {
        "unit": settings.unit.value,
        "set": name,
        "knob": model.depth_knob,
        "fitted_on": len(fitting),
        "measured_on": len(reporting),
        "rows": rows,
    }
    if trainer.is_world_process_zero():
        write_budgets(session.run.directory, found)
        say(budgets_text(found))
        tracker, step = session.tracking.tracker, trainer.state.global_step
        tracker.table("budget/targets", *as_records(budget_table(found)), step)
    return found


def settle(settings: BudgetConfig, session: Session) -> None:
    """Fit a trained model to its target, leave it so, and say what it spends on other examples than the fit's."""
    assert settings.target is not None
    found = compare_budgets(replace(settings, targets=[settings.target]), session)
    row = found["rows"][-1]
    spent = row["adaptive_over_full"] if settings.unit is BudgetUnit.macs else row["mean"]
    figures = {f"{BUDGET_PREFIX}target": settings.target, f"{BUDGET_PREFIX}measured": spent}
    session.tracking.last_metrics |= figures
    if session.trainer.is_world_process_zero():
        session.tracking.tracker.log(figures, session.trainer.state.global_step)
        remark = "" if is_held(spent, settings.target, settings.unit.value) else f", further away than {TOLERANCE:.0%}"
        say(
            f"budget.target={settings.target:g}: {found['knob']} fitted, {spent:.3g} {settings.unit} on "
            f"{found['measured_on']:,} other examples{remark}"
        )


def correct_depth(settings: BudgetConfig, session: Session) -> bool:
    """Shift the halting bias of a trained model that missed its target to where it holds it.

    A controller has little time in a short run: what is left of its error is taken out on held-out examples, whose
    depths are read and not their labels. Which unit is deeper than which stays as it was learned.

    Returns:
        Whether the model was changed. It is not where it holds its target to within half of the tolerance, where it has
        no such bias, and in a run of seconds.
    """
    trainer: Any = session.trainer
    model = trainer.accelerator.unwrap_model(trainer.model)
    target, bias = settings.target, model.halting_bias
    if target is None or bias is None or session.config.small:
        return False
    examples = _first_few(next(iter(trainer.evaluation_sets.values())))
    measure = partial(_depth, trainer, model, examples, settings)
    before, learned = measure(), bias.detach().clone()
    if abs(before - target) <= TOLERANCE / 2 * target:
        return False

    def depth_at(level: float) -> float:
        with torch.no_grad():
            bias.copy_(learned - _REACH * math.log(level / (1.0 - level)))
        return measure()

    fit = fit_level(depth_at, target)
    depth_at(fit.level)
    if trainer.is_world_process_zero():
        change = f"halting bias {float((bias.detach() - learned).sum()):+.2f}, now {fit.depth:.3g}"
        say(f"budget.target={target:g}: {before:.3g} {settings.unit} at the end of training; {change}")
    return True


def _first_few(dataset: Any) -> Subset[Any]:
    """Examples enough to measure a mean depth, evenly spread."""
    return Subset(dataset, spread_rows(len(dataset), _FITTED_ON).tolist())


def halves(dataset: Any) -> tuple[Subset[Any], Subset[Any]]:
    """Half of the examples, drawn alike for every seed and model, and the others; what belongs together stays together.

    They are drawn because data sets have an order: every second example may be of one class.
    """
    owners = np.asarray(getattr(dataset, "owners", range(len(dataset))))
    each = np.unique(owners)
    if len(each) < 2:
        raise ConfigError("dataset.max_evaluation_examples: a fit needs two examples, one to be measured on")
    drawn = random_generator(EVALUATION_SEED, Purpose.HALVES, FIXED_EPOCH, 0).permutation(each)[: len(each) // 2]
    is_first = np.isin(owners, drawn)
    first, second = (Subset(dataset, np.flatnonzero(half).tolist()) for half in (is_first, ~is_first))
    return first, second


def _row(session: Session, name: str, examples: Any, target: float | None, fit: Fit | None) -> dict[str, Any]:
    """Quality, depth and work of the model as it is set now."""
    evaluation, _ = session.trainer.evaluate_set(name, examples)
    report = evaluation.report()
    assert report is not None, "validated: a budget is read off the statistics"
    return budget_row(evaluation.metrics(), report.statistics, target, None if fit is None else fit._asdict())


def _depth(trainer: Any, model: Any, examples: Any, settings: BudgetConfig) -> float:
    """The mean depth of some examples as the model is set now, over all processes."""
    sums = torch.zeros(2, dtype=torch.float64, device=trainer.args.device)
    options = trainer.model_inputs({"logits_to_keep": 1})  # of a model of text, whose predictions nobody reads here
    for _, outputs in trainer.forward_passes(examples, lambda batch: options):
        measured = MEASURES[settings.unit.value].read(model, outputs.trace)
        sums += torch.stack([measured.total, measured.units]).to(sums)
    add_over_processes([sums])
    total, units = sums.tolist()
    return total / units
