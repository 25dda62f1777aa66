"""Settings of unmodified transformers classifiers, and their validation."""

from collections.abc import Iterator
from dataclasses import dataclass

from adadepth.config import Attention, ExperimentConfig, Mode, ModelConfig, family_name
from adadepth.config.declaration import setting


@dataclass
class StockClassifierSettings(ModelConfig):
    """Baseline: an unmodified sequence or token classifier of transformers, which always runs all its blocks.

    `pretrained` names the model to train, and `checkpoint` names the model to evaluate.
    """

    name: str = family_name("stock_classifier")
    attn_implementation: Attention | None = setting(
        None, "attention implementation; None: the fastest available one", in_model=False
    )


def check_settings(config: ExperimentConfig) -> Iterator[str]:
    """Yield an error if a training run does not name its pretrained model."""
    if config.mode is Mode.train and config.model.pretrained is None:
        yield "model.pretrained: required by model=stock_classifier; give a folder or hub id of transformers"
