"""Early-exit models of pretrained networks of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from adadepth.errors import CheckpointError, ConfigError
from adadepth.models.early_exit.base_weights import hash_network
from adadepth.models.early_exit.causal_lm import EarlyExitForCausalLM
from adadepth.models.early_exit.configuration import EarlyExitConfig
from adadepth.models.early_exit.modeling import EarlyExitModel
from adadepth.models.early_exit.settings import EarlyExitSettings
from adadepth.models.folder import read_config
from adadepth.models.shared.network_loading import build_adopted_config, list_chosen_fields, load_adopted_model
from adadepth.runtime.hub_access import resolve_path

_TOLERANCE = 1e-4  # of logits, relative to the largest
_COMPARED = 8  # tokens of the comparison


def add_exits(source: str, *, model_class: type[EarlyExitModel] = EarlyExitForCausalLM, **settings: Any) -> Any:
    """Build an early-exit model with the weights of a pretrained network of transformers, such as LayerSkip's.

    Args:
        source: Folder, hub id or `package:NAME/FOLDER` of the network.
        model_class: Class of the result.
        **settings: Fields of `EarlyExitSettings`, e.g. `exit_layers`. By default there is an exit after every layer,
            with the final norm and head of the network.

    Raises:
        ConfigError: If a setting contradicts the network.
        CheckpointError: If weights of the network are missing, or its layers are not all that it computes.
    """
    path = resolve_path("model.pretrained", source)
    chosen, network = EarlyExitSettings(pretrained=path, **settings), read_config("model.pretrained", path)
    answers = {name: value for name in ("id2label", "problem_type") if (value := getattr(network, name, None))}
    return build_from_base(model_class, chosen, network, None, answers)


def build_from_base(
    model_class: type[EarlyExitModel],
    settings: EarlyExitSettings,
    source: PreTrainedConfig,
    vocab_size: int | None,
    fields: Mapping[str, Any],
) -> PreTrainedModel:
    """Make an early-exit model of `model.pretrained`, a network of transformers, by the settings.

    Its head is the network's own if it has one of this kind and these sizes, else a new one. Early exits begin as the
    last one.

    Args:
        model_class: The head.
        settings: The `model` group.
        source: Configuration of the network.
        vocab_size: Size of the tokenizer.
        fields: Fields of the configuration that the data decide.

    Raises:
        ConfigError: If a setting contradicts the network, or the tokenizer has more pieces.
        CheckpointError: If weights of the network are missing, or its layers are not all that it computes.
    """
    path, chosen = str(settings.pretrained), list_chosen_fields(settings)
    save_base = chosen.pop("save_base")
    config = build_adopted_config(EarlyExitConfig, path, chosen, source, vocab_size, fields)
    ids = torch.arange(_COMPARED).unsqueeze(0) % config.vocab_size
    model, expected, new = load_adopted_model(model_class, config, path, settings.attn_implementation, ids)
    if expected is None:
        return model
    if not save_base and new:
        raise ConfigError(f"model.save_base=false: {path} does not have {min(new)!r}, which the model needs")
    if config.trains == "exits" and not new:
        model.config.base_hash = hash_network(model.state_dict())
    model.reference_base(not save_base)
    model.copy_last_exit()
    pooling, model.config.pooling = model.config.pooling, "first"  # which transformers' classifiers of encoders read
    with torch.no_grad():
        logits = model.eval()(ids, exit_rule=f"fixed:{model.max_updates}").logits
    model.config.pooling = pooling
    worst = float((logits - expected).abs().max() / expected.abs().max())
    if not worst <= _TOLERANCE:
        raise CheckpointError(
            f"model.pretrained={path}: {config.base} computes more than its layers one after the other: the last exit "
            f"differs by {worst:.2g} of the largest value"
        )
    return model
