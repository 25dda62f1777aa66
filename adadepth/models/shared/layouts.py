"""Writing of language models in the layouts in which others publish them, so that other programs read them.

A family names its layouts in `Family.layouts`. A layout that cannot express a model is refused: every setting that
changes a prediction must have the value that the layout implies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME

from adadepth.errors import ConfigError, nearest
from adadepth.models.loading import find_family
from adadepth.models.registry import join_alternatives
from adadepth.models.shared.published_files import TOKEN_FIELDS, TRAINING_DATA, LayoutFiles


def convert_to_layout(model: Any, layout: str, weights: Mapping[str, Tensor] | None = None) -> LayoutFiles:
    """Convert a language model to a published layout.

    Args:
        model: A `DepthModel`.
        layout: Name of the layout; see `Family.layouts`.
        weights: Weights of the model, or None for its own.

    Raises:
        ConfigError: If the layout is unknown, or cannot express the model. The message names the setting.
    """
    family = find_family(model.config.model_type)
    layouts = {} if family is None else family.layouts
    if not layouts or not type(model).__name__.endswith("ForCausalLM"):
        raise ConfigError(f"layout={layout}: {type(model).__name__} has none; only language models of some families do")
    if layout not in layouts:
        allowed = f"{join_alternatives(layouts)} for {type(model).__name__}{nearest(layout, layouts)}"
        raise ConfigError(f"layout={layout}: must be {allowed}")
    if getattr(model.config, "quantization_config", None) is not None:
        raise ConfigError(f"quantization_config: layout={layout} needs weights that are not quantised")
    published = layouts[layout]()(model, model.state_dict() if weights is None else weights, layout)
    published.config["torch_dtype"] = str(model.dtype).removeprefix("torch.")
    return published


def write_layout(
    model: Any,
    folder: Path,
    layout: str,
    *,
    is_main_process: bool = True,
    state_dict: Mapping[str, Tensor] | None = None,
    max_shard_size: int | str = "50GB",
    **options: Any,
) -> None:
    """Write a language model in a published layout: configuration, weights and generation configuration.

    Args:
        model: A `DepthModel`.
        folder: Folder of the files.
        layout: Name of the layout; see `Family.layouts`.
        is_main_process: Whether this process writes the files.
        state_dict: Weights of the model, or None for its own.
        max_shard_size: Maximum size of a file of weights.
        **options: Options of `save_pretrained` without a meaning here, which must be false.

    Raises:
        ConfigError: If the layout is unknown, or cannot express the model.
    """
    if unsupported := [name for name, value in options.items() if value]:
        raise ConfigError(
            f"{unsupported[0]}={options[unsupported[0]]}: not supported with layout={layout}; leave it out"
        )
    published = convert_to_layout(model, layout, state_dict)
    if not is_main_process:
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SAFE_WEIGHTS_INDEX_NAME).unlink(missing_ok=True)  # of an earlier model in several files
    save_torch_state_dict(published.weights, folder, max_shard_size=max_shard_size, metadata={"format": "pt"})
    training_data = getattr(model.config, TRAINING_DATA, None)
    config = published.config | ({} if training_data is None else {TRAINING_DATA: training_data})
    (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    model.generation_config.save_pretrained(folder)


def describe_decoder(network: PreTrainedConfig, config: PreTrainedConfig) -> dict[str, Any]:
    """Return the configuration of a decoder of transformers as fields of config.json.

    Positions are stored under the names of transformers 4, too.

    Args:
        network: Configuration of the decoder.
        config: Configuration of the model around it, which owns vocabulary and special tokens.
    """
    fields = network.to_dict() | {name: getattr(config, name) for name in ("vocab_size", *TOKEN_FIELDS)}
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(network)]
    fields["architectures"] = [model_class.__name__]
    for name in ("dtype", "_name_or_path", "auto_map"):
        fields.pop(name, None)
    positions = fields.get("rope_parameters") or {}
    if "rope_theta" in positions:
        scaling = {name: value for name, value in positions.items() if name != "rope_theta"}
        fields["rope_theta"] = positions["rope_theta"]
        fields["rope_scaling"] = None if scaling.get("rope_type", "default") == "default" else scaling
    return fields


def refuse_setting(layout: str, name: str, value: Any, allowed: Any) -> ConfigError:
    """Return the error about a setting that a layout cannot express."""
    return ConfigError(f"{name}={value}: layout={layout} needs {name}={allowed}")


def differs(value: Any, allowed: Any) -> bool:
    """Return whether two values of a setting differ; numbers in float32 precision."""
    if isinstance(value, float) or isinstance(allowed, float):
        if value is None or allowed is None:
            return value is not allowed
        return bool(torch.tensor(float(value)) != torch.tensor(float(allowed)))
    return bool((value or None) != (allowed or None))
