"""What the settings of PonderALBERT need of each other, and how its texts begin."""

from collections.abc import Iterator
from typing import Any

from adadepth.config import ExperimentConfig
from adadepth.families.ponder_albert.settings import HaltingHead, PonderAlbertSettings, Readout


def check_halting_head(config: ExperimentConfig) -> Iterator[str]:
    """Only one of the heads has further layers."""
    model = config.model
    assert isinstance(model, PonderAlbertSettings)
    layers = model.halting_head_layers
    if layers > 1 and model.halting_head is not HaltingHead.linear_cat:
        yield f"model.halting_head_layers={layers}: read only with model.halting_head=linear_cat"


def first_tokens(model: Any) -> dict[str, Any]:
    """How many [CLS] a text begins with, from the settings or from the model's configuration."""
    return {
        "cls_tokens": 2 if model.readout == Readout.tokens else 1,
        "double_cls_pairs": str(model.double_cls_pairs),
    }
