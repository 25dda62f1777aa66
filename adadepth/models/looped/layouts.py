"""Writing of looped language models as Ouro, Huginn, HRM-Text, Nanbeige, retrofits and plain decoders are published.

This is the inverse of `convert`. The written configuration is converted back, and a setting that then has another value
is refused, unless it only concerns training.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedConfig

from adadepth.config.declaration import get_field_specs
from adadepth.errors import ConfigError
from adadepth.halting.exit_by_signal import Quantile
from adadepth.halting.exit_decisions import ExitRule
from adadepth.halting.exit_rules import Fixed
from adadepth.models.looped.configuration import LoopedConfig
from adadepth.models.looped.convert import NORM_NAMES, convert_config, convert_raven
from adadepth.models.looped.layers import rotation_tables
from adadepth.models.looped.settings import LoopedSettings
from adadepth.models.registry import join_alternatives
from adadepth.models.shared.layouts import describe_decoder, differs, refuse_setting
from adadepth.models.shared.published_files import TOKEN_FIELDS, LayoutFiles

# Python files of the published models, which transformers and others run on request.
_OURO_CODE = {
    "AutoConfig": "ByteDance/Ouro-1.4B--configuration_ouro.OuroConfig",
    "AutoModel": "ByteDance/Ouro-1.4B--modeling_ouro.OuroModel",
    "AutoModelForCausalLM": "ByteDance/Ouro-1.4B--modeling_ouro.OuroForCausalLM",
}
_HUGINN_CODE = {
    "AutoConfig": "tomg-group-umd/huginn-0125--raven_config_minimal.RavenConfig",
    "AutoModelForCausalLM": "tomg-group-umd/huginn-0125--raven_modeling_minimal.RavenForCausalLM",
}
_NANBEIGE_CODE = {
    "AutoConfig": "Nanbeige/Nanbeige4.2-3B--configuration_nanbeige.NanbeigeConfig",
    "AutoModel": "Nanbeige/Nanbeige4.2-3B--modeling_nanbeige.NanbeigeModel",
    "AutoModelForCausalLM": "Nanbeige/Nanbeige4.2-3B--modeling_nanbeige.NanbeigeForCausalLM",
}
_TRAINING = frozenset({
    "objective", "geometric_share", "geometric_truncation", "entropy_weight", "gate_loss", "gate_pairing", "gate_gain",
    "train_loops", "loop_spread", "loop_curriculum", "curriculum_share", "backprop_loops", "low_backprop",
    "initializer", "initializer_range",
})  # fmt: skip
_RANDOM_START = frozenset({"start_std", "draw_seed"})
# Settings of our own layers, unused where layers are those of transformers.
_LAYER_SETTINGS = frozenset({
    "hidden_act", "norms", "max_position_embeddings", "rope_theta", "rope_pairs", "qk_bias", "rms_norm_eps",
})  # fmt: skip
_BASE_FIELDS = (
    "hidden_act", "hidden_activation", "rms_norm_eps", "rope_parameters", "attention_bias", "mlp_bias", "head_dim",
    "sliding_window", "layer_types", "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar",
    "max_position_embeddings", "tie_word_embeddings", "num_key_value_heads", "clip_qkv", "partial_rotary_factor",
)  # fmt: skip
_DECODER_FIELDS = (  # of our own layers, which a plain decoder may have in any size
    "vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
    "hidden_act", "max_position_embeddings", "rope_theta", "tie_word_embeddings", "rms_norm_eps",
)  # fmt: skip
_OURO_NAMES = (
    (r"\.core\.", ".layers."),
    (r"\.attention_post_norm\.", ".input_layernorm_2."),
    (r"\.attention_norm\.", ".input_layernorm."),
    (r"\.mlp_post_norm\.", ".post_attention_layernorm_2."),
    (r"\.mlp_norm\.", ".post_attention_layernorm."),
    (r"^model\.gate\.", "model.early_exit_gate."),
)
_RAVEN_NAMES = (
    (r"^model\.embed_tokens\.", "transformer.wte."),
    (r"^model\.core\.", "transformer.core_block."),
    (r"^model\.norm\.", "transformer.ln_f."),
    (r"^model\.", "transformer."),
    (r"\.self_attn\.o_proj\.", ".attn.proj."),
    (r"\.self_attn\.([qk])_norm\.", r".attn.\1_norm."),
    (r"\.mlp\.down_proj\.", ".mlp.proj."),
)
_HRM_TEXT_NAMES = (
    (r"^model\.low\.", "model.L_module.layers."),
    (r"^model\.core\.", "model.H_module.layers."),
    (r"^model\.low_start$", "model.z_L_init"),
    (r"\.self_attn\.o_proj\.", ".attn.o_proj."),
)
_LLAMA_NAMES = ((r"\.attention_norm\.", ".input_layernorm."), (r"\.mlp_norm\.", ".post_attention_layernorm."))
_NANBEIGE_NAMES = ((r"\.core\.", ".layers."), *_LLAMA_NAMES)


def to_ouro(model: Any, weights: Mapping[str, Tensor], layout: str) -> LayoutFiles:
    """Convert a looped language model to the layout of Ouro.

    An exit rule `quantile:q` becomes the exit threshold q, and `fixed:n` the exit step n - 1, which counts from 0.

    Raises:
        ConfigError: If a setting differs from those of Ouro.
    """
    config = model.config
    _refuse_network(config, layout)
    exit_fields = _describe_exit_rule(config.parsed_exit_rule)
    stored = {
        "model_type": "ouro",
        "architectures": ["OuroForCausalLM"],
        "auto_map": _OURO_CODE,
        **_copy_fields(
            config, "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "hidden_act",
            "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "initializer_range", "rope_theta",
            *TOKEN_FIELDS,
        ),
        "num_hidden_layers": config.core,
        "num_key_value_heads": config.key_value_heads,
        "head_dim": config.width_of_head,
        "total_ut_steps": config.num_loops,
        "layer_types": ["full_attention"] * config.core,
        "rope_scaling": None,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": config.core,
        "attention_dropout": 0.0,
        "use_cache": True,
        **exit_fields,
    }  # fmt: skip
    read = LoopedConfig(**convert_config(stored))
    if exit_fields:  # Ouro's threshold is a quantile with the choice at equality, which it does not store
        read.exit_rule = config.exit_rule
    _refuse_other_settings(layout, config, read, {"exit_rule": "None, quantile:Q or fixed:N"})
    return LayoutFiles(stored, _rename(_drop_tied(config, weights), _OURO_NAMES))


def to_huginn(model: Any, weights: Mapping[str, Tensor], layout: str) -> LayoutFiles:
    """Convert a looped language model to the layout of Huginn or, with layers of transformers, of retrofits.

    Raises:
        ConfigError: If a setting differs from those of Huginn and retrofits.
    """
    config, base = model.config, model.config.base_config
    decoder = None if base is None else base.model_type
    if decoder not in NORM_NAMES:
        kinds = join_alternatives(filter(None, NORM_NAMES))
        raise ConfigError(f"base_config: layers of {decoder}; layout={layout} needs those of {kinds}, or our own")
    if not config.norm_weights:
        raise refuse_setting(layout, "norm_weights", False, True)
    if not config.coda and base is None:
        raise refuse_setting(layout, "coda", 0, "1 or more")
    if config.qk_bias and config.key_value_heads != config.num_attention_heads:
        raise refuse_setting(layout, "num_key_value_heads", config.key_value_heads, config.num_attention_heads)
    if base is None and config.width_of_head * config.num_attention_heads != config.hidden_size:
        allowed = config.hidden_size // config.num_attention_heads
        raise refuse_setting(layout, "head_dim", config.width_of_head, allowed)
    # The code of retrofits differs with the decoder, so their configuration names none.
    special = {"auto_map": _HUGINN_CODE} if base is None else _describe_retrofit(config, base)
    stored = _describe_raven(config) | special
    norms = ((rf"\.{norm}\.", f".norm_{number}.") for number, norm in enumerate(NORM_NAMES[decoder], start=1))
    published = _rename(dict(_fuse(_drop_tied(config, weights), config)), (*norms, *_RAVEN_NAMES))
    without_tokens = {name: value for name, value in stored.items() if name not in TOKEN_FIELDS}
    read = LoopedConfig(**convert_raven(without_tokens, published, Path()))
    _refuse_other_settings(layout, config, read, {})
    if base is None:
        published["freqs_cis"] = _build_rotary_table(config)
    return LayoutFiles(stored, published)


def to_hrm_text(model: Any, weights: Mapping[str, Tensor], layout: str) -> LayoutFiles:
    """Convert a looped language model to the layout of HRM-Text, which transformers reads.

    Raises:
        ConfigError: If a setting differs from those of HRM-Text.
    """
    config = model.config
    _refuse_network(config, layout)
    if config.low_layers != config.core:
        raise refuse_setting(layout, "low_layers", config.low_layers, config.core)
    stored = {
        "model_type": "hrm_text",
        "architectures": ["HrmTextForCausalLM"],
        **_copy_fields(
            config, "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "hidden_act",
            "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "initializer_range", "prefix_lm",
            "num_hidden_layers", *TOKEN_FIELDS,
        ),
        "num_layers_per_stack": config.core,
        "head_dim": config.width_of_head,
        "H_cycles": config.num_loops,
        "L_cycles": config.low_cycles,
        "L_bp_cycles": config.low_backprop or [config.low_cycles] * config.num_loops,
        "embedding_scale": config.embedding_factor,
        "rope_parameters": {"rope_type": "default", "rope_theta": float(config.rope_theta)},
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "use_cache": True,
    }  # fmt: skip
    _refuse_other_settings(layout, config, LoopedConfig(**convert_config(stored)), {})
    return LayoutFiles(stored, _rename(dict(_join_matrices(_drop_tied(config, weights))), _HRM_TEXT_NAMES))


def to_nanbeige(model: Any, weights: Mapping[str, Tensor], layout: str) -> LayoutFiles:
    """Convert a looped language model to the layout of Nanbeige, a Llama whose layers run several times.

    Its programs run a stored number of loops. An exit rule `fixed:k` makes it k. This rule reads no halting unit, which
    is then left out.

    Raises:
        ConfigError: If a setting differs from those of Nanbeige.
    """
    config = model.config
    _refuse_network(config, layout)
    kind, _, number = str(config.exit_rule).partition(":")
    loops = int(number) if kind == "fixed" else config.num_loops
    rules = f"None or fixed:1 to fixed:{config.num_loops}"
    if loops > config.num_loops:
        raise refuse_setting(layout, "exit_rule", config.exit_rule, rules)
    stored = {
        "model_type": "nanbeige",
        "architectures": ["NanbeigeForCausalLM"],
        "auto_map": _NANBEIGE_CODE,
        **_copy_fields(
            config, "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "max_position_embeddings",
            "rms_norm_eps", "tie_word_embeddings", "initializer_range", "rope_theta", *TOKEN_FIELDS,
        ),
        "num_hidden_layers": config.core,
        "num_key_value_heads": config.key_value_heads,
        "head_dim": config.width_of_head,
        "hidden_act": "silu",
        "num_loops": loops,
        "skip_loop_final_norm": config.state_norm != "fed",
        "loop_loss_weights": [],
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "use_cache": True,
    }  # fmt: skip
    read = LoopedConfig(**convert_config(stored))
    if kind == "fixed":
        read.num_loops, read.exit_rule = config.num_loops, config.exit_rule
        read.gate, read.halting_unit = config.gate, config.halting_unit
    gates = "False, or exit_rule=fixed:N, which reads no gate"
    _refuse_other_settings(layout, config, read, {"exit_rule": rules, "gate": gates, "state_norm": "none or fed"})
    read_weights = {name: weight for name, weight in weights.items() if not name.startswith("model.gate.")}
    return LayoutFiles(stored, _rename(_drop_tied(config, read_weights), _NANBEIGE_NAMES))


def to_decoder(model: Any, weights: Mapping[str, Tensor], layout: str) -> LayoutFiles:
    """Convert a looped language model with one loop to a plain decoder of transformers.

    Layers of prelude, core and coda follow each other. Our own layers are those of Llama.

    Raises:
        ConfigError: If there are several loops, or a setting differs from those of the decoder.
    """
    config, base = model.config, model.config.base_config
    kind = "llama" if base is None else base.model_type
    if layout != kind:
        raise ConfigError(f"layout={layout}: its layers are those of {kind}; set layout={kind}")
    sizes = {name: getattr(config, name) for name in ("prelude", "core", "coda")}
    # A copy, because a configuration sets the attention of its `base_config`.
    layers = _copy_fields(config, *_DECODER_FIELDS) if base is None else {"base_config": copy.deepcopy(base)}
    allowed = LoopedConfig(**sizes, **layers, num_loops=1)
    if not config.coda:  # the only norm is that of the output
        allowed.state_norm = config.state_norm
    if config.damping is None:  # 1 / number of loops
        allowed.damping = None
    _refuse_other_settings(layout, config, allowed, {})
    network = _build_llama(config) if base is None else base
    firsts = {"prelude": 0, "core": config.prelude, "coda": config.prelude + config.core}

    def number(match: re.Match[str]) -> str:
        return f"model.layers.{firsts[match[1]] + int(match[2])}."

    numbered = {
        re.sub(r"^model\.(prelude|core|coda)\.(\d+)\.", number, name): weight
        for name, weight in _drop_tied(config, weights).items()
    }
    return LayoutFiles(describe_decoder(network, config), _rename(numbered, _LLAMA_NAMES))


def _describe_exit_rule(rule: ExitRule | None) -> dict[str, Any]:
    """Return the field of Ouro's configuration for an exit rule, none for rules that it does not have."""
    if isinstance(rule, Quantile):
        return {"early_exit_threshold": rule.q}
    return {"early_exit_step": rule.k - 1} if isinstance(rule, Fixed) else {}


def _describe_raven(config: LoopedConfig) -> dict[str, Any]:
    """Return the published configuration of a Huginn model with the sizes of a looped model."""
    deviation, depth = math.sqrt(2 / (5 * config.hidden_size)), config.num_hidden_layers
    return {
        "model_type": "huginn_raven",
        "architectures": ["RavenForCausalLM"],
        "architecture_class_name": "RecurrentGPT",
        "block_class_name": "SandwichBlock",
        "norm_class_name": "RMSNorm_llama",
        "mlp_class_name": "GatedMLP",
        "nonlin_name": "SiLU",
        "injection_type": "linear",
        "state_init": "like-init",
        "init_strategy": "takase",
        "init_orthogonal": False,
        "sampling_scheme": "poisson-lognormal-filling",
        "activation_checkpoint_impl": "per-iteration",
        "test_time_noise": 0,
        "test_time_noise_type": "fixed",
        "bias": False,
        "n_embd": config.hidden_size,
        "n_heads": config.num_attention_heads,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.key_value_heads,
        "head_dim": config.width_of_head,
        "intermediate_size": config.intermediate_size,
        "n_layers": config.layers,
        "n_layers_in_prelude": config.prelude,
        "n_layers_in_recurrent_block": config.core,
        "n_layers_in_coda": config.coda,
        "mean_recurrence": config.num_loops,
        "mean_backprop_depth": config.backprop_loops or config.num_loops,
        "effective_expected_depth": depth,
        "block_size": config.max_position_embeddings,
        "vocab_size": config.vocab_size,
        "padded_vocab_size": config.vocab_size,
        "norm_eps": config.rms_norm_eps,
        "rope_base": config.rope_theta,
        "qk_bias": config.qk_bias,
        "tie_embeddings": config.tie_word_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "init_values": {
            "std": deviation,
            "out_proj": deviation / math.sqrt(2 * depth),
            "embedding": deviation,
            "embed_scale": math.sqrt(config.hidden_size),
        },
        **_copy_fields(config, *TOKEN_FIELDS),
    }


def _describe_retrofit(config: LoopedConfig, base: PreTrainedConfig) -> dict[str, Any]:
    """Return the published fields of a retrofitted decoder that differ from those of Huginn."""
    positions: dict[str, Any] = dict(getattr(base, "rope_parameters", None) or {})
    theta, is_gemma = positions.pop("rope_theta", None), base.model_type == "gemma2"
    scale = math.sqrt(config.hidden_size) if is_gemma else 1.0
    gemma = ("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "layer_types")
    return {
        "norm_eps": getattr(base, "rms_norm_eps", None),
        "rope_theta": theta,
        "rope_scaling": None if positions.get("rope_type", "default") == "default" else positions,
        "max_position_embeddings": config.max_position_embeddings,
        "init_values": {"std": config.start_std / scale, "embed_scale": scale},
        **(_copy_fields(base, *gemma) if is_gemma else {}),
    }


def _build_llama(config: LoopedConfig) -> LlamaConfig:
    """Return the configuration of a Llama with the sizes of a looped model with our own layers."""
    return LlamaConfig(
        **_copy_fields(
            config, "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "hidden_act",
            "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "initializer_range",
        ),
        num_hidden_layers=config.layers,
        num_key_value_heads=config.key_value_heads,
        head_dim=config.width_of_head,
        rope_parameters={"rope_type": "default", "rope_theta": float(config.rope_theta)},
    )  # fmt: skip


def _refuse_network(config: LoopedConfig, layout: str) -> None:
    """Raise an error if the layers are those of transformers."""
    if config.base_config is not None:
        kind = config.base_config.model_type
        raise ConfigError(f"base_config: layers of {kind}; layout={layout} needs our own layers")


def _refuse_other_settings(layout: str, config: LoopedConfig, read: LoopedConfig, allowed: Mapping[str, str]) -> None:
    """Raise an error if a setting that changes predictions has another value in a configuration that was read back.

    Args:
        layout: Name of the layout.
        config: Configuration of the model.
        read: Configuration of a model that is read from the layout.
        allowed: Description of the values of a setting, if there are several.
    """
    ignored = _TRAINING | (frozenset() if config.start == "drawn" else _RANDOM_START)
    ignored |= frozenset() if config.base_config is None else _LAYER_SETTINGS
    properties = {
        "num_key_value_heads": "key_value_heads", "head_dim": "width_of_head", "embedding_scale": "embedding_factor",
    }  # fmt: skip
    names = [name for name, spec in get_field_specs(LoopedSettings).items() if spec.in_model and name not in ignored]
    for name in (*names, "logit_factor"):
        value, allowed_value = (getattr(settings, properties.get(name, name)) for settings in (config, read))
        if differs(value, allowed_value):
            raise refuse_setting(layout, name, value, allowed.get(name, allowed_value))
    for name in () if config.base_config is None else _BASE_FIELDS:
        value, allowed_value = (getattr(settings.base_config, name, None) for settings in (config, read))
        if differs(value, allowed_value):
            raise refuse_setting(layout, f"base_config.{name}", value, allowed_value)


def _copy_fields(config: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(config, name) for name in names}


def _drop_tied(config: LoopedConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights without the head's matrix if it is that of the embeddings."""
    tied = {"lm_head.weight"} if config.tie_word_embeddings else ()
    return {name: weight for name, weight in weights.items() if name not in tied}


def _rename(weights: Mapping[str, Tensor], names: tuple[tuple[str, str], ...]) -> dict[str, Tensor]:
    """Return weights renamed by regular expressions, which apply one after the other."""
    renamed = {}
    for ours, weight in weights.items():
        name = ours
        for pattern, published in names:
            name = re.sub(pattern, published, name)
        renamed[name] = weight
    return renamed


def _fuse(weights: Mapping[str, Tensor], config: LoopedConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield weights with queries, keys and values in one matrix, gate and up in one, and biases in one tensor.

    Biases of queries and keys have the shape (2, 1, h, d).
    """
    for name, weight in weights.items():
        layer, _, part = name.rpartition(".self_attn." if ".self_attn." in name else ".mlp.")
        if part == "q_proj.weight":
            matrices = [weights[f"{layer}.self_attn.{letter}_proj.weight"] for letter in "kv"]
            yield f"{layer}.attn.Wqkv.weight", torch.cat([weight, *matrices])
        elif part == "q_proj.bias":
            pair = torch.stack([weight, weights[f"{layer}.self_attn.k_proj.bias"]])
            yield f"{layer}.attn.qk_bias", pair.view(2, 1, config.num_attention_heads, -1)
        elif part == "gate_proj.weight":
            yield f"{layer}.mlp.fc.weight", torch.cat([weight, weights[f"{layer}.mlp.up_proj.weight"]])
        elif part not in ("k_proj.weight", "v_proj.weight", "k_proj.bias", "up_proj.weight"):
            yield name, weight


def _join_matrices(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield weights with gate, queries, keys and values of attention in one matrix, and gate and up in another."""
    for name, weight in weights.items():
        layer, _, part = name.rpartition(".self_attn." if ".self_attn." in name else ".mlp.")
        if name.endswith(".self_attn.gate_proj.weight"):
            matrices = [weights[f"{layer}.self_attn.{letter}_proj.weight"] for letter in "qkv"]
            yield f"{layer}.attn.gqkv_proj.weight", torch.cat([weight, *matrices])
        elif name.endswith(".mlp.gate_proj.weight"):
            yield f"{layer}.mlp.gate_up_proj.weight", torch.cat([weight, weights[f"{layer}.mlp.up_proj.weight"]])
        elif part not in ("q_proj.weight", "k_proj.weight", "v_proj.weight", "up_proj.weight"):
            yield name, weight


def _build_rotary_table(config: LoopedConfig) -> Tensor:
    """Return cosines and sines of all positions, which Huginn stores, float32 (1, T, 1, d / 2, 2)."""
    positions = torch.arange(config.max_position_embeddings).unsqueeze(0)
    return torch.stack(rotation_tables(config, positions, torch.float32), dim=-1).unsqueeze(2)
