"""What a budget needs: a model with a depth to hold, a target within it, and no price beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from adadepth.config import (
    AlbertActModelConfig,
    BudgetConfig,
    BudgetUnit,
    ExperimentConfig,
    Mode,
    ModelConfig,
    MultiExitAlbertModelConfig,
    PonderSettings,
)

# The penalties on depth of the papers. Either they say what depth costs, or a budget finds it out.
_PRICES = ("act_penalty", "lambda_distribution_depth")


def check_budget(config: ExperimentConfig) -> Iterator[str]:
    """A target, its unit, its schedule, and the model it is for."""
    budget, model = config.budget, config.model
    if budget.targets:
        yield from _targets(config)
    if budget.target is None:
        if config.mode is Mode.train and budget != BudgetConfig(targets=budget.targets, unit=budget.unit):
            yield "budget: read only with a target, e.g. budget=depth budget.target=3"
        return
    given = f"budget.target={budget.target:g}"
    if not isinstance(model, AlbertActModelConfig | PonderSettings):
        yield f"{given}: model={model.name} learns no depth to hold; use albert_act, ponder_albert or ponder_rnn"
        return
    for name in _PRICES:
        if value := getattr(model, name, 0):
            yield f"{given}: model.{name}={value:g} is a price beside it; set it to 0, or budget=none"
    yield from _reachable("budget.target", budget.target, config)
    shares = budget.grow + budget.hold + budget.ramp
    if shares > 1:
        yield f"budget.grow, budget.hold and budget.ramp: shares of all updates, but they add up to {shares:g}"
    if budget.grow > 0:
        yield from _growth(config)


def _targets(config: ExperimentConfig) -> Iterator[str]:
    """Depths that a checkpoint is to be fitted to."""
    given = f"budget.targets={config.budget.targets}"
    if config.mode is not Mode.evaluate:
        yield f"{given}: read only with mode=evaluate; training holds one, budget.target"
    if not config.trainer.halting_statistics:
        yield f"{given}: needs trainer.halting_statistics=true"
    if not isinstance(config.model, AlbertActModelConfig | PonderSettings | MultiExitAlbertModelConfig):
        yield f"{given}: nothing sets the depth of a trained model={config.model.name}"
    for target in config.budget.targets:
        yield from _reachable("budget.targets", target, config)


def _reachable(key: str, target: float, config: ExperimentConfig) -> Iterator[str]:
    unit = config.budget.unit
    low, full = (0.0, 1.0) if unit is BudgetUnit.macs else (1.0, most_updates(config.model))
    if target <= 0 or not low <= target <= (full or math.inf):
        most = "" if full is None else f" to {full:g}"
        yield f"{key}={target:g}: must be from {low:g}{most}, in {unit}"


def _growth(config: ExperimentConfig) -> Iterator[str]:
    """Only a recurrence without a halting decision can be of any depth."""
    budget, model = config.budget, config.model
    if not isinstance(model, AlbertActModelConfig):
        yield f"budget.grow={budget.grow:g}: model={model.name} trains every step anyway; read only with albert_act"
    elif model.num_hidden_layers is not None and budget.grow_from > model.num_hidden_layers:
        yield f"budget.grow_from={budget.grow_from}: must be at most model.num_hidden_layers={model.num_hidden_layers}"


def most_updates(model: ModelConfig) -> float | None:
    """The largest depth that the settings allow; None where a pretrained model decides."""
    found = getattr(model, "num_hidden_layers", getattr(model, "num_steps", None))
    return None if found is None else float(found)
