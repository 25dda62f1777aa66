"""Settings of Adalayers, and their validation."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from adadepth.config import Attention, BudgetUnit, ExperimentConfig, ModelConfig, family_name
from adadepth.config.declaration import BELOW_ONE, FINITE, MISSING, POSITIVE, at_least, setting

MixKind = StrEnum("MixKind", ["projected", "scalar"])
Head = StrEnum("Head", ["attention", "linear"])


@dataclass
class AdaLayersSettings(ModelConfig):
    """Adalayers (Dremov 2024): a small head on a learned weighted average of the layers of a frozen transformer."""

    name: str = family_name("adalayers")
    base_model: str = setting(MISSING, "pretrained base transformer: folder, hub id, or package:NAME/FOLDER", hub=None)
    base_revision: str | None = setting(None, "branch, tag or commit of a hub id")
    freeze_base_model: bool = setting(True, "freeze the base; false: fine-tune it, too")
    save_base: bool = setting(
        False, "save a frozen base in the checkpoint; false: store only its name and hash", in_model=False
    )
    include_embeddings: bool = setting(
        True,
        "count the output of the embeddings as a layer",
        shape=True,
        more="The output of the embeddings is state 0.",
    )
    layers_num: int | None = setting(
        None,
        "with seed_compat: number of states, from the first; None: all states of the base",
        at_least(1),
        shape=True,
    )
    mix: MixKind = setting(
        MixKind.projected,
        "projected: weighted sum of projected states (Adalayers); scalar: of raw states (scalar mix of ELMo)",
        shape=True,
        more="`projected`: every layer has its own projection; `scalar`: the raw states are mixed (Peters et al. "
        "2018), and a head with attention projects the result.",
    )
    project_dim: int = setting(128, "k, width of the head and of projected states", at_least(1), shape=True)
    alpha_distribution: float = setting(
        10.0,
        "alpha in the layer weights softmax(alpha p)",
        POSITIVE,
        more="It also scales the gradient step of the logits p.",
    )
    distribution_cutoff: float = setting(
        0.0,
        "layer weights up to this value become 0; below 1 / layers",
        BELOW_ONE,
        more="Otherwise the uniform initial weights would all be cut.",
    )
    cutoff_warmup_steps: int = setting(
        0,
        "number of optimiser steps before the cutoff begins, because a cut layer rarely returns",
        at_least(0),
        more="The cutoff of a loaded model has begun.",
    )
    topk_distribution: int | None = setting(
        None,
        "maximum number of layers with weight; None: no limit",
        at_least(1),
        more="The largest weights remain, and all others are 0.",
    )
    lambda_distribution_entropy: float = setting(
        0.0, "weight of the entropy of the layer weights in the loss; positive values sharpen them", FINITE
    )
    lambda_distribution_depth: float = setting(
        0.0,
        "weight of the expected depth, as a share of the depth of the base, in the loss",
        at_least(0),
        more="The expected depth is sum_j p_j n_j / N, where layer j is state n_j and the base has N blocks.",
    )
    freeze_distribution: bool = setting(False, "keep the uniform layer weights")
    pick_one_layer_only: int | None = setting(
        None, "number of the only layer with weight, negative from the end; None: learn the weights"
    )
    distribution_lr_multiplier: float = setting(
        1.0, "ratio of the learning rate of p to that of all other parameters", POSITIVE
    )
    head: Head = setting(Head.attention, "head that reads the mixed state: attention, or a linear probe", shape=True)
    attention_heads_num: int = setting(
        16,
        "must divide project_dim",
        at_least(1),
        shape=True,
        more="Number of attention heads of the classification head.",
    )
    attention_layers_num: int = setting(1, "number of encoder layers of a tagging head", at_least(1), shape=True)
    dim_feedforward: int = setting(1024, "inner width of the encoder layers of a tagging head", at_least(1), shape=True)
    attention_dropout_prob: float | None = setting(
        0.1, "dropout of projections, positions and head", BELOW_ONE, more="None means 0."
    )
    add_pos_embeddings: bool = setting(
        False, "add sinusoidal positions before the head", more="They are added to the mixed state."
    )
    classes_weights: list[float] | None = setting(None, "weights of the classes in the loss")
    focal_loss_enabled: bool = setting(
        False,
        "use focal loss for tagging: weight alpha (1 - p)^gamma per word",
        more="It replaces plain cross-entropy.",
    )
    focal_loss_gamma: float = setting(2.0, "gamma, exponent of the focal loss", at_least(0))
    focal_loss_alpha: float = setting(0.25, "alpha, factor of the focal loss", POSITIVE)
    seed_compat: bool = setting(
        False,
        "reproduce the defects of the original code that change results; see docs/adalayers.md",
        more="The original code takes the mean of the entropy over layers instead of its sum, leaves projections "
        "untrained under a frozen distribution, and allows fewer layers than the base has. It takes the mean "
        "of the focal loss over all tokens, with probabilities from the weighted cross-entropy.",
    )
    attn_implementation: Attention | None = setting(
        None, "attention implementation of the base; None: the fastest available one", in_model=False
    )


def fix_picked_layer(model: AdaLayersSettings, depth: int) -> dict[str, Any]:
    """Return the settings of the head on the state after `depth` blocks alone, so that the base runs no further."""
    return {
        "pick_one_layer_only": depth if model.include_embeddings else depth - 1,
        "distribution_cutoff": 0.0,
        "cutoff_warmup_steps": 0,
        "topk_distribution": None,
        "lambda_distribution_entropy": 0.0,
        "lambda_distribution_depth": 0.0,
        "freeze_distribution": False,
    }


def check_settings(config: ExperimentConfig) -> Iterator[str]:
    """Yield errors for inconsistent Adalayers settings of the base model, the state cache and the head."""
    model, features = config.model, config.features
    assert isinstance(model, AdaLayersSettings)
    if model.pretrained is not None:
        yield f"model.pretrained={model.pretrained}: set model.base_model instead"
    if features.cache and not model.freeze_base_model:
        yield (
            "features.cache=true: with model.freeze_base_model=false the states of the base change at every "
            "optimiser step; set features.cache=false"
        )
    if config.trainer.fsdp and model.freeze_base_model and not features.cache:
        yield "trainer.fsdp=true: a frozen base stops in the middle of a pass, so it needs features.cache=true"
    if config.trainer.fsdp and model.mix is MixKind.scalar:
        yield "trainer.fsdp=true: not supported with model.mix=scalar, whose factor is a single number"
    heads, width = model.attention_heads_num, model.project_dim
    if model.head is Head.attention and heads >= 1 and width % heads:
        yield f"model.attention_heads_num={heads}: must divide model.project_dim={width}"
    if model.layers_num is not None and not model.seed_compat:
        yield (
            f"model.layers_num={model.layers_num}: only used with model.seed_compat=true; otherwise the base defines it"
        )


def check_budget(config: ExperimentConfig) -> Iterator[str]:
    """Yield an error for each setting that prevents the layer weights from meeting a depth budget."""
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
            f"budget.unit={budget.unit}: no weight of a softmax is 0, so it needs model.distribution_cutoff above "
            "0, e.g. 0.03, or model.topk_distribution"
        )
