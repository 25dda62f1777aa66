"""What stock classifiers need of a configuration, and how their texts begin."""

from collections.abc import Iterator
from typing import Any

from adadepth.config import ExperimentConfig, Mode


def check_settings(config: ExperimentConfig) -> Iterator[str]:
    """Training starts from a model that somebody has pretrained."""
    if config.mode is Mode.train and config.model.pretrained is None:
        yield "model.pretrained: model=stock_classifier trains what it names, a folder or hub id of transformers"


def first_tokens(model: Any) -> dict[str, Any]:
    """The model's own tokenizer says how texts begin."""
    return {"cls_tokens": 0}
