"""ACT-ALBERT from the weights of an ALBERT of transformers, heads included."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AlbertForPreTraining, PreTrainedConfig, PreTrainedModel

from adadepth.families.folder import loaded, read_config, weights_of
from adadepth.families.shared.albert.convert import from_albert


def load_albert(model_class: Any, path: str, config: PreTrainedConfig, attention: dict[str, str]) -> PreTrainedModel:
    """A model whose halting unit, and what else ALBERT lacks, keeps its initialisation.

    Args:
        model_class: What to make.
        path: A folder or hub id of an ALBERT.
        config: The configuration of the result.
        attention: `attn_implementation`, if it is given.
    """
    source = read_config("model.pretrained", path)
    albert = loaded("model.pretrained", path, AlbertForPreTraining, source, has=weights_of(source), dtype=torch.float32)
    model = model_class._from_config(config, **attention)
    model.load_state_dict(from_albert(albert.state_dict()), strict=False)
    model.tie_weights()
    return model
