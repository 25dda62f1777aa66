"""Early exits that are stored without the frozen network on which they were trained, as those of EE-Tuning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from adadepth.errors import CheckpointError, ConfigError
from adadepth.models.early_exit.configuration import EarlyExitConfig
from adadepth.models.folder import convert_loading_errors, read_config
from adadepth.models.loading import describe_place, take_config_fields
from adadepth.models.shared.network_loading import load_stock_model, rename_weights
from adadepth.models.shared.published_files import find_folder, load_stored_weights, read_generation_config
from adadepth.models.shared.weights_digest import weights_digest

_NETWORK = ("model.", "head.")  # prefixes of the weights of a network and of its head


def list_network_weights(weights: Mapping[str, Tensor]) -> set[str]:
    """Return the names of the weights of an early-exit model that belong to its network and to the last exit."""
    return {name for name in weights if name.startswith(_NETWORK)}


def hash_network(weights: Mapping[str, Tensor]) -> str:
    """Return the digest of the network and of the last exit among the weights of an early-exit model, in float32."""
    return weights_digest(weights[name].float() for name in list_network_weights(weights))


def require_base(config: EarlyExitConfig, weights: Mapping[str, Tensor]) -> None:
    """Raise an error unless the network of an early-exit model is stored elsewhere with the same weights.

    Args:
        config: Configuration of the model.
        weights: All weights of the model.

    Raises:
        ConfigError: If the exits were not trained on a frozen network, or its weights have changed.
    """
    if config.base_hash is None:
        raise ConfigError(
            "save_base=False: these exits have no frozen network in another folder; build the model with "
            "add_exits(..., trains='exits')"
        )
    if hash_network(weights) != config.base_hash:
        base = config.base_config.name_or_path
        raise ConfigError(f"save_base=False: the weights of the network are no longer those of {base}")


def read_with_base(
    model_class: Any, path: Any, stored: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Read exits from a folder, and their network from the folder or hub id of their configuration.

    Args:
        model_class: Class of the model.
        path: Folder or hub id of the exits.
        stored: Stored configuration.
        options: Arguments of `from_pretrained`. `base_model` is the present folder or hub id of the network.

    Returns:
        Options with `config` and `state_dict`.

    Raises:
        CheckpointError: If the exits are those of another head, there is no such network, or its weights are not those
            on which the exits were trained.
    """
    origin, more = describe_place(path), dict(options)
    if stored["architectures"] != [model_class.__name__]:
        raise CheckpointError(f"{origin}: contains exits of {stored['architectures'][0]}, not {model_class.__name__}")
    moved_to, config = more.pop("base_model", None), more.get("config")
    if not isinstance(config, EarlyExitConfig):
        config = EarlyExitConfig.from_dict(dict(stored))
        more = take_config_fields(config, more)
    if moved_to is not None:
        config.base_config.name_or_path = str(moved_to)
    base = str(config.base_config.name_or_path)
    try:
        read_config("base_model", base)
        with convert_loading_errors("base_model", base):
            stock, _ = load_stock_model(model_class, config, base)
    except CheckpointError as error:
        advice = f"{origin} has exits alone; name their network with base_model= or model.pretrained="
        raise CheckpointError(f"{error}; {advice}") from error
    network = rename_weights(stock)
    if (digest := hash_network(network)) != stored["base_hash"]:
        raise CheckpointError(
            f"base_model={base}: its weights differ from those on which {path} was trained ({digest[:12]} instead of "
            f"{str(stored['base_hash'])[:12]})"
        )
    if more.get("generation_config") is None:
        more["generation_config"] = read_generation_config(path, options)
    return more | {"config": config, "state_dict": network | load_stored_weights(find_folder(path, options))}
