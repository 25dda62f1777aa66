"""Checks of the settings of the model, its size and its depth budget."""

from __future__ import annotations

import math
from collections.abc import Iterator

from adadepth.budget.target import NO_BUDGET, get_full_depth
from adadepth.cli.checks.modes import format_mode
from adadepth.config import OPTIONAL_GROUPS, BudgetConfig, BudgetUnit, ExperimentConfig, Mode
from adadepth.config.declaration import find_excessive_counts, get_field_specs
from adadepth.models.registry import budget_mode, families, family, join_alternatives, list_families_reading

# Groups that only some families read; `check_budget` checks the budget.
_GROUPS = [name for name in OPTIONAL_GROUPS if name != "budget"]


def check_settings_of_family(config: ExperimentConfig) -> Iterator[str]:
    """Check the settings of the model family, and that no settings are given that the family ignores."""
    model = family(config.model.name)
    for group in _GROUPS:
        if group not in model.reads and getattr(config, group) != OPTIONAL_GROUPS[group]():
            readers = join_alternatives(list_families_reading(group))
            yield f"{group}: only used by the model family {readers}, not by {config.model.name}"
    for check in model.checks:
        yield from check(config)


_MAX_SIZE = 2**31 - 1


def check_largest_sizes(config: ExperimentConfig) -> Iterator[str]:
    """Raise an error for model sizes so large that building the model would never end."""
    model = config.model
    for name in get_field_specs(type(model)):
        if isinstance(value := getattr(model, name), int) and value > _MAX_SIZE:
            yield f"model.{name}={value}: must be at most {_MAX_SIZE}"
    yield from find_excessive_counts(model, "model.")


def check_halting_stage(config: ExperimentConfig) -> Iterator[str]:
    """Check the settings of the second training stage, which trains only the halting head."""
    halting, model = config.halting, config.model
    if "halting" not in family(model.name).reads:
        return
    if not halting.alone:
        if halting != OPTIONAL_GROUPS["halting"]():
            yield "halting: only used with halting.alone=true model.pretrained=RUN/model"
        return
    if config.mode is not Mode.train:
        yield f"halting.alone=true: only used with mode=train, but mode={config.mode}"
    if model.pretrained is None:
        yield "model.pretrained: required by halting.alone=true; give the folder of a trained model, e.g. RUN/model"


def check_budget(config: ExperimentConfig) -> Iterator[str]:
    """Check that target, unit and schedule of the depth budget are possible for the model."""
    budget, able = config.budget, family(config.model.name).budget
    if budget.targets:
        yield from _check_targets(config)
    if budget.target is None:
        if config.mode is Mode.train and budget != BudgetConfig(targets=budget.targets, unit=budget.unit):
            yield "budget: only used with a target depth, budget.target"
        return
    prefix, model = f"budget.target={budget.target:g}", config.model.name
    if not able.targets:
        holders = [name for name, spec in families().items() if spec.budget.targets]
        yield f"{prefix}: model={model} does not learn its depth; use {join_alternatives(holders)}"
        return
    if budget.unit not in able.targets:
        yield f"budget.unit={budget.unit}: training of model={model} supports {', '.join(able.targets)}"
        return
    if config.checkpoint is not None:
        return  # how a checkpoint was trained does not depend on the target of this command
    for name in able.prices:
        if (value := getattr(config.model, name)) > 0:
            yield f"{prefix}: model.{name}={value:g} also penalises depth; set model.{name}=0, or {NO_BUDGET}"
    for check in able.checks:
        yield from check(config)
    yield from _check_range("budget.target", budget.target, config)
    if budget_mode(config) == "fitted":
        yield from _check_fit_after_training(config)
        return
    shares = budget.grow + budget.hold + budget.ramp
    if shares > 1:
        yield f"budget.grow, budget.hold and budget.ramp: shares of all optimiser steps, but they add up to {shares:g}"
    if budget.grow > 0:
        yield from _check_growth(config)


def _check_fit_after_training(config: ExperimentConfig) -> Iterator[str]:
    """Check the depth-budget settings of a model whose depth is fitted to the target after training."""
    if not config.trainer.halting_statistics:
        yield f"budget.target={config.budget.target:g}: needs trainer.halting_statistics=true"
    for key in ("grow", "grow_from", "hold", "ramp", "gain"):
        if (value := getattr(config.budget, key)) != getattr(BudgetConfig, key):
            fitted = f"model={config.model.name} is fitted to its target after training"
            yield f"budget.{key}={value:g}: {fitted}; leave it at {getattr(BudgetConfig, key):g}"


def _check_targets(config: ExperimentConfig) -> Iterator[str]:
    """Check the target depths at which an evaluation compares a checkpoint."""
    prefix, units = f"budget.targets={config.budget.targets}", family(config.model.name).budget.fitted
    if config.mode is not Mode.evaluate:
        yield f"{prefix}: only used with {format_mode(Mode.evaluate, config)}; in training, set budget.target"
    if not config.trainer.halting_statistics:
        yield f"{prefix}: needs trainer.halting_statistics=true"
    if not units:
        yield f"{prefix}: nothing can change the depth of a trained model={config.model.name}"
    elif config.budget.unit not in units:
        yield (
            f"budget.unit={config.budget.unit}: the depth of a trained model={config.model.name} is set in "
            f"{', '.join(units)}"
        )
    for target in config.budget.targets:
        yield from _check_range("budget.targets", target, config)


def _check_range(key: str, target: float, config: ExperimentConfig) -> Iterator[str]:
    unit, able = config.budget.unit, family(config.model.name).budget
    if unit is BudgetUnit.milliseconds:
        return  # the range is known once operations are measured
    low, full = 0.0 if unit is BudgetUnit.macs else float(able.least), get_full_depth(unit, get_max_updates(config))
    if target <= 0 or not low <= target <= (full or math.inf):
        most = "" if full is None else f" to {full:g}"
        yield f"{key}={target:g}: must be from {low:g}{most}, in {unit}"
    elif able.whole and unit in (BudgetUnit.updates, BudgetUnit.deepest_layer) and target != int(target):
        yield f"{key}={target:g}: must be a whole number of blocks"


def _check_growth(config: ExperimentConfig) -> Iterator[str]:
    """Check that a growing depth is set only if the model family can be trained at any depth."""
    budget, model, most = config.budget, family(config.model.name), get_max_updates(config)
    if not model.budget.grows:
        able = [name for name, spec in families().items() if spec.budget.grows]
        alternatives = join_alternatives(able)
        yield f"budget.grow={budget.grow:g}: model={model.name} always trains every step; only used with {alternatives}"
    elif most is not None and budget.grow_from > most:
        yield f"budget.grow_from={budget.grow_from}: must be at most model.{model.depth}={most:g}"


def get_max_updates(config: ExperimentConfig) -> float | None:
    """Return the largest depth that the model settings allow, or None if a pretrained model determines it."""
    name = family(config.model.name).depth
    depth = None if name is None else getattr(config.model, name)
    return None if depth is None else float(depth)
