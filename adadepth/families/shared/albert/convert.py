"""Parameter names of ALBERT: those of transformers, and those that ACT-ALBERT was published with."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from adadepth.errors import CheckpointError

# A buffer that old checkpoints hold, and no model.
LEGACY_BUFFER = "embeddings.position_ids"

_ALBERT_LAYER = re.compile(r"encoder\.albert_layer_groups\.0\.albert_layers\.0\.(attention\.(?=LayerNorm))?")
_ACT_LAYER = re.compile(r"encoder\.albert_layer\.(?=(LayerNorm)?)")


def from_albert(state_dict: Mapping[str, Tensor], pooler_transpose: bool = False) -> dict[str, Tensor]:
    """From the layout of transformers, or the published one, to the published one; see `convert_reference_state_dict`.

    Raises:
        CheckpointError: For a checkpoint with more than one layer group.
    """
    converted = {}
    for name, weight in state_dict.items():
        if name.endswith(LEGACY_BUFFER):
            continue
        renamed = _ALBERT_LAYER.sub("encoder.albert_layer.", name)
        if "albert_layer_groups" in renamed or "albert_layers" in renamed:
            raise CheckpointError(f"{name}: only checkpoints with one layer group of one layer can be converted")
        is_pooler = pooler_transpose and name.endswith("pooler.weight")
        converted[renamed] = weight.T.contiguous() if is_pooler else weight
    return converted


def to_albert(state_dict: Mapping[str, Tensor], pooler_transpose: bool = False) -> dict[str, Tensor]:
    """The inverse of `from_albert`: the layer goes into its group, its first norm into the attention."""
    one_layout = from_albert(state_dict, pooler_transpose)
    return {
        _ACT_LAYER.sub(_into_group, name): weight
        for name, weight in one_layout.items()
        if ".albert_layer.act." not in name
    }


def _into_group(match: re.Match[str]) -> str:
    return f"encoder.albert_layer_groups.0.albert_layers.0.{'attention.' if match[1] else ''}"
