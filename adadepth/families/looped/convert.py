"""Reading the published looped models, Ouro (`ouro`) and Huginn (`huginn_raven`), with none of their code.

From a configuration follow the settings that describe the same network, from names of weights ours. Huginn keeps
queries, keys and values, and gate and up, in one matrix each, and the biases of queries and keys in one tensor.
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
from adadepth.families.loading import describe_place

# What `from_pretrained` and the hub are told of where a model is.
_PLACE = ("cache_dir", "revision", "token", "local_files_only", "force_download")
_SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_FILES = ("config.json", "*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json")
_KEPT = (
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
    """Return the weights of a published model by our names.

    Args:
        path: A folder or hub id.
        stored: Its configuration as it is written.
        options: Of `from_pretrained`.

    Raises:
        CheckpointError: If there are no weights, or they are those of a retrofit.
    """
    where = {name: options[name] for name in _PLACE if name in options}
    folder = Path(path)
    if not folder.is_dir():
        folder = Path(snapshot_download(str(path), allow_patterns=list(_FILES), **where))
    weights = _weights(folder / (options.get("subfolder") or ""))
    if stored["model_type"] == "huginn_raven" and not any(".norm_3." in name for name in weights):
        raise CheckpointError(
            f"{describe_place(path)}: model_type=huginn_raven without norm_3 is a retrofit (arXiv 2511.07384), a "
            "pretrained decoder whose layers are looped, which cannot be read; Huginn's own models can, and "
            "adadepth.retrofit loops a decoder of transformers"
        )
    return dict(renamed_weights(stored["model_type"], weights, stored))


def read_generation_config(path: Any, options: Mapping[str, Any]) -> GenerationConfig | None:
    """Return what a published folder says of generation; None where it says nothing.

    Of settings that contradict each other, with which transformers would save no model, the special tokens are left.
    """
    where = {name: options[name] for name in (*_PLACE, "subfolder") if name in options}
    try:
        stored = GenerationConfig.from_pretrained(path, **where)
    except OSError:
        return None
    try:
        stored.validate(strict=True)
    except ValueError:
        return GenerationConfig(**{name: getattr(stored, name) for name in _SPECIAL_TOKENS})
    return stored


def published_config(found: Mapping[str, Any]) -> dict[str, Any]:
    """Our configuration of a published one.

    Raises:
        CheckpointError: If it says what none of the published ones does.
    """
    return PUBLISHED_MODELS[found["model_type"]](found)


def renamed_weights(
    kind: str, weights: Mapping[str, Tensor], config: Mapping[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """Weights by our names.

    Args:
        kind: `ouro` or `huginn_raven`.
        weights: By the published names.
        config: The published configuration.
    """
    names = _OURO_NAMES if kind == "ouro" else _HUGINN_NAMES
    for published, weight in weights.items():
        name = published
        for pattern, ours in names:
            name = re.sub(pattern, ours, name)
        if name.endswith(".attn.Wqkv.weight"):
            heads = _first(config, "num_attention_heads", "n_heads")
            shared = config.get("num_key_value_heads", heads)
            head = weight.shape[1] // heads
            parts = weight.split([heads * head, shared * head, shared * head])
            for letter, part in zip("qkv", parts, strict=True):
                yield name.replace(".attn.Wqkv.", f".self_attn.{letter}_proj."), part.contiguous()
        elif name.endswith(".attn.qk_bias"):
            for letter, part in zip("qk", weight, strict=True):
                yield name.replace(".attn.qk_bias", f".self_attn.{letter}_proj.bias"), part.flatten()
        elif name.endswith(".mlp.fc.weight"):
            for part, each in zip(("gate", "up"), weight.chunk(2), strict=True):
                yield name.replace(".mlp.fc.", f".mlp.{part}_proj."), each.contiguous()
        elif published != "freqs_cis":  # the rotary table, which follows from the configuration
            yield name, weight


def _ouro(found: Mapping[str, Any]) -> dict[str, Any]:
    """All layers are the core; the normed state is fed back; the threshold is a quantile of the gate's distribution."""
    _refuse(found, "rope_scaling", None)
    _refuse(found, "use_sliding_window", False)
    _refuse(found, "attention_dropout", 0)
    rope = found.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default":
        raise CheckpointError(f"rope_parameters={rope}: only the default positions of Ouro's models are known")
    if other := set(found.get("layer_types") or ()) - {"full_attention"}:
        raise CheckpointError(f"layer_types has {other.pop()!r}: Ouro's models have full attention only")
    threshold, step = found.get("early_exit_threshold"), found.get("early_exit_step")
    rule = None if threshold is None else f"quantile:{threshold!r}"
    return {
        **{name: found[name] for name in _KEPT if name in found},
        "core": found["num_hidden_layers"],
        "num_loops": found["total_ut_steps"],
        "norms": "branch",
        "state_norm": "fed",
        "gate": True,
        "exit_rule": rule if step is None else f"fixed:{step + 1}",
        "objective": "gate",
        "rope_theta": found.get("rope_theta", rope.get("rope_theta", 10000.0)),
    }


def _huginn(found: Mapping[str, Any]) -> dict[str, Any]:
    """A linear adapter of [s, e], a drawn state, norms around the sums, the final norm before and behind the coda."""
    for name, known in (
        ("injection_type", "linear"),
        ("state_init", "like-init"),
        ("bias", False),
        ("block_class_name", "SandwichBlock"),
        ("nonlin_name", "SiLU"),
        ("test_time_noise", 0),
    ):
        _refuse(found, name, known)
    if not found["n_layers_in_coda"]:
        raise CheckpointError("n_layers_in_coda=0: Huginn's models have a coda")
    return {
        **{name: found[name] for name in _KEPT if name in found},
        "hidden_size": _first(found, "n_embd", "hidden_size"),
        "num_attention_heads": _first(found, "num_attention_heads", "n_heads"),
        "max_position_embeddings": found["block_size"],
        "rms_norm_eps": found["norm_eps"],
        "prelude": found["n_layers_in_prelude"],
        "core": found["n_layers_in_recurrent_block"],
        "coda": found["n_layers_in_coda"],
        "num_loops": found["mean_recurrence"],
        "norms": "sandwich",
        "state_norm": "read",
        "injection": "linear",
        "start": "drawn",
        "qk_bias": found.get("qk_bias", True),
        "rope_theta": found.get("rope_base", 50_000),
        "rope_pairs": True,
        "scale_embeddings": True,
        "tie_word_embeddings": found.get("tie_embeddings", found.get("tie_word_embeddings", True)),
        "initializer": "scaled",
    }


PUBLISHED_MODELS = {"ouro": _ouro, "huginn_raven": _huginn}


def _refuse(found: Mapping[str, Any], name: str, known: Any) -> None:
    value = found.get(name, known)
    if (value or None) != (known or None):
        raise CheckpointError(f"{name}={value!r}: the published models of type {found['model_type']} have {known!r}")


def _first(found: Mapping[str, Any], *names: str) -> Any:
    return next(found[name] for name in names if name in found)


def _weights(folder: Path) -> dict[str, Tensor]:
    """All weights of a folder, of safetensors if there are any."""
    tensors = sorted(folder.glob(f"*{Path(SAFE_WEIGHTS_NAME).suffix}"))
    pickles = sorted(folder.glob(f"{Path(WEIGHTS_NAME).stem}*.bin"))
    if not tensors and not pickles:
        raise CheckpointError(f"{folder}: holds neither {SAFE_WEIGHTS_NAME} nor {WEIGHTS_NAME}")
    found: dict[str, Tensor] = {}
    for file in tensors or pickles:
        found |= load_file(file) if tensors else torch.load(file, map_location="cpu", weights_only=True)
    return found
