"""Retrofitting: looped models built from the layers of a pretrained transformers decoder.

The first P of the decoder's layers become the prelude, and the last Q become the coda. The C layers before the coda
become the core. Layers between prelude and core are dropped (McLeish et al. 2025, arXiv 2511.07384). With
`loop_lora_rank`, the core stands for N C layers before the coda; see `adadepth.models.looped.loop_adapters`. Layers,
norm, embedding and rotary positions are modules of transformers. A decoder that computes something between its layers
cannot be looped. The states and logits of the looped model are therefore compared with those of a decoder of the same
layers before it is returned.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from adadepth.config.declaration import get_field_specs
from adadepth.errors import CheckpointError, ConfigError
from adadepth.models.folder import is_weightless, read_config
from adadepth.models.loading import allow_new_weights
from adadepth.models.looped.configuration import LoopedConfig
from adadepth.models.looped.heads import LoopedForCausalLM
from adadepth.models.looped.loop_adapters import average_layers, check_kinds, decompose_layers
from adadepth.models.looped.settings import LoopedSettings
from adadepth.runtime.hub_access import get_first_line

_TOLERANCE = 1e-4  # of logits, relative to the largest: the products of a whole model in float32, in another order
_COMPARED = 8  # tokens of the comparison


def select_layers(layers: int, prelude: int, core: int, coda: int, loops: int = 1) -> list[int]:
    """Return the indices of a decoder's layers that become prelude, core and coda of a looped model.

    Args:
        layers: Number of layers of the decoder.
        prelude: Number of prelude layers.
        core: Number of core layers.
        coda: Number of coda layers.
        loops: Number of loops whose layers the core stands for.

    Raises:
        ConfigError: If the decoder has fewer layers.
    """
    if (needed := prelude + core * loops + coda) > layers:
        repeated = f", num_loops={loops} with loop_lora_rank" if loops > 1 else ""
        parts = f"prelude={prelude}, core={core}, coda={coda}{repeated}"
        raise ConfigError(f"{parts}: {needed} layers, but the decoder has {layers}")
    return [*range(prelude), *range(layers - coda - core * loops, layers)]


def _reduce_config(source: PreTrainedConfig, numbers: list[int]) -> PreTrainedConfig:
    """Return a decoder's configuration reduced to the given layers."""
    config = copy.deepcopy(source.get_text_config())
    kinds = getattr(config, "layer_types", None)
    config.num_hidden_layers = len(numbers)
    if kinds is not None:
        config.layer_types = [kinds[number] for number in numbers]
    return config


def retrofit(
    source: str | PreTrainedModel, *, prelude: int, core: int, coda: int, model_class: Any = None, **fields: Any
) -> Any:
    """Build a looped model from the layers and weights of a pretrained decoder.

    Args:
        source: Causal language model of transformers, or the folder or hub id of one. The model is not changed, and
            the result has its dtype. A folder is read in float32, whatever it stores.
        prelude: Number P of prelude layers.
        core: Number C of core layers.
        coda: Number Q of coda layers.
        model_class: Class of the result, or None for `LoopedForCausalLM`. A head that the decoder does not have is
            newly initialised.
        **fields: Fields of `LoopedConfig`, e.g. `num_loops` or `injection`.

    Raises:
        ConfigError: If the decoder has too few layers, or does not have the expected parts.
        CheckpointError: If the decoder computes anything else than its layers in sequence.
    """
    decoder: Any = _load_decoder(source) if isinstance(source, str) else source
    loops = fields.get("num_loops", LoopedConfig.num_loops) if fields.get("loop_lora_rank") else 1
    text = decoder.config.get_text_config()
    if not hasattr(decoder.base_model, "layers"):
        raise ConfigError(f"base_config: a {text.model_type} has no layers, so they cannot be looped")
    numbers = select_layers(text.num_hidden_layers, prelude, core, coda, loops)
    looped_numbers = numbers[prelude : prelude + core * loops]
    kinds = getattr(text, "layer_types", None)
    check_kinds(kinds and [kinds[number] for number in looped_numbers], core)
    base = _reduce_config(decoder.config, [*numbers[: prelude + core], *numbers[len(numbers) - coda :]])
    special = {name: getattr(decoder.config, name, None) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    parts = {"prelude": prelude, "core": core, "coda": coda, "base_config": base.to_dict()}
    config = LoopedConfig(**{**special, **parts, **_list_factors(base), **fields})
    head, attention = model_class or LoopedForCausalLM, decoder.config._attn_implementation
    if is_weightless():
        return head._from_config(config, dtype=decoder.dtype, attn_implementation=attention)
    layers = [decoder.base_model.layers[number] for number in numbers]
    core_layers = layers[prelude : prelude + core * loops]
    layers[prelude : prelude + core * loops] = average_layers(core_layers, loops) if loops > 1 else core_layers
    weights = _rename_weights(decoder, layers, prelude, core)
    with allow_new_weights():
        looped = head.from_pretrained(
            None, config=config, state_dict=weights, dtype=decoder.dtype, attn_implementation=attention
        )
    looped.train(decoder.training)
    _compare(decoder, base, layers, looped)
    if looped.config.loop_lora_rank is not None:
        decompose_layers(looped.model.core, core_layers)
    return looped


def _list_factors(base: PreTrainedConfig) -> dict[str, float]:
    """Return the factors of embeddings and logits of a decoder, outside of its layers."""
    factors = {"embedding_scale": getattr(base, "embedding_multiplier", 1.0)}  # Granite
    factors["logit_factor"] = getattr(base, "logit_scale", 1.0) / getattr(
        base, "logits_scaling", 1.0
    )  # Cohere, Granite
    return {name: float(factor) for name, factor in factors.items() if factor != 1.0}


def _load_decoder(source: str) -> Any:
    if is_weightless():
        return AutoModelForCausalLM.from_config(read_config("model.pretrained", source), dtype=torch.float32)
    return AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)


def build_from_decoder(
    model_class: Any,
    settings: LoopedSettings,
    source: PreTrainedConfig,
    vocab_size: int | None,
    fields: Mapping[str, Any],
) -> PreTrainedModel:
    """Build a looped model from the pretrained decoder `model.pretrained`, with the configured prelude, core and coda.

    Args:
        model_class: Class of the model with the head.
        settings: Group `model`.
        source: Configuration of the decoder.
        vocab_size: Size of the tokenizer.
        fields: Fields of the configuration that the data determine.

    Raises:
        ConfigError: If a setting contradicts the decoder, or does not apply to its layers.
        CheckpointError: If the decoder cannot be looped; see `retrofit`.
    """
    text, changed = source.get_text_config(), _find_changed(settings)
    for name, value in changed.items():
        if name in _LAYER_SETTINGS:
            raise ConfigError(
                f"model.{name}={value}: not supported, because model.pretrained={settings.pretrained} provides the "
                "layers"
            )
        if name in _DECODER_SIZES and getattr(text, name, None) != value:
            raise ConfigError(
                f"model.pretrained={settings.pretrained}: model.{name}={value}, but the pretrained model "
                f"has {getattr(text, name, None)}"
            )
    if vocab_size is not None and vocab_size > text.vocab_size:
        raise ConfigError(
            f"model.pretrained={settings.pretrained}: it has {text.vocab_size} tokens, the tokenizer {vocab_size}"
        )
    parts = {name: getattr(settings, name) for name in ("prelude", "core", "coda")}
    loop_fields = {name: value for name, value in changed.items() if name not in _DECODER_SIZES}
    looped: PreTrainedModel = retrofit(
        str(settings.pretrained), model_class=model_class, **{**loop_fields, **parts, **fields}
    )
    if settings.attn_implementation is not None:
        looped.set_attn_implementation(str(settings.attn_implementation))
    return looped


_DECODER_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
)
_LAYER_SETTINGS = (
    "low_layers",
    "hidden_act",
    "attention_gate",
    "norm_weights",
    "norms",
    "queries",
    "max_position_embeddings",
    "sliding_window",
    "rope_theta",
    "rope_pairs",
    "qk_bias",
    "tie_word_embeddings",
    "rms_norm_eps",
)


def _find_changed(settings: LoopedSettings) -> dict[str, Any]:
    """Return the model settings that differ from their defaults."""
    default = LoopedSettings()
    values = {
        name: getattr(settings, name) for name, setting in get_field_specs(type(settings)).items() if setting.in_model
    }
    return {name: getattr(value, "value", value) for name, value in values.items() if value != getattr(default, name)}


def _rename_weights(decoder: Any, layers: list[nn.Module], prelude: int, core: int) -> dict[str, Tensor]:
    """Return a decoder's weights with the given layers instead of its own, renamed as in a looped model."""
    names = [f"prelude.{number}" for number in range(prelude)] + [f"core.{number}" for number in range(core)]
    names += [f"coda.{number}" for number in range(len(layers) - len(names))]
    prefix, weights = f"{decoder.base_model_prefix}.", {}
    for name, weight in decoder.state_dict().items():
        inner = name.removeprefix(prefix)
        if inner == name:
            weights[name] = weight
        elif not inner.startswith("layers."):
            weights[f"model.{inner}"] = weight
    for layer_name, layer in zip(names, layers, strict=True):
        weights |= {f"model.{layer_name}.{name}": weight for name, weight in layer.state_dict().items()}
    return weights


@torch.no_grad()
def _compare(decoder: Any, base: PreTrainedConfig, compared: list[nn.Module], looped: Any) -> None:
    """Raise an error if one loop of the looped model does not reproduce the decoder with these layers."""
    inner, model = decoder.base_model, looped.model
    layers, config = inner.layers, inner.config
    ids = torch.arange(_COMPARED, device=decoder.device).unsqueeze(0) % config.vocab_size
    try:
        inner.layers, inner.config = nn.ModuleList(compared), base
        base._attn_implementation = config._attn_implementation
        expected = {"one loop": inner(input_ids=ids, use_cache=False).last_hidden_state}
        if hasattr(looped, "lm_head"):
            expected["the head"] = decoder(input_ids=ids, use_cache=False).logits
    finally:
        inner.layers, inner.config = layers, config
    try:
        run = model.begin(ids)
        states = model.core(run.embedded, None, run, len(model.prelude), 0)
        if len(model.coda):
            states = model.coda(states, None, run, len(model.prelude) + len(model.core), 0)
        results = [model.norm(states)]
    except (TypeError, KeyError, RuntimeError) as error:
        raise CheckpointError(
            f"model.pretrained={decoder.name_or_path}: the layers of {config.model_type} cannot be called one by one "
            f"({get_first_line(error)})"
        ) from error
    if len(expected) == 2:
        results.append(looped.lm_head(results[0]))
    for (part, target), result in zip(expected.items(), results, strict=True):
        worst = float((result.float() - target.float()).abs().max() / target.float().abs().max())
        if not worst <= _TOLERANCE * (1 if decoder.dtype == torch.float32 else 100):
            raise CheckpointError(
                f"model.pretrained={decoder.name_or_path}: {config.model_type} computes more than its layers in "
                f"sequence and its head: {part} differs by {worst:.2g} of the largest value"
            )
