"""Conversion of the published looped models Ouro and Huginn, without running their code.

Configurations and weight names are converted to those of this package. Huginn stores queries, keys and values in one
matrix, gate and up in another, and the biases of queries and keys in one tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import load_file
from torch import Tensor
from transformers import GenerationConfig
from transformers.utils import SAFE_WEIGHTS_NAME, WEIGHTS_NAME

from adadepth.errors import CheckpointError
from adadepth.models.loading import describe_place

# Options of `from_pretrained` by which the hub finds a model.
_HUB_OPTIONS = ("cache_dir", "revision", "token", "local_files_only", "force_download")
_SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_FILES = ("config.json", "*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json")
_SHARED_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
    "initializer_range",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "dtype",
    "torch_dtype",
    "architectures",
    "id2label",
    "label2id",
)
_OURO_NAMES = (
    (r"^(model\.)?layers\.", r"\1core."),
    (r"\.input_layernorm_2\.", ".attention_post_norm."),
    (r"\.input_layernorm\.", ".attention_norm."),
    (r"\.post_attention_layernorm_2\.", ".mlp_post_norm."),
    (r"\.post_attention_layernorm\.", ".mlp_norm."),
    (r"^(model\.)?early_exit_gate\.", r"\1gate."),
)
_HUGINN_NAMES = (
    (r"^transformer\.wte\.", "model.embed_tokens."),
    (r"^transformer\.core_block\.", "model.core."),
    (r"^transformer\.ln_f\.", "model.norm."),
    (r"^transformer\.", "model."),
    (r"\.norm_1\.", ".attention_norm."),
    (r"\.norm_2\.", ".attention_post_norm."),
    (r"\.norm_3\.", ".mlp_norm."),
    (r"\.norm_4\.", ".mlp_post_norm."),
    (r"\.attn\.proj\.", ".self_attn.o_proj."),
    (r"\.mlp\.proj\.", ".mlp.down_proj."),
)


def read_published_weights(path: Any, stored: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """Load the weights of a published looped model, renamed as in this package.

    Args:
        path: Folder or hub id.
        stored: Content of the configuration file.
        options: Arguments of `from_pretrained`.

    Raises:
        CheckpointError: If there are no weights, or they are those of a retrofitted model.
    """
    hub_options = {name: options[name] for name in _HUB_OPTIONS if name in options}
    folder = Path(path)
    if not folder.is_dir():
        folder = Path(snapshot_download(str(path), allow_patterns=list(_FILES), **hub_options))
    weights = _load_weights(folder / (options.get("subfolder") or ""))
    if stored["model_type"] == "huginn_raven" and not any(".norm_3." in name for name in weights):
        raise CheckpointError(
            f"{describe_place(path)}: model_type=huginn_raven without norm_3 is a retrofit (arXiv 2511.07384), a "
            "pretrained decoder with looped layers, and cannot be loaded; load an original Huginn model, or loop "
            "a decoder of transformers with adadepth.retrofit"
        )
    return dict(rename_weights(stored["model_type"], weights, stored))


def read_generation_config(path: Any, options: Mapping[str, Any]) -> GenerationConfig | None:
    """Load the generation configuration of a published model's folder, or return None if it has none.

    transformers refuses to save a model with contradictory generation settings. In that case, only the special tokens
    are kept.
    """
    hub_options = {name: options[name] for name in (*_HUB_OPTIONS, "subfolder") if name in options}
    try:
        stored = GenerationConfig.from_pretrained(path, **hub_options)
    except OSError:
        return None
    try:
        stored.validate(strict=True)
    except ValueError:
        return GenerationConfig(**{name: getattr(stored, name) for name in _SPECIAL_TOKENS})
    return stored


def convert_config(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the configuration of a published looped model to the fields of `LoopedConfig`.

    Raises:
        CheckpointError: If a value differs from those of all published models.
    """
    return PUBLISHED_MODELS[stored["model_type"]](stored)


def rename_weights(kind: str, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of a published looped model, renamed as in this package.

    Args:
        kind: Published model type, `ouro` or `huginn_raven`.
        weights: Weights by their published names.
        config: Published configuration.
    """
    names = _OURO_NAMES if kind == "ouro" else _HUGINN_NAMES
    for published, weight in weights.items():
        name = published
        for pattern, ours in names:
            name = re.sub(pattern, ours, name)
        if name.endswith(".attn.Wqkv.weight"):
            heads = _get_first(config, "num_attention_heads", "n_heads")
            shared = config.get("num_key_value_heads", heads)
            head = weight.shape[1] // heads
            parts = weight.split([heads * head, shared * head, shared * head])
            for letter, part in zip("qkv", parts, strict=True):
                yield name.replace(".attn.Wqkv.", f".self_attn.{letter}_proj."), part.contiguous()
        elif name.endswith(".attn.qk_bias"):
            for letter, part in zip("qk", weight, strict=True):
                yield name.replace(".attn.qk_bias", f".self_attn.{letter}_proj.bias"), part.flatten()
        elif name.endswith(".mlp.fc.weight"):
            for part, half in zip(("gate", "up"), weight.chunk(2), strict=True):
                yield name.replace(".mlp.fc.", f".mlp.{part}_proj."), half.contiguous()
        elif published != "freqs_cis":  # the rotary table, which follows from the configuration
            yield name, weight


def _convert_ouro(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the configuration of an Ouro model.

    All layers form the core, the normed state is fed back, and the exit threshold becomes a quantile.
    """
    _check_value(stored, "rope_scaling", None)
    _check_value(stored, "use_sliding_window", False)
    _check_value(stored, "attention_dropout", 0)
    rope = stored.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default":
        raise CheckpointError(f"rope_parameters={rope}: only the default positions of Ouro are supported")
    if other := set(stored.get("layer_types") or ()) - {"full_attention"}:
        raise CheckpointError(f"layer_types has {other.pop()!r}: Ouro models have full attention only")
    threshold, step = stored.get("early_exit_threshold"), stored.get("early_exit_step")
    rule = None if threshold is None else f"quantile:{threshold!r}"
    return {
        **{name: stored[name] for name in _SHARED_FIELDS if name in stored},
        "core": stored["num_hidden_layers"],
        "num_loops": stored["total_ut_steps"],
        "norms": "branch",
        "state_norm": "fed",
        "gate": True,
        "exit_rule": rule if step is None else f"fixed:{step + 1}",
        "objective": "gate",
        "rope_theta": stored.get("rope_theta", rope.get("rope_theta", 10000.0)),
    }


def _convert_huginn(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the configuration of a Huginn model.

    The model has an adapter of [s, e], a random first state, norms of residual sums, and a norm before and after the
    coda.
    """
    for name, value in (
        ("injection_type", "linear"),
        ("state_init", "like-init"),
        ("bias", False),
        ("block_class_name", "SandwichBlock"),
        ("nonlin_name", "SiLU"),
        ("test_time_noise", 0),
    ):
        _check_value(stored, name, value)
    if not stored["n_layers_in_coda"]:
        raise CheckpointError("n_layers_in_coda=0: Huginn models need a coda")
    return {
        **{name: stored[name] for name in _SHARED_FIELDS if name in stored},
        "hidden_size": _get_first(stored, "n_embd", "hidden_size"),
        "num_attention_heads": _get_first(stored, "num_attention_heads", "n_heads"),
        "max_position_embeddings": stored["block_size"],
        "rms_norm_eps": stored["norm_eps"],
        "prelude": stored["n_layers_in_prelude"],
        "core": stored["n_layers_in_recurrent_block"],
        "coda": stored["n_layers_in_coda"],
        "num_loops": stored["mean_recurrence"],
        "norms": "sandwich",
        "state_norm": "read",
        "injection": "linear",
        "start": "drawn",
        "qk_bias": stored.get("qk_bias", True),
        "rope_theta": stored.get("rope_base", 50_000),
        "rope_pairs": True,
        "scale_embeddings": True,
        "tie_word_embeddings": stored.get("tie_embeddings", stored.get("tie_word_embeddings", True)),
        "initializer": "scaled",
    }


PUBLISHED_MODELS = {"ouro": _convert_ouro, "huginn_raven": _convert_huginn}


def _check_value(stored: Mapping[str, Any], name: str, published: Any) -> None:
    value = stored.get(name, published)
    if (value or None) != (published or None):
        raise CheckpointError(
            f"{name}={value!r}: the published models of type {stored['model_type']} have {published!r}"
        )


def _get_first(stored: Mapping[str, Any], *names: str) -> Any:
    return next(stored[name] for name in names if name in stored)


def _load_weights(folder: Path) -> dict[str, Tensor]:
    """Load all weights of a folder, from safetensors files if there are any."""
    tensors = sorted(folder.glob(f"*{Path(SAFE_WEIGHTS_NAME).suffix}"))
    pickles = sorted(folder.glob(f"{Path(WEIGHTS_NAME).stem}*.bin"))
    if not tensors and not pickles:
        raise CheckpointError(f"{folder}: contains neither {SAFE_WEIGHTS_NAME} nor {WEIGHTS_NAME}")
    weights: dict[str, Tensor] = {}
    for file in tensors or pickles:
        weights |= load_file(file) if tensors else torch.load(file, map_location="cpu", weights_only=True)
    return weights
