"""What a budget needs: a model with a depth to hold, a unit it knows, a target within it, and no price beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from adadepth.config import (
    AdaLayersModelConfig,
    AlbertActModelConfig,
    BudgetConfig,
    BudgetUnit,
    ExperimentConfig,
    Mode,
    ModelConfig,
    MultiExitAlbertModelConfig,
    ParXLModelConfig,
    PonderSettings,
    Prior,
    Task,
)

# The penalties on depth of the papers. Either they say what depth costs, or a budget finds it out.
_PRICES = ("act_penalty", "lambda_distribution_depth")
# What training can hold, by family.
_UPDATES = (BudgetUnit.updates, BudgetUnit.macs)
_TRAINED: dict[type, tuple[BudgetUnit, ...]] = {
    AlbertActModelConfig: _UPDATES,
    PonderSettings: _UPDATES,
    AdaLayersModelConfig: (BudgetUnit.deepest_layer, BudgetUnit.expected_layer, BudgetUnit.macs),
    ParXLModelConfig: (BudgetUnit.milliseconds,),
}
# What a trained model can be set to, by family.
_FITTED: dict[type, tuple[BudgetUnit, ...]] = {
    AlbertActModelConfig: _UPDATES,
    PonderSettings: _UPDATES,
    MultiExitAlbertModelConfig: _UPDATES,
    AdaLayersModelConfig: (BudgetUnit.updates, BudgetUnit.deepest_layer),
}


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
    units = _units(_TRAINED, model)
    if not units:
        yield (
            f"{given}: model={model.name} learns no depth to hold; use albert_act, ponder_albert, ponder_rnn, "
            "adalayers or par_xl"
        )
        return
    if budget.unit not in units:
        yield f"budget.unit={budget.unit}: of model={model.name}, training can hold {', '.join(units)}"
        return
    for name in _PRICES:
        if value := getattr(model, name, 0):
            yield f"{given}: model.{name}={value:g} is a price beside it; set it to 0, or budget=none"
    if isinstance(model, PonderSettings) and model.prior is Prior.geometric and model.kl_penalty_factor > 0:
        yield (
            f"{given}: model.prior=geometric is a price beside it; set model.prior=uniform and "
            "model.target_halt_probability=null, or model.kl_penalty_factor=0"
        )
    if isinstance(model, AdaLayersModelConfig):
        yield from _layers(given, config, model)
    if isinstance(model, ParXLModelConfig):
        yield from _latency(given, config)
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
    units = _units(_FITTED, config.model)
    if not units:
        yield f"{given}: nothing sets the depth of a trained model={config.model.name}"
    elif config.budget.unit not in units:
        yield f"budget.unit={config.budget.unit}: a trained model={config.model.name} is set in {', '.join(units)}"
    for target in config.budget.targets:
        yield from _reachable("budget.targets", target, config)


def _units(of_families: dict[type, tuple[BudgetUnit, ...]], model: ModelConfig) -> tuple[BudgetUnit, ...]:
    return next((units for family, units in of_families.items() if isinstance(model, family)), ())


def _layers(given: str, config: ExperimentConfig, model: AdaLayersModelConfig) -> Iterator[str]:
    """A distribution that learns, and in which a layer can lose all its weight if that is what is counted."""
    if model.pick_one_layer_only is not None or model.freeze_distribution:
        yield f"{given}: model.pick_one_layer_only and model.freeze_distribution leave no distribution to learn"
    cuts = model.distribution_cutoff > 0 or model.topk_distribution is not None
    if config.budget.unit is not BudgetUnit.expected_layer and not cuts:
        yield (
            f"budget.unit={config.budget.unit}: no weight of a softmax is 0; it needs model.distribution_cutoff above "
            "0, e.g. 0.03, or model.topk_distribution"
        )


def _latency(given: str, config: ExperimentConfig) -> Iterator[str]:
    """Only a search chooses what a network costs."""
    if config.task is not Task.architecture_search:
        yield f"{given}: of model=par_xl read only with task=architecture_search, but task={config.task}"
    if weight := config.search.latency_weight:
        yield f"{given}: search.latency_weight={weight:g} is a price beside it; set it to 0, or budget=none"


def _reachable(key: str, target: float, config: ExperimentConfig) -> Iterator[str]:
    unit, counts_blocks = config.budget.unit, isinstance(config.model, AdaLayersModelConfig)
    if unit is BudgetUnit.milliseconds:
        return  # what is possible is known once operations are measured
    low, full = (0.0, 1.0) if unit is BudgetUnit.macs else (1.0, most_updates(config.model))
    if target <= 0 or not low <= target <= (full or math.inf):
        most = "" if full is None else f" to {full:g}"
        yield f"{key}={target:g}: must be from {low:g}{most}, in {unit}"
    elif counts_blocks and unit in (BudgetUnit.updates, BudgetUnit.deepest_layer) and target != int(target):
        yield f"{key}={target:g}: must be a whole number of blocks"


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
