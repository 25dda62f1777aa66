"""Conversion of checkpoints and configurations of other implementations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig

from adadepth.errors import CheckpointError, nearest
from adadepth.models.registry import families


def convert_reference_state_dict(
    model_type: str, state_dict: Mapping[str, Tensor], *, pooler_transpose: bool = False
) -> dict[str, Tensor]:
    """Rename the weights of another implementation's checkpoint to the names of this package.

    `albert_act` reads two layouts. The layout of published ACT-ALBERT checkpoints differs only by a legacy buffer. The
    layout of a single-group ALBERT of transformers has no halting head. Load the result with `strict=False`, so that
    the halting head keeps its initialisation. `albert` converts ACT-ALBERT to the layout of transformers, without the
    halting head. `ponder_albert` reads the reference classifier. `adalayers` reads both reference models. It converts
    the distribution to a vector and keeps only the encoder of the base.

    Args:
        model_type: Family of the result: `albert_act`, `albert`, `ponder_albert` or `adalayers`.
        state_dict: Parameters by their original names.
        pooler_transpose: Whether to transpose the weight of the pooler. The published checkpoints contain this square
            matrix in the orientation of TensorFlow. Loading it untransposed causes no error, but is wrong.

    Raises:
        CheckpointError: If the family is unknown, the checkpoint has more than one layer group, or a parameter name
            does not exist in the reference classifier.
    """
    converters = {name: family.weights_from for name, family in families().items() if family.weights_from is not None}
    if model_type not in converters:
        raise CheckpointError(
            f"model_type={model_type!r} cannot be converted from a reference checkpoint; supported are "
            f"{', '.join(converters)}{nearest(model_type, converters)}"
        )
    return converters[model_type]()(state_dict, pooler_transpose)


def convert_reference_config(model_type: str, config: Mapping[str, Any]) -> PreTrainedConfig:
    """Convert the configuration of another implementation to that of this package.

    The activation `gelu` of ACT-ALBERT becomes TensorFlow's tanh form. For Adalayers, `seed_compat` is set.

    Raises:
        CheckpointError: If the family is unknown, or an Adalayers head has a conditional random field.
    """
    readers = {name: family.config_from for name, family in families().items() if family.config_from is not None}
    if model_type not in readers:
        raise CheckpointError(
            f"model_type={model_type!r} has no reference configuration; supported are {' and '.join(readers)}"
        )
    return readers[model_type]()({name: value for name, value in config.items() if name != "model_type"})
