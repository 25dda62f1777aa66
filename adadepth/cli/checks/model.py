"""Checks of the model that a run asks for: its family, and the depth that is set."""

from __future__ import annotations

import math
from collections.abc import Iterator

from adadepth.budget.target import NO_BUDGET, full_in
from adadepth.cli.checks.modes import format_mode
from adadepth.families.registry import families, families_reading, family, load, met, one_of
from adadepth.settings import OPTIONAL_GROUPS, BudgetConfig, BudgetUnit, ExperimentConfig, Mode
from adadepth.settings.declaration import declared

# Groups that say nothing unless a family reads them; a budget is checked by itself.
_GROUPS = [name for name in OPTIONAL_GROUPS if name != "budget"]


def check_settings_of_family(config: ExperimentConfig) -> Iterator[str]:
    """The checks that the family's descriptor names, and groups that it does not read."""
    of_model = family(config.model.name)
    for group in _GROUPS:
        if group not in of_model.reads and getattr(config, group) != OPTIONAL_GROUPS[group]():
            readers = one_of(families_reading(group))
            yield f"{group}: read only by models of {readers}, but this one is of {config.model.name}"
    for place in of_model.checks:
        yield from load(place)(config)


_BLOCKS = ("num_hidden_layers", "core", "prelude", "coda", "layers_num", "num_layers", "attention_layers_num",
           "halting_head_layers")  # fmt: skip
_REPEATS = ("num_loops", "num_steps", "cycles", "reasoning_updates")
_REPEATED = ("core", "num_layers")
_MOST_BLOCKS, _MOST_UPDATES, _MOST_SIZE = 4096, 2**15, 2**31 - 1


def check_largest_sizes(config: ExperimentConfig) -> Iterator[str]:
    """Sizes that no machine has, of which some would be counted out one by one for ever."""
    model = config.model
    for name in declared(type(model)):
        value, most = getattr(model, name), _MOST_BLOCKS if name in _BLOCKS else _MOST_SIZE
        if isinstance(value, int) and value > most:
            yield f"model.{name}={value}: must be at most {most}"
    counts = {name: value for name in (*_REPEATED, *_REPEATS) if isinstance(value := getattr(model, name, None), int)}
    if math.prod(counts.values()) > _MOST_UPDATES:
        largest = max(counts, key=lambda name: counts[name])
        product = " x ".join(f"model.{name}" for name in counts)
        yield f"model.{largest}={counts[largest]}: {product} must be at most {_MOST_UPDATES}"


def check_halting_stage(config: ExperimentConfig) -> Iterator[str]:
    """The second stage trains the halting head of a model that has been trained."""
    halting, model = config.halting, config.model
    if "halting" not in family(model.name).reads:
        return
    if not halting.alone:
        if halting != OPTIONAL_GROUPS["halting"]():
            yield "halting: read only with halting.alone=true model.pretrained=RUN/model"
        return
    if config.mode is not Mode.train:
        yield f"halting.alone=true: read only with mode=train, but mode={config.mode}"
    if model.pretrained is None:
        yield "model.pretrained: halting.alone=true needs it, the folder of a trained model, e.g. RUN/model"


def check_budget(config: ExperimentConfig) -> Iterator[str]:
    """A target, its unit, its schedule, and the model it is for."""
    budget, about = config.budget, family(config.model.name)
    if budget.targets:
        yield from _targets(config)
    if budget.target is None:
        if config.mode is Mode.train and budget != BudgetConfig(targets=budget.targets, unit=budget.unit):
            yield "budget: read only with a target, the depth to hold, which budget.target says"
        return
    given = f"budget.target={budget.target:g}"
    units = about.budget.targets
    if not units:
        able = [name for name, each in families().items() if each.budget.targets]
        yield f"{given}: model={about.name} learns no depth to hold; use {one_of(able)}"
        return
    if budget.unit not in units:
        yield f"budget.unit={budget.unit}: of model={about.name}, training can hold {', '.join(units)}"
        return
    for name in about.budget.prices:
        if (value := getattr(config.model, name)) > 0:
            yield f"{given}: model.{name}={value:g} is a price beside it; set model.{name}=0, or {NO_BUDGET}"
    for place in about.budget.checks:
        yield from load(place)(config)
    yield from _reachable("budget.target", budget.target, config)
    if met(config) == "fitted":
        yield from _fitted_at_the_end(config)
        return
    shares = budget.grow + budget.hold + budget.ramp
    if shares > 1:
        yield f"budget.grow, budget.hold and budget.ramp: shares of all updates, but they add up to {shares:g}"
    if budget.grow > 0:
        yield from _growth(config)


def _fitted_at_the_end(config: ExperimentConfig) -> Iterator[str]:
    """What a target needs that training does not hold, and what is not read with it."""
    if not config.trainer.halting_statistics:
        yield f"budget.target={config.budget.target:g}: needs trainer.halting_statistics=true"
    for key in ("grow", "grow_from", "hold", "ramp", "gain"):
        if (value := getattr(config.budget, key)) != getattr(BudgetConfig, key):
            fitted = f"model={config.model.name} is fitted to its target once it is trained"
            yield f"budget.{key}={value:g}: {fitted}; leave it at {getattr(BudgetConfig, key):g}"


def _targets(config: ExperimentConfig) -> Iterator[str]:
    """Depths that a checkpoint is to be fitted to."""
    given, units = f"budget.targets={config.budget.targets}", family(config.model.name).budget.fitted
    if config.mode is not Mode.evaluate:
        yield f"{given}: read only with {format_mode(Mode.evaluate, config)}; training holds one, budget.target"
    if not config.trainer.halting_statistics:
        yield f"{given}: needs trainer.halting_statistics=true"
    if not units:
        yield f"{given}: nothing sets the depth of a trained model={config.model.name}"
    elif config.budget.unit not in units:
        yield f"budget.unit={config.budget.unit}: a trained model={config.model.name} is set in {', '.join(units)}"
    for target in config.budget.targets:
        yield from _reachable("budget.targets", target, config)


def _reachable(key: str, target: float, config: ExperimentConfig) -> Iterator[str]:
    unit, held = config.budget.unit, family(config.model.name).budget
    if unit is BudgetUnit.milliseconds:
        return  # what is possible is known once operations are measured
    low, full = 0.0 if unit is BudgetUnit.macs else float(held.least), full_in(unit, max_updates_of(config))
    if target <= 0 or not low <= target <= (full or math.inf):
        most = "" if full is None else f" to {full:g}"
        yield f"{key}={target:g}: must be from {low:g}{most}, in {unit}"
    elif held.whole and unit in (BudgetUnit.updates, BudgetUnit.deepest_layer) and target != int(target):
        yield f"{key}={target:g}: must be a whole number of blocks"


def _growth(config: ExperimentConfig) -> Iterator[str]:
    """Only a recurrence without a halting decision can be of any depth."""
    budget, about, most = config.budget, family(config.model.name), max_updates_of(config)
    if not about.budget.grows:
        able = [name for name, each in families().items() if each.budget.grows]
        yield f"budget.grow={budget.grow:g}: model={about.name} trains every step anyway; read only with {one_of(able)}"
    elif most is not None and budget.grow_from > most:
        yield f"budget.grow_from={budget.grow_from}: must be at most model.{about.depth}={most:g}"


def max_updates_of(config: ExperimentConfig) -> float | None:
    """The largest depth that the settings allow; None where a pretrained model decides."""
    name = family(config.model.name).depth
    found = None if name is None else getattr(config.model, name)
    return None if found is None else float(found)
