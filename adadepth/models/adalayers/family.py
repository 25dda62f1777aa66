"""Descriptor of Adalayers."""

from adadepth.config import BudgetUnit
from adadepth.models.adalayers.settings import AdaLayersSettings, check_budget, check_settings, fix_picked_layer
from adadepth.models.registry import Budgeting, BuildModel, ConfigClass, Family, ModelClass, ReadConfig, RenameWeights
from adadepth.models.shared.network_settings import add_no_tokens


def _import_config() -> ConfigClass:
    from adadepth.models.adalayers.configuration import AdaLayersConfig

    return AdaLayersConfig


def _import_classifier() -> ModelClass:
    from adadepth.models.adalayers.heads import AdaLayersForSequenceClassification

    return AdaLayersForSequenceClassification


def _import_tagger() -> ModelClass:
    from adadepth.models.adalayers.heads import AdaLayersForTokenClassification

    return AdaLayersForTokenClassification


def _import_builder() -> BuildModel:
    from adadepth.models.adalayers.base import build_on_base

    return build_on_base


def _import_weight_conversion() -> RenameWeights:
    from adadepth.models.adalayers.convert import rename_weights

    return rename_weights


def _import_config_reader() -> ReadConfig:
    from adadepth.models.adalayers.convert import read_config

    return read_config


FAMILY = Family(
    settings=AdaLayersSettings,
    title="Adalayers",
    option="adalayers_minilm",
    config=_import_config,
    heads={
        "classification": _import_classifier,
        "tagging": _import_tagger,
    },
    loss_parts={"entropy_loss": None, "depth_loss": None},
    budget=Budgeting(
        trained=(BudgetUnit.deepest_layer, BudgetUnit.expected_layer, BudgetUnit.macs),
        fitted=(BudgetUnit.updates, BudgetUnit.deepest_layer),
        prices=("lambda_distribution_depth",),
        whole=True,
        checks=(check_budget,),
    ),
    fixed_depth=fix_picked_layer,
    matched_baseline=({"pick_one_layer_only": -1}, "the last layer only"),
    reads=frozenset({"features"}),
    build=_import_builder,
    first_tokens=add_no_tokens,
    own_symbols=False,
    checks=(check_settings,),
    offline="model=adalayers_minilm needs no network, because the weights of its base come with a package",
    weights_from=_import_weight_conversion,
    config_from=_import_config_reader,
)
