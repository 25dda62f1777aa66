"""Descriptor of the plain ALBERT family."""

from adadepth.models.albert.settings import PlainAlbertSettings
from adadepth.models.registry import ConfigClass, Family, ModelClass, RenameWeights
from adadepth.models.shared.albert.settings import check_sizes


def _import_config() -> ConfigClass:
    from transformers import AlbertConfig

    return AlbertConfig


def _import_classifier() -> ModelClass:
    from adadepth.models.albert.modeling import PlainAlbertForSequenceClassification

    return PlainAlbertForSequenceClassification


def _import_model() -> ModelClass:
    from adadepth.models.albert.modeling import PlainAlbertModel

    return PlainAlbertModel


def _import_weight_conversion() -> RenameWeights:
    from adadepth.models.shared.albert.convert import to_albert

    return to_albert


FAMILY = Family(
    settings=PlainAlbertSettings,
    title="ALBERT",
    option="albert_mini",
    config=_import_config,
    heads={"classification": _import_classifier},
    encoder=_import_model,
    depth="num_hidden_layers",
    fixed_depth="always runs all its layers, so it is a network of fixed depth itself",
    starts_from={"albert_act": None},
    checks=(check_sizes,),
    weights_from=_import_weight_conversion,
)
