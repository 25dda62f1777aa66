"""Looped models of the layers of any decoder of transformers: some before the loop, some in it, some after it.

Of L layers the first P are the prelude, the last Q the coda, and the C right before these the core; those between
prelude and core are dropped (McLeish et al. 2025, arXiv 2511.07384). Layers, norm, embedding and rotary positions are
the library's own, which is why a layer between which a decoder computes something more cannot be taken: the result is
compared with the decoder of the same layers before it is returned.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from adadepth.errors import CheckpointError, ConfigError
from adadepth.families.folder import is_weightless, read_config
from adadepth.families.loading import allow_new_weights
from adadepth.families.looped.configuration import LoopedConfig
from adadepth.families.looped.family import LoopedSettings
from adadepth.families.looped.heads import LoopedForCausalLM
from adadepth.settings.declaration import declared
from adadepth.system.places import first_line

_TOLERANCE = 1e-4  # of logits, relative to the largest: the products of a whole model in float32, in another order
_PROBE = 8  # tokens of the comparison


def kept_layers(layers: int, prelude: int, core: int, coda: int) -> list[int]:
    """The numbers of the layers of a decoder that are kept.

    Raises:
        ConfigError: If it has fewer.
    """
    if (asked := prelude + core + coda) > layers:
        raise ConfigError(f"prelude={prelude}, core={core}, coda={coda}: {asked} layers, the decoder has {layers}")
    return [*range(prelude), *range(layers - coda - core, layers)]


def reduced_config(source: PreTrainedConfig, kept: list[int]) -> PreTrainedConfig:
    """A decoder's configuration, of some of its layers."""
    config = copy.deepcopy(source.get_text_config())
    kinds = getattr(config, "layer_types", None)
    config.num_hidden_layers = len(kept)
    if kinds is not None:
        config.layer_types = [kinds[number] for number in kept]
    return config


def retrofit(
    source: str | PreTrainedModel, *, prelude: int, core: int, coda: int, model_class: Any = None, **fields: Any
) -> Any:
    """A looped model with the weights of a pretrained decoder.

    Args:
        source: A causal language model of transformers, or a folder or hub id of one. It is left as it is.
        prelude: P.
        core: C.
        coda: Q.
        model_class: `LoopedForCausalLM` if None; heads that the decoder does not have are new.
        **fields: Of `LoopedConfig`: `num_loops`, `injection`, ...

    Raises:
        ConfigError: If the decoder has fewer layers, or other parts.
        CheckpointError: If its layers, one after the other, are not all that it computes.
    """
    decoder: Any = _decoder(source) if isinstance(source, str) else source
    kept = kept_layers(decoder.config.get_text_config().num_hidden_layers, prelude, core, coda)
    base = reduced_config(decoder.config, kept)
    special = {name: getattr(decoder.config, name, None) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    config = LoopedConfig(
        **{**special, "prelude": prelude, "core": core, "coda": coda, "base_config": base.to_dict(), **fields}
    )
    if is_weightless():
        attention = decoder.config._attn_implementation
        return (model_class or LoopedForCausalLM)._from_config(config, attn_implementation=attention)
    weights = retrofitted_weights(decoder, kept, prelude, core)
    with allow_new_weights():
        looped = (model_class or LoopedForCausalLM).from_pretrained(
            None,
            config=config,
            state_dict=weights,
            dtype=decoder.dtype,
            attn_implementation=decoder.config._attn_implementation,
        )
    looped.train(decoder.training)
    _compare(decoder, base, kept, looped)
    return looped


def _decoder(source: str) -> Any:
    if is_weightless():
        return AutoModelForCausalLM.from_config(read_config("model.pretrained", source))
    return AutoModelForCausalLM.from_pretrained(source)


def adopted(
    model_class: Any,
    settings: LoopedSettings,
    source: PreTrainedConfig,
    vocab_size: int | None,
    fields: Mapping[str, Any],
) -> PreTrainedModel:
    """The looped model that settings make of `model.pretrained`, a decoder of transformers.

    Args:
        model_class: The head.
        settings: The `model` group.
        source: The decoder's configuration.
        vocab_size: Size of the tokenizer.
        fields: What the data decide.

    Raises:
        ConfigError: If a setting says otherwise than the decoder, or its layers leave a setting no place.
        CheckpointError: See `retrofit`.
    """
    text, chosen = source.get_text_config(), {}
    for name, value in _given(settings).items():
        if name in _OF_THE_LAYERS:
            raise ConfigError(f"model.{name}={value}: the layers are those of model.pretrained={settings.pretrained}")
        if name in _OF_THE_DECODER and getattr(text, name, None) != value:
            raise ConfigError(
                f"model.pretrained={settings.pretrained}: model.{name}={value} but {getattr(text, name, None)} there"
            )
        chosen[name] = value
    if vocab_size is not None and vocab_size > text.vocab_size:
        raise ConfigError(
            f"model.pretrained={settings.pretrained}: it has {text.vocab_size} pieces, the tokenizer {vocab_size}"
        )
    parts = {name: getattr(settings, name) for name in ("prelude", "core", "coda")}
    named = {name: value for name, value in chosen.items() if name not in _OF_THE_DECODER}
    looped: PreTrainedModel = retrofit(
        str(settings.pretrained), model_class=model_class, **{**named, **parts, **fields}
    )
    if settings.attn_implementation is not None:
        looped.set_attn_implementation(str(settings.attn_implementation))
    return looped


_OF_THE_DECODER = (
    "vocab_size",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
)
_OF_THE_LAYERS = (
    "hidden_act",
    "norms",
    "queries",
    "max_position_embeddings",
    "rope_theta",
    "rope_pairs",
    "qk_bias",
    "tie_word_embeddings",
    "rms_norm_eps",
)


def _given(settings: LoopedSettings) -> dict[str, Any]:
    """The settings of a model that are not at their default."""
    default = LoopedSettings()
    values = {name: getattr(settings, name) for name, about in declared(type(settings)).items() if about.in_model}
    return {name: getattr(value, "value", value) for name, value in values.items() if value != getattr(default, name)}


def retrofitted_weights(decoder: Any, kept: list[int], prelude: int, core: int) -> dict[str, Tensor]:
    """A decoder's weights by the names of a looped model."""
    ends = {"prelude": range(prelude), "core": range(prelude, prelude + core), "coda": range(prelude + core, len(kept))}
    places = {
        source: f"{part}.{number - numbers.start}"
        for part, numbers in ends.items()
        for number, source in enumerate(kept)
        if number in numbers
    }
    prefix, found = f"{decoder.base_model_prefix}.", {}
    for name, weight in decoder.state_dict().items():
        own = name.removeprefix(prefix)
        head, _, rest = own.removeprefix("layers.").partition(".")
        if own == name:
            found[name] = weight
        elif not own.startswith("layers."):
            found[f"model.{own}"] = weight
        elif int(head) in places:
            found[f"model.{places[int(head)]}.{rest}"] = weight
    return found


@torch.no_grad()
def _compare(decoder: Any, base: PreTrainedConfig, kept: list[int], looped: Any) -> None:
    """Refuse a decoder of which one loop through the kept layers is not what it computes with these layers alone."""
    inner, model = decoder.base_model, looped.model
    layers, config = inner.layers, inner.config
    ids = torch.arange(_PROBE, device=decoder.device).unsqueeze(0) % config.vocab_size
    try:
        inner.layers, inner.config = nn.ModuleList(layers[number] for number in kept), base
        base._attn_implementation = config._attn_implementation
        expected = inner(input_ids=ids, use_cache=False).last_hidden_state.float()
    finally:
        inner.layers, inner.config = layers, config
    try:
        run = model.begin(ids)
        states = model.core(run.embedded, None, run, len(model.prelude), 0)
        if len(model.coda):
            states = model.coda(states, None, run, len(model.prelude) + len(model.core), 0)
        found = model.norm(states).float()
    except (TypeError, KeyError, RuntimeError) as error:
        raise CheckpointError(
            f"model.pretrained={decoder.name_or_path}: layers of {config.model_type} cannot be called by themselves "
            f"({first_line(error)})"
        ) from error
    worst = float((found - expected).abs().max() / expected.abs().max())
    if not worst <= _TOLERANCE * (1 if decoder.dtype == torch.float32 else 100):
        raise CheckpointError(
            f"model.pretrained={decoder.name_or_path}: {config.model_type} computes more than its layers one after the "
            f"other: one loop differs by {worst:.2g} of the largest value"
        )
