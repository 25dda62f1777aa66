"""The settings of plain ALBERT."""

from dataclasses import dataclass

from adadepth.families.registry import Family
from adadepth.families.shared.albert.settings import AlbertSettings
from adadepth.settings import family_name


@dataclass
class PlainAlbertSettings(AlbertSettings):
    """Plain ALBERT (Lan et al. 2020), which runs all of its layers: the baseline."""

    name: str = family_name("albert")


FAMILY = Family(
    settings=PlainAlbertSettings,
    option="albert_mini",
    config="transformers:AlbertConfig",
    heads={"classification": "adadepth.families.albert.modeling:PlainAlbertForSequenceClassification"},
    encoder="adadepth.families.albert.modeling:PlainAlbertModel",
    depth="num_hidden_layers",
    starts_from={"albert_act": None},
    checks=("adadepth.families.shared.albert.settings:check_sizes",),
    weights_from="adadepth.families.shared.albert.convert:to_albert",
)
