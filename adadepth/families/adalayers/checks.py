"""What the settings of Adalayers need of each other, of the cache of states and of a budget; how its texts begin."""

from collections.abc import Iterator
from typing import Any

from adadepth.config import BudgetUnit, ExperimentConfig
from adadepth.families.adalayers.settings import AdaLayersSettings, Head


def check_settings(config: ExperimentConfig) -> Iterator[str]:
    """Base, cache and head fit together."""
    model, features = config.model, config.features
    assert isinstance(model, AdaLayersSettings)
    if model.pretrained is not None:
        yield f"model.pretrained={model.pretrained}: the base is named by model.base_model"
    if features.cache and not model.freeze_base_model:
        yield (
            "features.cache=true: with model.freeze_base_model=false the base's states change at every update; "
            "set features.cache=false"
        )
    heads, width = model.attention_heads_num, model.project_dim
    if model.head is Head.attention and heads >= 1 and width % heads:
        yield f"model.attention_heads_num={heads}: must divide model.project_dim={width}"
    if model.layers_num is not None and not model.seed_compat:
        yield f"model.layers_num={model.layers_num}: read only with model.seed_compat=true; else it is the base's"


def check_budget(config: ExperimentConfig) -> Iterator[str]:
    """A distribution that learns, and in which a layer can lose all its weight if that is what is counted."""
    model, budget = config.model, config.budget
    assert isinstance(model, AdaLayersSettings)
    if model.pick_one_layer_only is not None or model.freeze_distribution:
        yield (
            f"budget.target={budget.target:g}: model.pick_one_layer_only and model.freeze_distribution leave no "
            "distribution to learn"
        )
    cuts = model.distribution_cutoff > 0 or model.topk_distribution is not None
    if budget.unit is not BudgetUnit.expected_layer and not cuts:
        yield (
            f"budget.unit={budget.unit}: no weight of a softmax is 0; it needs model.distribution_cutoff above "
            "0, e.g. 0.03, or model.topk_distribution"
        )


def first_tokens(model: Any) -> dict[str, Any]:
    """The base's own tokenizer says how texts begin."""
    return {"cls_tokens": 0}
