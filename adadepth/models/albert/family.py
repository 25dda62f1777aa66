"""Settings and descriptor of the plain ALBERT family."""

from dataclasses import dataclass

from adadepth.config import family_name
from adadepth.models.registry import Family
from adadepth.models.shared.albert.settings import AlbertSettings


@dataclass
class PlainAlbertSettings(AlbertSettings):
    """Baseline: plain ALBERT (Lan et al. 2020), which always runs all of its layers."""

    name: str = family_name("albert")


FAMILY = Family(
    settings=PlainAlbertSettings,
    option="albert_mini",
    config="transformers:AlbertConfig",
    heads={"classification": "adadepth.models.albert.modeling:PlainAlbertForSequenceClassification"},
    encoder="adadepth.models.albert.modeling:PlainAlbertModel",
    depth="num_hidden_layers",
    starts_from={"albert_act": None},
    checks=("adadepth.models.shared.albert.settings:check_sizes",),
    weights_from="adadepth.models.shared.albert.convert:to_albert",
)
