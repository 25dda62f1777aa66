"""The settings of Adalayers, their checks, and the family's descriptor."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from adadepth.config import Attention, BudgetUnit, ExperimentConfig, ModelConfig, family_name
from adadepth.config.declaration import BELOW_ONE, FINITE, MISSING, POSITIVE, at_least, setting
from adadepth.models.registry import Budgeting, Family

MixKind = StrEnum("MixKind", ["projected", "scalar"])
Head = StrEnum("Head", ["attention", "linear"])


@dataclass
class AdaLayersSettings(ModelConfig):
    """Adalayers (Dremov 2024): a learned distribution over the layers of a frozen transformer feeds a small head."""

    name: str = family_name("adalayers")
    base_model: str = setting(MISSING, "the transformer: folder, hub id, or package:NAME/FOLDER", hub=None)
    base_revision: str | None = setting(None, "of a hub id: branch, tag or commit")
    freeze_base_model: bool = setting(True, "false: fine-tune it as well")
    save_base: bool = setting(
        False, "also save a frozen base, which is otherwise named and checked by its hash", in_model=False
    )
    include_embeddings: bool = setting(
        True, "whether the embeddings' output counts as a layer", shape=True, more="It is state 0."
    )
    layers_num: int | None = setting(
        None, "with seed_compat: only the first so many states; None: all of the base's", at_least(1), shape=True
    )
    mix: MixKind = setting(
        MixKind.projected,
        "the weighted sum is of projected states (Adalayers) or of raw ones (ELMo's scalar mix)",
        shape=True,
        more="`projected`: every layer has a projection of its own; `scalar`: the states themselves are mixed (Peters "
        "et al. 2018), and a head with attention projects the result.",
    )
    project_dim: int = setting(128, "k, width of the head and of projected states", at_least(1), shape=True)
    alpha_distribution: float = setting(
        10.0, "the weights are softmax(alpha p)", POSITIVE, more="It multiplies the step on the logits p too."
    )
    distribution_cutoff: float = setting(
        0.0, "weights up to this are 0; below 1 / layers", BELOW_ONE, more="Else the uniform start would lose all."
    )
    cutoff_warmup_steps: int = setting(
        0,
        "updates before the cutoff begins: a layer once cut rarely returns",
        at_least(0),
        more="A loaded model is past them.",
    )
    topk_distribution: int | None = setting(
        None, "most layers with weight", at_least(1), more="Only the largest weights take part."
    )
    lambda_distribution_entropy: float = setting(
        0.0, "weight of the weights' entropy in the loss; positive sharpens", FINITE
    )
    lambda_distribution_depth: float = setting(
        0.0,
        "weight of the expected depth, as a share of the base's, in the loss",
        at_least(0),
        more="Of sum_j p_j n_j / N, where layer j is state n_j and the base has N blocks.",
    )
    freeze_distribution: bool = setting(False, "keep the uniform weights")
    pick_one_layer_only: int | None = setting(None, "all weight on one layer: its number, negative from the end")
    distribution_lr_multiplier: float = setting(1.0, "learning rate of p over that of the rest", POSITIVE)
    head: Head = setting(Head.attention, "what reads the mix: attention, or a linear probe", shape=True)
    attention_heads_num: int = setting(
        16, "must divide project_dim", at_least(1), shape=True, more="Heads of the head's attention."
    )
    attention_layers_num: int = setting(1, "encoder layers of a tagging head", at_least(1), shape=True)
    dim_feedforward: int = setting(1024, "their inner width", at_least(1), shape=True)
    attention_dropout_prob: float | None = setting(
        0.1, "on projections, positions and head", BELOW_ONE, more="None means 0."
    )
    add_pos_embeddings: bool = setting(False, "sinusoidal positions before the head", more="Added to the mixed state.")
    classes_weights: list[float] | None = setting(None, "of the classes in the loss")
    focal_loss_enabled: bool = setting(
        False, "tagging: alpha (1 - p)^gamma weighs the loss of each word", more="Instead of plain cross-entropy."
    )
    focal_loss_gamma: float = setting(2.0, "gamma, exponent of the focal loss", at_least(0))
    focal_loss_alpha: float = setting(0.25, "alpha, factor of the focal loss", POSITIVE)
    seed_compat: bool = setting(
        False,
        "the original's slips that change numbers: docs/adalayers.md lists them",
        more="What the original code did, defects included: the entropy's mean over layers instead of its sum, "
        "untrained projections under a frozen distribution, fewer layers than the base has, and the focal loss's mean "
        "over all tokens with probabilities from the weighted cross-entropy.",
    )
    attn_implementation: Attention | None = setting(
        None, "of the base; None: the best that torch offers here", in_model=False
    )


def check_settings(config: ExperimentConfig) -> Iterator[str]:
    """Check that base, cache and head fit together."""
    model, features = config.model, config.features
    assert isinstance(model, AdaLayersSettings)
    if model.pretrained is not None:
        yield f"model.pretrained={model.pretrained}: the base is named by model.base_model"
    if features.cache and not model.freeze_base_model:
        yield (
            "features.cache=true: with model.freeze_base_model=false the base's states change at every update; "
            "set features.cache=false"
        )
    if config.trainer.fsdp and model.freeze_base_model and not features.cache:
        yield "trainer.fsdp=true: a frozen base stops in the middle of a pass; it needs features.cache=true"
    heads, width = model.attention_heads_num, model.project_dim
    if model.head is Head.attention and heads >= 1 and width % heads:
        yield f"model.attention_heads_num={heads}: must divide model.project_dim={width}"
    if model.layers_num is not None and not model.seed_compat:
        yield f"model.layers_num={model.layers_num}: read only with model.seed_compat=true; else it is the base's"


def check_budget(config: ExperimentConfig) -> Iterator[str]:
    """Check that the distribution is trained, and that layers can lose all weight if the unit counts these."""
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
    """Return no [CLS] tokens: the tokenizer of the base adds them."""
    return {"cls_tokens": 0}


_HEADS = "adadepth.models.adalayers.heads"

FAMILY = Family(
    settings=AdaLayersSettings,
    option="adalayers_minilm",
    config="adadepth.models.adalayers.configuration:AdaLayersConfig",
    heads={
        "classification": f"{_HEADS}:AdaLayersForSequenceClassification",
        "tagging": f"{_HEADS}:AdaLayersForTokenClassification",
    },
    loss_parts={"entropy_loss": None, "depth_loss": None},
    budget=Budgeting(
        trained=(BudgetUnit.deepest_layer, BudgetUnit.expected_layer, BudgetUnit.macs),
        fitted=(BudgetUnit.updates, BudgetUnit.deepest_layer),
        prices=("lambda_distribution_depth",),
        whole=True,
        checks=("adadepth.models.adalayers.family:check_budget",),
    ),
    matched_baseline=({"pick_one_layer_only": -1}, "the last layer alone"),
    reads=frozenset({"features"}),
    build="adadepth.models.adalayers.base:build_on_base",
    first_tokens="adadepth.models.adalayers.family:first_tokens",
    own_symbols=False,
    checks=("adadepth.models.adalayers.family:check_settings",),
    extensions=("adadepth.training.cached_states:cached_states",),
    offline="model=adalayers_minilm needs no network: the weights of its base are a package's",
    weights_from="adadepth.models.adalayers.convert:rename_weights",
    config_from="adadepth.models.adalayers.convert:read_config",
)
