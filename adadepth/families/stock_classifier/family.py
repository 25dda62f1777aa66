"""The settings of stock classifiers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from adadepth.families.registry import Family
from adadepth.settings import Attention, ExperimentConfig, Mode, ModelConfig, family_name
from adadepth.settings.declaration import setting


@dataclass
class StockClassifierSettings(ModelConfig):
    """A classifier of sequences or tokens as transformers has it, every block of it: the baseline.

    `pretrained` names what is trained; what is evaluated is named by `checkpoint`.
    """

    name: str = family_name("stock_classifier")
    attn_implementation: Attention | None = setting(None, "None: the best that torch offers here", in_model=False)


def check_settings(config: ExperimentConfig) -> Iterator[str]:
    """Training starts from a model that somebody has pretrained."""
    if config.mode is Mode.train and config.model.pretrained is None:
        yield "model.pretrained: model=stock_classifier trains what it names, a folder or hub id of transformers"


def first_tokens(model: Any) -> dict[str, Any]:
    """The model's own tokenizer says how texts begin."""
    return {"cls_tokens": 0}


FAMILY = Family(
    settings=StockClassifierSettings,
    option="stock",
    config="transformers:PreTrainedConfig",
    heads={
        "classification": "adadepth.families.stock_classifier.modeling:StockForSequenceClassification",
        "tagging": "adadepth.families.stock_classifier.modeling:StockForTokenClassification",
    },
    build="adadepth.families.stock_classifier.modeling:build_on_pretrained",
    first_tokens="adadepth.families.stock_classifier.family:first_tokens",
    own_symbols=False,
    checks=("adadepth.families.stock_classifier.family:check_settings",),
)
