"""What is known of stock classifiers."""

from adadepth.families.registry import Family
from adadepth.families.stock_classifier.settings import StockClassifierSettings

FAMILY = Family(
    settings=StockClassifierSettings,
    config="transformers:PreTrainedConfig",
    heads={
        "classification": "adadepth.families.stock_classifier.modeling:StockForSequenceClassification",
        "tagging": "adadepth.families.stock_classifier.modeling:StockForTokenClassification",
    },
    build="adadepth.families.stock_classifier.build:build_on_pretrained",
    first_tokens="adadepth.families.stock_classifier.checks:first_tokens",
    own_symbols=False,
    checks=("adadepth.families.stock_classifier.checks:check_settings",),
)
