"""Reading the originals' checkpoints: from their parameter names and configurations to this project's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig

from adadepth.errors import CheckpointError, nearest
from adadepth.families.adalayers.configuration import AdaLayersConfig
from adadepth.families.albert_act.configuration import AlbertActConfig

_ALBERT_LAYER = re.compile(r"encoder\.albert_layer_groups\.0\.albert_layers\.0\.(attention\.(?=LayerNorm))?")
_ACT_LAYER = re.compile(r"encoder\.albert_layer\.(?=(LayerNorm)?)")
_LEGACY_BUFFER = "embeddings.position_ids"
_UNUSED_BASE_PARTS = ("model.pooler.", "model.decoder.", "model.shared.")
_FIRST_NORM = "albert_layer.LayerNorm"
# Part of the reference PonderALBERT's classifier -> what precedes it here.
_PONDER_PARTS = {
    "embeddings": "albert.",
    "embedding_hidden_mapping_in": "albert.encoder.",
    "albert_layer": "albert.encoder.",
    "classifier": "",
    "ponder": "",
}
# What the original Adalayers configuration takes a field to be that it does not name.
_ADALAYERS_DEFAULTS: dict[str, Any] = {
    "base_model": "bert-base-uncased",
    "layers_num": 13,
    "layer_in_dim": 768,
    "attention_dropout_prob": None,
    "lambda_distribution_entropy": 0.02,
}


def convert_reference_state_dict(
    model_type: str, state_dict: Mapping[str, Tensor], *, pooler_transpose: bool = False
) -> dict[str, Tensor]:
    """Rename an original's parameters to this project's layout.

    `albert_act` takes two layouts: that of the published ACT-ALBERT checkpoints, which is this project's own but for a
    legacy buffer, and that of any single-group ALBERT of transformers, which has no halting unit: load the result
    with `strict=False` and the unit keeps its initialisation. `albert` is the way back: from ACT-ALBERT's layout to
    that of transformers, without the halting unit. `ponder_albert` takes the reference classifier's. `adalayers` takes
    either reference model's: the distribution becomes a vector, and of the base the encoder is left.

    Args:
        model_type: The family whose layout is wanted: `albert_act`, `albert`, `ponder_albert` or `adalayers`.
        state_dict: Parameters by their original names.
        pooler_transpose: Transpose the pooler's weight. The conversion that produced the published checkpoints left
            this square matrix as TensorFlow stores it, and nothing fails when it is used the wrong way round.

    Raises:
        CheckpointError: For an unknown family, a checkpoint with more than one layer group, or a name that the
            reference classifier does not have.
    """
    if model_type not in _CONVERTERS:
        raise CheckpointError(
            f"model_type={model_type!r} has no reference layout; known are {', '.join(_CONVERTERS)}"
            f"{nearest(model_type, list(_CONVERTERS))}"
        )
    return _CONVERTERS[model_type](state_dict, pooler_transpose)


def convert_reference_config(model_type: str, config: Mapping[str, Any]) -> PreTrainedConfig:
    """Read an original's configuration.

    ACT-ALBERT's activation `gelu` is the tanh form that TensorFlow trained with. Adalayers comes with `seed_compat`.

    Raises:
        CheckpointError: For an unknown family, or an Adalayers head with a conditional random field.
    """
    if model_type not in _CONFIG_CONVERTERS:
        known = " and ".join(_CONFIG_CONVERTERS)
        raise CheckpointError(f"model_type={model_type!r} has no reference configuration; known are {known}")
    return _CONFIG_CONVERTERS[model_type]({name: value for name, value in config.items() if name != "model_type"})


def _albert_act_config(config: dict[str, Any]) -> AlbertActConfig:
    config.pop("num_hidden_groups", None)
    if config.get("hidden_act") == "gelu":
        config["hidden_act"] = "gelu_new"
    return AlbertActConfig(**config)


def _adalayers_config(config: dict[str, Any]) -> AdaLayersConfig:
    for name in [name for name in config if "crf" in name]:
        if config.pop(name):
            raise CheckpointError(f"{name}: heads with a conditional random field cannot be converted")
    if "num_classes" in config:
        config["num_labels"] = config.pop("num_classes")
    return AdaLayersConfig(**(_ADALAYERS_DEFAULTS | config | {"seed_compat": True}))


def _convert_albert_act(state_dict: Mapping[str, Tensor], pooler_transpose: bool) -> dict[str, Tensor]:
    converted = {}
    for name, weight in state_dict.items():
        if name.endswith(_LEGACY_BUFFER):
            continue
        renamed = _ALBERT_LAYER.sub("encoder.albert_layer.", name)
        if "albert_layer_groups" in renamed or "albert_layers" in renamed:
            raise CheckpointError(f"{name}: only checkpoints with one layer group of one layer can be converted")
        is_pooler = pooler_transpose and name.endswith("pooler.weight")
        converted[renamed] = weight.T.contiguous() if is_pooler else weight
    return converted


def _convert_albert(state_dict: Mapping[str, Tensor], pooler_transpose: bool) -> dict[str, Tensor]:
    """The inverse of `_convert_albert_act`: the layer goes into its group, its first norm into the attention."""
    one_layout = _convert_albert_act(state_dict, pooler_transpose)
    return {
        _ACT_LAYER.sub(_into_group, name): weight
        for name, weight in one_layout.items()
        if ".albert_layer.act." not in name
    }


def _into_group(match: re.Match[str]) -> str:
    return f"encoder.albert_layer_groups.0.albert_layers.0.{'attention.' if match[1] else ''}"


def _convert_ponder_albert(state_dict: Mapping[str, Tensor], pooler_transpose: bool) -> dict[str, Tensor]:
    """The reference classifier keeps the encoder's parts at the top; it has no pooler."""
    converted = {}
    for name, weight in state_dict.items():
        if name == _LEGACY_BUFFER:
            continue
        part = name.split(".")[0]
        if part not in _PONDER_PARTS:
            raise CheckpointError(f"{name}: not a parameter of the reference classifier{nearest(part, _PONDER_PARTS)}")
        converted[f"{_PONDER_PARTS[part]}{name.replace('albert_layer.attention.LayerNorm', _FIRST_NORM)}"] = weight
    return converted


def _convert_adalayers(state_dict: Mapping[str, Tensor], pooler_transpose: bool) -> dict[str, Tensor]:
    """The base of an encoder-decoder model is its encoder alone."""
    encoder = "model.encoder." if any(name.startswith("model.decoder.") for name in state_dict) else "model."
    converted = {}
    for name, weight in state_dict.items():
        if name.startswith(_UNUSED_BASE_PARTS) or name.endswith(_LEGACY_BUFFER):
            continue
        renamed = f"model.{name.removeprefix(encoder)}" if name.startswith(encoder) else name
        converted[renamed] = weight.flatten() if name == "distribution" else weight
    return converted


_CONVERTERS = {
    "albert_act": _convert_albert_act,
    "albert": _convert_albert,
    "ponder_albert": _convert_ponder_albert,
    "adalayers": _convert_adalayers,
}
_CONFIG_CONVERTERS: dict[str, Callable[[dict[str, Any]], PreTrainedConfig]] = {
    "albert_act": _albert_act_config,
    "adalayers": _adalayers_config,
}
