"""Parameter names of ALBERT: those of transformers, and those that ACT-ALBERT was published with."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from adadepth.errors import CheckpointError
from adadepth.families.loading import HUB_ARGUMENTS, StrictLoading, check_model_type, read_stored_config
from adadepth.families.registry import family, join_alternatives
from adadepth.families.shared.albert.configuration import derive_config
from adadepth.system.hub_access import silence_transformers

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


class FromAnyAlbert(StrictLoading, PreTrainedModel):
    """A model with an ALBERT encoder at `albert`.

    Attributes:
        encoder_names: What gives the parameters of any ALBERT the names that they have in its encoder.
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
        """Load a checkpoint of this family, or take the encoder of another ALBERT and initialise the heads afresh.

        Args:
            pretrained_model_name_or_path: A folder or hub id: a checkpoint of this family, any ALBERT of transformers
                with one layer group, or an ACT-ALBERT, whose halting unit and heads are left behind.
            *model_args: For the constructor.
            config: Instead of the checkpoint's own configuration.
            **kwargs: Fields of the configuration to change, `num_hidden_layers` to any number; arguments of
                transformers' `from_pretrained`; for another family only those that say where to look, `dtype` and
                `attn_implementation`.

        Raises:
            CheckpointError: If the checkpoint is of no such family, has several layer groups, or lacks weights.
            ConfigError: If a field does not exist or has a value that is not allowed.
        """
        path = pretrained_model_name_or_path
        where = {name: kwargs[name] for name in HUB_ARGUMENTS if name in kwargs}
        stored = read_stored_config(path, where)
        if path is not None:
            check_model_type(cls, str(path), stored, starts=True)
        source = None if path is None else AutoConfig.from_pretrained(path, trust_remote_code=False, **where)
        own = cls.config_class.model_type
        if source is None or source.model_type == own:
            return super().from_pretrained(path, *model_args, config=config, **kwargs)
        _check_source(str(path), source, sorted({own, *family(own).starts_from}))
        for name in where:
            del kwargs[name]
        building = {name: kwargs.pop(name) for name in ("dtype", "attn_implementation", "tokenizer") if name in kwargs}
        if config is None:
            config, kwargs = derive_config(cls.config_class, source, kwargs), {}
        config = copy.deepcopy(config)
        config.name_or_path = path
        model = cls._from_config(config, *model_args, **building, **kwargs)
        weights = _encoder_weights(path, cls.encoder_names, model.albert.pooler is not None, where)
        report = model.albert.load_state_dict(weights, strict=False)
        assert not report.unexpected_keys, report.unexpected_keys
        return model.eval()


def _check_source(path: str, source: PreTrainedConfig, known: Collection[str]) -> None:
    if source.model_type not in known:
        raise CheckpointError(f"{path}: holds a model of type {source.model_type}, not {join_alternatives(known)}")
    groups, inner = getattr(source, "num_hidden_groups", 1), source.inner_group_num
    if groups != 1 or inner != 1:
        raise CheckpointError(
            f"{path}: num_hidden_groups={groups}, inner_group_num={inner}; only one group of one layer can be stepped"
        )


def _encoder_weights(
    path: str, rename: Callable[[Mapping[str, Tensor]], dict[str, Tensor]], with_pooler: bool, where: dict[str, Any]
) -> dict[str, Tensor]:
    """Parameters of a checkpoint's encoder, renamed; without the pooler where the checkpoint has none."""
    with silence_transformers():  # the heads are left behind on purpose
        encoder, report = AutoModel.from_pretrained(
            path,
            add_pooling_layer=with_pooler,
            dtype=torch.float32,
            output_loading_info=True,
            trust_remote_code=False,
            **where,
        )
    missing = set(report["missing_keys"])
    if absent := sorted(name for name in missing if not name.startswith("pooler.")):
        raise CheckpointError(f"{path}: {absent[0]} and {len(absent) - 1} more weights of the encoder are missing")
    weights = {name: weight for name, weight in encoder.state_dict().items() if name not in missing}
    return rename({name: w for name, w in weights.items() if ".act." not in name})
