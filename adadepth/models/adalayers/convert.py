"""Conversion of checkpoints and configurations of the original Adalayers code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from adadepth.errors import CheckpointError
from adadepth.models.adalayers.configuration import AdaLayersConfig
from adadepth.models.shared.albert.convert import LEGACY_BUFFER

_UNUSED_BASE_PARTS = ("model.pooler.", "model.decoder.", "model.shared.")
# The original's defaults of fields that a configuration does not name.
_DEFAULTS: dict[str, Any] = {
    "base_model": "bert-base-uncased",
    "layers_num": 13,
    "layer_in_dim": 768,
    "attention_dropout_prob": None,
    "lambda_distribution_entropy": 0.02,
}


def rename_weights(state_dict: Mapping[str, Tensor], pooler_transpose: bool) -> dict[str, Tensor]:
    """Rename the weights of an original Adalayers checkpoint as in this package."""
    encoder = "model.encoder." if any(name.startswith("model.decoder.") for name in state_dict) else "model."
    converted = {}
    for name, weight in state_dict.items():
        if name.startswith(_UNUSED_BASE_PARTS) or name.endswith(LEGACY_BUFFER):
            continue
        new_name = f"model.{name.removeprefix(encoder)}" if name.startswith(encoder) else name
        converted[new_name] = weight.flatten() if name == "distribution" else weight
    return converted


def read_config(config: dict[str, Any]) -> AdaLayersConfig:
    """Convert the configuration of an original Adalayers checkpoint, given its JSON fields.

    Raises:
        CheckpointError: If the head has a conditional random field.
    """
    for name in [name for name in config if "crf" in name]:
        if config.pop(name):
            raise CheckpointError(f"{name}: heads with a conditional random field cannot be converted")
    if "num_classes" in config:
        config["num_labels"] = config.pop("num_classes")
    return AdaLayersConfig(**(_DEFAULTS | config | {"seed_compat": True}))
