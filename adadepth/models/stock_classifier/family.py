"""Descriptor of unmodified transformers classifiers."""

from adadepth.models.registry import BuildModel, ConfigClass, Family, ModelClass
from adadepth.models.shared.network_settings import add_no_tokens
from adadepth.models.stock_classifier.settings import StockClassifierSettings, check_settings


def _import_config() -> ConfigClass:
    from transformers import PreTrainedConfig

    return PreTrainedConfig


def _import_classifier() -> ModelClass:
    from adadepth.models.stock_classifier.modeling import StockForSequenceClassification

    return StockForSequenceClassification


def _import_tagger() -> ModelClass:
    from adadepth.models.stock_classifier.modeling import StockForTokenClassification

    return StockForTokenClassification


def _import_builder() -> BuildModel:
    from adadepth.models.stock_classifier.modeling import build_on_pretrained

    return build_on_pretrained


FAMILY = Family(
    settings=StockClassifierSettings,
    title="Plain transformer",
    option="stock",
    config=_import_config,
    heads={
        "classification": _import_classifier,
        "tagging": _import_tagger,
    },
    build=_import_builder,
    first_tokens=add_no_tokens,
    own_symbols=False,
    fixed_depth="always runs all its layers, so it is a network of fixed depth itself",
    checks=(check_settings,),
)
