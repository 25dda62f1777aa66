"""Writing of early-exit language models as plain decoders of transformers, as LayerSkip's checkpoints are published."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from adadepth.errors import ConfigError
from adadepth.halting.exit_rules import Fixed
from adadepth.models.depth.engine import resolve_exit_rule
from adadepth.models.shared.layouts import LayoutFiles, describe_decoder, refuse_setting
from adadepth.models.shared.network_model import map_network_names

# Settings that change predictions or add weights, and their values in a plain decoder.
_PLAIN = {"exit_heads": "shared", "exit_gate": False}
_LISTS = ("layer_types", "no_rope_layers")  # with an entry for every layer


def to_network(model: Any, weights: Mapping[str, Tensor], layout: str) -> LayoutFiles:
    """Convert an early-exit language model to the decoder of transformers that it is at full depth, or at a fixed exit.

    The decoder has no exits. Its final norm and head are those of all exits, so a reader may exit after any layer. An
    exit rule `fixed:k` leaves out the layers after the k-th exit.

    Raises:
        ConfigError: If exits have weights of their own, or an exit rule decides, or the decoder is of another type.
    """
    config = model.config
    if layout != config.base:
        raise ConfigError(f"layout={layout}: its layers are those of {config.base}; set layout={config.base}")
    advice = "model.drop_exits(), or export.drop_exits=true, leaves the exits out"
    for name, plain in _PLAIN.items():
        if (value := getattr(config, name)) != plain:
            raise ConfigError(f"{refuse_setting(layout, name, value, plain)}; {advice}")
    rule = resolve_exit_rule(model, config.exit_rule or f"fixed:{model.max_updates}")
    if not isinstance(rule, Fixed):
        raise ConfigError(f"{refuse_setting(layout, 'exit_rule', config.exit_rule, 'None or fixed:N')}; {advice}")
    depth = config.exits[rule.k - 1]
    names = map_network_names(type(model), config)
    left_out = {f"model.layers.{layer}" for layer in range(depth, config.num_hidden_layers)}
    tied = set(model.all_tied_weights_keys or ())
    published = {
        names[name]: weight
        for name, weight in weights.items()
        if name not in tied and ".".join(names[name].split(".")[:3]) not in left_out
    }
    network = copy.deepcopy(config.base_config)
    network.num_hidden_layers = depth
    for name in _LISTS:
        if getattr(network, name, None) is not None:
            setattr(network, name, getattr(network, name)[:depth])
    return LayoutFiles(describe_decoder(network, config), published)
