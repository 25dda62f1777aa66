"""ACT-ALBERT from the weights of an ALBERT of transformers, heads included."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForPreTraining, PreTrainedConfig, PreTrainedModel

from adadepth.families.shared.albert.convert import from_albert


def load_albert(model_class: Any, path: str, config: PreTrainedConfig, attention: dict[str, str]) -> PreTrainedModel:
    """A model whose halting unit, and what else ALBERT lacks, keeps its initialisation.

    Args:
        model_class: What to make.
        path: A folder or hub id of an ALBERT.
        config: The configuration of the result.
        attention: `attn_implementation`, if it is given.
    """
    albert = AutoModelForPreTraining.from_pretrained(path, dtype=torch.float32, trust_remote_code=False)
    model = model_class._from_config(config, **attention)
    model.load_state_dict(from_albert(albert.state_dict()), strict=False)
    model.tie_weights()
    return model
