"""Conversion of checkpoints of the original PonderALBERT code."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from adadepth.errors import CheckpointError, nearest
from adadepth.models.shared.albert.convert import LEGACY_BUFFER

_FIRST_NORM = "albert_layer.LayerNorm"
# Part of the reference classifier -> prefix of its name here.
_PARTS = {
    "embeddings": "albert.",
    "embedding_hidden_mapping_in": "albert.encoder.",
    "albert_layer": "albert.encoder.",
    "classifier": "",
    "ponder": "",
}


def rename_weights(state_dict: Mapping[str, Tensor], pooler_transpose: bool) -> dict[str, Tensor]:
    """Rename the weights of an original PonderALBERT classifier as in this package.

    It has no pooler, and its encoder modules are at the top level.
    """
    converted = {}
    for name, weight in state_dict.items():
        if name == LEGACY_BUFFER:
            continue
        part = name.split(".")[0]
        if part not in _PARTS:
            raise CheckpointError(f"{name}: not a parameter of the reference classifier{nearest(part, _PARTS)}")
        converted[f"{_PARTS[part]}{name.replace('albert_layer.attention.LayerNorm', _FIRST_NORM)}"] = weight
    return converted
