"""Conversion of published ACT-ALBERT configurations and of transformers' ALBERT weights to ACT-ALBERT."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AlbertForPreTraining, PreTrainedConfig, PreTrainedModel

from adadepth.models.albert_act.configuration import AlbertActConfig
from adadepth.models.folder import load_with_weights
from adadepth.models.folder import read_config as read_stored
from adadepth.models.loading import list_weight_names
from adadepth.models.shared.albert.convert import from_albert


def read_config(config: dict[str, Any]) -> AlbertActConfig:
    """Convert the configuration of a published ACT-ALBERT model, given its JSON fields.

    A published `gelu` becomes `gelu_new`, the tanh form with which TensorFlow trained.
    """
    config.pop("num_hidden_groups", None)
    if config.get("hidden_act") == "gelu":
        config["hidden_act"] = "gelu_new"
    return AlbertActConfig(**config)


def load_albert(model_class: Any, path: str, config: PreTrainedConfig, options: dict[str, Any]) -> PreTrainedModel:
    """Build an ACT-ALBERT model with the weights of transformers' ALBERT; new parameters are initialised randomly.

    Args:
        model_class: Class of the result.
        path: Folder or hub id of an ALBERT.
        config: Configuration of the result.
        options: `dtype`, and `attn_implementation` if it is set.
    """
    source = read_stored("model.pretrained", path)
    albert = load_with_weights(
        "model.pretrained", path, AlbertForPreTraining, source, has=list_weight_names(source), dtype=torch.float32
    )
    model = model_class._from_config(config, **options)
    model.load_state_dict(from_albert(albert.state_dict()), strict=False)
    model.tie_weights()
    return model
