"""What is known of plain ALBERT."""

from adadepth.families.albert.settings import PlainAlbertSettings
from adadepth.families.registry import Family

FAMILY = Family(
    settings=PlainAlbertSettings,
    config="transformers:AlbertConfig",
    heads={"classification": "adadepth.families.albert.modeling:PlainAlbertForSequenceClassification"},
    encoder="adadepth.families.albert.modeling:PlainAlbertModel",
    depth="num_hidden_layers",
    starts_from={"albert_act": None},
    checks=("adadepth.families.shared.albert.checks:check_sizes",),
    weights_from="adadepth.families.shared.albert.convert:to_albert",
)
