"""Writing of early-exit language models as plain decoders of transformers, as LayerSkip's checkpoints are published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from adadepth.errors import ConfigError
from adadepth.models.shared.layouts import LayoutFiles, describe_decoder, refuse_setting
from adadepth.models.shared.network_model import map_network_names

# Settings that change predictions or add weights, and their values in a plain decoder.
_PLAIN = {"exit_heads": "shared", "exit_gate": False, "exit_rule": None}


def to_network(model: Any, weights: Mapping[str, Tensor], layout: str) -> LayoutFiles:
    """Convert an early-exit language model to the decoder of transformers that it is at full depth.

    The decoder has no exits. Its final norm and head are those of all exits, so a reader may exit after any layer.

    Raises:
        ConfigError: If exits have weights of their own, or an exit rule decides, or the decoder is of another type.
    """
    config = model.config
    if layout != config.base:
        raise ConfigError(f"layout={layout}: its layers are those of {config.base}; set layout={config.base}")
    for name, plain in _PLAIN.items():
        if (value := getattr(config, name)) != plain:
            advice = "model.drop_exits(), or export.drop_exits=true, leaves the exits out"
            raise ConfigError(f"{refuse_setting(layout, name, value, plain)}; {advice}")
    names = map_network_names(type(model), config)
    tied = set(model.all_tied_weights_keys or ())
    published = {names[name]: weight for name, weight in weights.items() if name not in tied}
    return LayoutFiles(describe_decoder(config.base_config, config), published)
