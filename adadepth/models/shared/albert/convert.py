"""Conversion of ALBERT checkpoints between the parameter names of transformers and of published ACT-ALBERT models."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from adadepth.errors import CheckpointError
from adadepth.models.loading import HUB_ARGUMENTS, StrictLoading, check_model_type, read_stored_config
from adadepth.models.registry import family, join_alternatives
from adadepth.models.shared.albert.configuration import derive_config
from adadepth.runtime.hub_access import silence_transformers

# Buffer in old checkpoints that no model has.
LEGACY_BUFFER = "embeddings.position_ids"

_ALBERT_LAYER = re.compile(r"encoder\.albert_layer_groups\.0\.albert_layers\.0\.(attention\.(?=LayerNorm))?")
_ACT_LAYER = re.compile(r"encoder\.albert_layer\.(?=(LayerNorm)?)")


def from_albert(state_dict: Mapping[str, Tensor], pooler_transpose: bool = False) -> dict[str, Tensor]:
    """Rename the weights of an ALBERT checkpoint, in either naming scheme, as in published ACT-ALBERT models.

    Args:
        state_dict: State dict in the layout of transformers or of published ACT-ALBERT checkpoints.
        pooler_transpose: Whether to transpose the weight of the pooler.

    Raises:
        CheckpointError: If the checkpoint has more than one layer group or layer.
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
    """Rename weights as in transformers' ALBERT, and remove the halting unit.

    This is the inverse of `from_albert`.
    """
    published = from_albert(state_dict, pooler_transpose)
    return {
        _ACT_LAYER.sub(_build_group_prefix, name): weight
        for name, weight in published.items()
        if ".albert_layer.act." not in name
    }


def _build_group_prefix(match: re.Match[str]) -> str:
    """Return the prefix of a layer's parameter names in transformers' ALBERT."""
    return f"encoder.albert_layer_groups.0.albert_layers.0.{'attention.' if match[1] else ''}"


class FromAnyAlbert(StrictLoading, PreTrainedModel):
    """Mixin for models with an ALBERT encoder in `albert`, which can load the encoder of any ALBERT checkpoint.

    Attributes:
        encoder_names: Function that converts the state dict of any ALBERT to the parameter names of the encoder.
    """

    config_class: type[PreTrainedConfig]
    encoder_names: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] = staticmethod(from_albert)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Any,
        *model_args: Any,
        config: PreTrainedConfig | None = None,
        **kwargs: Any,
    ) -> Any:
        """Load a checkpoint of this family, or the encoder of another ALBERT with newly initialised heads.

        Args:
            pretrained_model_name_or_path: Folder or hub id of a checkpoint. It may be of this family, of any ALBERT of
                transformers with one layer group, or of an ACT-ALBERT. The halting unit and heads of an ACT-ALBERT are
                ignored.
            *model_args: Arguments of the constructor.
            config: Configuration in place of the checkpoint's.
            **kwargs: Configuration fields to change, and arguments of transformers' `from_pretrained`.
                `num_hidden_layers` can be any number. For a checkpoint of another family, the allowed arguments are
                those of the hub, `dtype` and `attn_implementation`.

        Raises:
            CheckpointError: If the checkpoint is not of an allowed family, has several layer groups, or lacks weights.
            ConfigError: If a configuration field does not exist, or its value is not allowed.
        """
        path = pretrained_model_name_or_path
        hub_arguments = {name: kwargs[name] for name in HUB_ARGUMENTS if name in kwargs}
        stored = read_stored_config(path, hub_arguments)
        if path is not None:
            check_model_type(cls, str(path), stored, starts=True)
        source = None if path is None else AutoConfig.from_pretrained(path, trust_remote_code=False, **hub_arguments)
        model_type = cls.config_class.model_type
        if source is None or source.model_type == model_type:
            return super().from_pretrained(path, *model_args, config=config, **kwargs)
        _check_source(str(path), source, sorted({model_type, *family(model_type).starts_from}))
        for name in hub_arguments:
            del kwargs[name]
        building = {name: kwargs.pop(name) for name in ("dtype", "attn_implementation", "tokenizer") if name in kwargs}
        if config is None:
            config, kwargs = derive_config(cls.config_class, source, kwargs), {}
        config = copy.deepcopy(config)
        config.name_or_path = path
        model = cls._from_config(config, *model_args, **building, **kwargs)
        weights = _load_encoder_weights(path, cls.encoder_names, model.albert.pooler is not None, hub_arguments)
        report = model.albert.load_state_dict(weights, strict=False)
        assert not report.unexpected_keys, report.unexpected_keys
        return model.eval()


def _check_source(path: str, source: PreTrainedConfig, model_types: Collection[str]) -> None:
    """Raise an error if a checkpoint is not an ALBERT, or has more than one layer group or layer."""
    if source.model_type not in model_types:
        raise CheckpointError(
            f"{path}: contains a model of type {source.model_type}, not {join_alternatives(model_types)}"
        )
    groups, inner = getattr(source, "num_hidden_groups", 1), source.inner_group_num
    if groups != 1 or inner != 1:
        raise CheckpointError(
            f"{path}: num_hidden_groups={groups}, inner_group_num={inner}; only one group of one layer is supported"
        )


def _load_encoder_weights(
    path: str,
    rename: Callable[[Mapping[str, Tensor]], dict[str, Tensor]],
    with_pooler: bool,
    hub_arguments: dict[str, Any],
) -> dict[str, Tensor]:
    """Load and rename the encoder weights of a checkpoint, including the pooler if there is one."""
    with silence_transformers():  # the warning about ignored heads would mislead
        encoder, report = AutoModel.from_pretrained(
            path,
            add_pooling_layer=with_pooler,
            dtype=torch.float32,
            output_loading_info=True,
            trust_remote_code=False,
            **hub_arguments,
        )
    missing = set(report["missing_keys"])
    if absent := sorted(name for name in missing if not name.startswith("pooler.")):
        raise CheckpointError(f"{path}: {absent[0]} and {len(absent) - 1} more weights of the encoder are missing")
    weights = {name: weight for name, weight in encoder.state_dict().items() if name not in missing}
    return rename({name: w for name, w in weights.items() if ".act." not in name})
