"""ACT-ALBERT from what others wrote: the published configurations, and the weights of an ALBERT of transformers."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AlbertForPreTraining, PreTrainedConfig, PreTrainedModel

from adadepth.families.albert_act.configuration import AlbertActConfig
from adadepth.families.folder import load_with_weights
from adadepth.families.folder import read_config as read_stored
from adadepth.families.loading import list_weight_names
from adadepth.families.shared.albert.convert import from_albert


def read_config(config: dict[str, Any]) -> AlbertActConfig:
    """The activation `gelu` of an original is the tanh form that TensorFlow trained with."""
    config.pop("num_hidden_groups", None)
    if config.get("hidden_act") == "gelu":
        config["hidden_act"] = "gelu_new"
    return AlbertActConfig(**config)


def load_albert(model_class: Any, path: str, config: PreTrainedConfig, attention: dict[str, str]) -> PreTrainedModel:
    """A model whose halting unit, and what else ALBERT lacks, keeps its initialisation.

    Args:
        model_class: What to make.
        path: A folder or hub id of an ALBERT.
        config: The configuration of the result.
        attention: `attn_implementation`, if it is given.
    """
    source = read_stored("model.pretrained", path)
    albert = load_with_weights(
        "model.pretrained", path, AlbertForPreTraining, source, has=list_weight_names(source), dtype=torch.float32
    )
    model = model_class._from_config(config, **attention)
    model.load_state_dict(from_albert(albert.state_dict()), strict=False)
    model.tie_weights()
    return model
