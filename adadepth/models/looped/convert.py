"""Conversion of the published looped models Ouro, Huginn, HRM-Text, Nanbeige and retrofits, without running their code.

Configurations and weight names are converted to those of this package. Huginn stores queries, keys and values in one
matrix, gate and up in another, and the biases of queries and keys in one tensor. HRM-Text has matrices of its own for
all of these in folders that transformers writes, and stores them together in folders that the published code writes.

Decoders retrofitted with recurrence (McLeish et al. 2025, arXiv 2511.07384) are published under Huginn's model type and
with Huginn's configuration, in which some values are stale. Their weights have Huginn's names, and only they show which
decoder of transformers the layers come from:

    Huginn    norm_1 to norm_4 around the residual sums
    Llama     norm_1 and norm_2 before the branches
    OLMo 2    norm_1 and norm_2 after the branches, q_norm and k_norm
    Gemma 2   norm_1 to norm_4 before and after the branches, no qk_bias; the configuration has heads whose widths do
              not add up to D, or caps of logits
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, HrmTextConfig

from adadepth.config.declaration import find_excessive_stored_count
from adadepth.errors import CheckpointError
from adadepth.models.shared.published_files import (
    TOKEN_FIELDS,
    TOKENIZER_FILES,
    TRAINING_DATA,
    find_folder,
    is_rotary_table,
    list_stored_weights,
    load_stored_weights,
)

_HUGINN_TOKENS = frozenset({65504, 65505, 65508, 65509})  # ids of Huginn's tokenizer, stale in retrofits
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
    TRAINING_DATA,
)
_OURO_NAMES = (
    (r"^(model\.)?layers\.", r"\1core."),
    (r"\.input_layernorm_2\.", ".attention_post_norm."),
    (r"\.input_layernorm\.", ".attention_norm."),
    (r"\.post_attention_layernorm_2\.", ".mlp_post_norm."),
    (r"\.post_attention_layernorm\.", ".mlp_norm."),
    (r"^(model\.)?early_exit_gate\.", r"\1gate."),
)
_RAVEN_NAMES = (  # of Huginn and of retrofits
    (r"^transformer\.wte\.", "model.embed_tokens."),
    (r"^transformer\.core_block\.", "model.core."),
    (r"^transformer\.ln_f\.", "model.norm."),
    (r"^transformer\.", "model."),
    (r"\.attn\.proj\.", ".self_attn.o_proj."),
    (r"\.attn\.([qk])_norm\.", r".self_attn.\1_norm."),
    (r"\.mlp\.proj\.", ".mlp.down_proj."),
)
_HRM_TEXT_NAMES = (
    (r"^(model\.)?L_module\.layers\.", r"\1low."),
    (r"^(model\.)?H_module\.layers\.", r"\1core."),
    (r"^(model\.)?z_L_init$", r"\1low_start"),
    (r"\.attn\.o_proj\.", ".self_attn.o_proj."),
)
_NANBEIGE_NAMES = (
    (r"^(model\.)?layers\.", r"\1core."),
    (r"\.input_layernorm\.", ".attention_norm."),
    (r"\.post_attention_layernorm\.", ".mlp_norm."),
)
_NAMES = {
    "ouro": _OURO_NAMES,
    "huginn_raven": _RAVEN_NAMES,
    "hrm_text": _HRM_TEXT_NAMES,
    "nanbeige": _NANBEIGE_NAMES,
}
# Fields of Nanbeige's configuration that change the computation, and that the published models leave off.
_NANBEIGE_OFF = {
    "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "attention_dropout": 0, "rope_scaling": None,
    "loop_loss_weights": [], "qk_layernorm": False, "emb_neighbor_num": None, "insert_ngram_layer_idx": [],
    "ngram_insert_all_layers": False, "enable_double_loop_split": False, "loop_middle_layers": None,
    "loop_share_kv": False, "enable_hyper_connection": False, "enable_mhc": False, "enable_h_res_identity": False,
    "enable_depth_attention": False,
}  # fmt: skip
# Matrix of several equal parts -> module with a matrix for each part, and their names.
_JOINED = {
    ".mlp.fc.weight": ("mlp", ("gate", "up")),
    ".mlp.gate_up_proj.weight": ("mlp", ("gate", "up")),
    ".attn.gqkv_proj.weight": ("self_attn", ("gate", "q", "k", "v")),
}
# Decoder of transformers, None for Huginn's own layers -> names of norm_1, norm_2, norm_3 and norm_4.
NORM_NAMES: dict[str | None, tuple[str, ...]] = {
    None: ("attention_norm", "attention_post_norm", "mlp_norm", "mlp_post_norm"),
    "llama": ("input_layernorm", "post_attention_layernorm"),
    "olmo2": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "gemma2": (
        "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
    ),
}  # fmt: skip


def read_published_weights(folder: Path, stored: Mapping[str, Any]) -> dict[str, Tensor]:
    """Load the weights of a published looped model, renamed as in this package.

    Args:
        folder: Folder of the model.
        stored: Content of the configuration file.

    Raises:
        CheckpointError: If there are no weights.
    """
    return dict(rename_weights(load_stored_weights(folder), stored))


def replace_stale_tokens(generation: GenerationConfig, config: Any) -> None:
    """Replace special tokens of Huginn in a retrofit's generation configuration by those of its converted one."""
    for name in TOKEN_FIELDS if config.base_config is not None else ():
        if _is_of_huginn(getattr(generation, name)):
            setattr(generation, name, getattr(config, name))


def convert_config(stored: Mapping[str, Any], path: Any = None) -> dict[str, Any]:
    """Convert the configuration of a published looped model to the fields of `LoopedConfig`.

    Args:
        stored: Published configuration.
        path: Folder or hub id of the model, or None if it is unknown. The weights of a retrofit are needed to convert
            its configuration, and are downloaded from the hub.

    Raises:
        CheckpointError: If a value differs from those of all published models, a count is too large, or the weights
            of a retrofit are needed and unknown.
    """
    if problem := find_excessive_stored_count(stored):
        raise CheckpointError(problem)
    if stored["model_type"] != "huginn_raven":
        return PUBLISHED_MODELS[stored["model_type"]](stored)
    claims_huginn = stored.get("qk_bias", True)
    if path is not None and (Path(path).exists() or not claims_huginn):
        folder = find_folder(path, {"revision": stored.get("_commit_hash")})
        if names := list_stored_weights(folder):
            return convert_raven(stored, names, folder)
    if claims_huginn:
        return _convert_huginn(stored)
    raise CheckpointError(
        f"{'model_type=huginn_raven' if path is None else path}: qk_bias=False is that of a retrofitted decoder (arXiv "
        "2511.07384), whose kind only its weights show; load a folder or hub id with weights"
    )


def convert_raven(stored: Mapping[str, Any], names: Collection[str], folder: Path) -> dict[str, Any]:
    """Convert the configuration of a model of type `huginn_raven` to the fields of `LoopedConfig`.

    Args:
        stored: Published configuration.
        names: Published names of its weights.
        folder: Folder of its tokenizer, which is read if the special tokens of a retrofit are stale.
    """
    decoder = find_decoder(names, stored)
    return _convert_huginn(stored) if decoder is None else _convert_retrofit(stored, decoder, folder)


def find_decoder(names: Collection[str], stored: Mapping[str, Any]) -> str | None:
    """Return the model type of the decoder that provides the layers of a model of type `huginn_raven`.

    Args:
        names: Published names of its weights.
        stored: Published configuration.

    Returns:
        `llama`, `olmo2` or `gemma2`, or None if the layers are those of Huginn.
    """
    if not any(".norm_3." in name for name in names):
        return "olmo2" if any(".attn.q_norm." in name for name in names) else "llama"
    heads, width = _get_first(stored, "num_attention_heads", "n_heads"), _get_first(stored, "n_embd", "hidden_size")
    has_other_width = stored.get("head_dim", width // heads) * heads != width
    is_gemma = has_other_width or any("softcap" in name for name in stored)
    return "gemma2" if is_gemma and not any(name.endswith(".attn.qk_bias") for name in names) else None


def rename_weights(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of a published looped model, renamed as in this package.

    Args:
        weights: Weights by their published names.
        config: Published configuration.
    """
    names: tuple[tuple[str, str], ...] = _NAMES[config["model_type"]]
    if config["model_type"] == "huginn_raven":
        norms = enumerate(NORM_NAMES[find_decoder(weights, config)], start=1)
        names = (*names, *((rf"\.norm_{number}\.", f".{norm}.") for number, norm in norms))
    for published, weight in weights.items():
        name = published
        for pattern, ours in names:
            name = re.sub(pattern, ours, name)
        if name.endswith(".attn.Wqkv.weight"):
            heads = _get_first(config, "num_attention_heads", "n_heads")
            shared = config.get("num_key_value_heads", heads)
            head = weight.shape[0] // (heads + 2 * shared)
            parts = weight.split([heads * head, shared * head, shared * head])
            for letter, part in zip("qkv", parts, strict=True):
                yield name.replace(".attn.Wqkv.", f".self_attn.{letter}_proj."), part.contiguous()
        elif name.endswith(".attn.qk_bias"):
            for letter, part in zip("qk", weight, strict=True):
                yield name.replace(".attn.qk_bias", f".self_attn.{letter}_proj.bias"), part.flatten()
        elif joined := next((ending for ending in _JOINED if name.endswith(ending)), None):
            module, parts = _JOINED[joined]
            for part, matrix in zip(parts, weight.chunk(len(parts)), strict=True):
                yield f"{name.removesuffix(joined)}.{module}.{part}_proj.weight", matrix.contiguous()
        elif not is_rotary_table(published):
            yield name, weight


def _convert_ouro(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the configuration of an Ouro model.

    All layers form the core, the normed state is fed back, and the exit threshold becomes a quantile at which a
    token exits, too.
    """
    _check_value(stored, "rope_scaling", None)
    _check_value(stored, "use_sliding_window", False)
    _check_value(stored, "attention_dropout", 0)
    rope = stored.get("rope_parameters") or {}
    _refuse_other_positions(rope)
    if other := set(stored.get("layer_types") or ()) - {"full_attention"}:
        raise CheckpointError(f"layer_types has {other.pop()!r}: Ouro models have full attention only")
    threshold, step = stored.get("early_exit_threshold"), stored.get("early_exit_step")
    if step is not None and (not isinstance(step, int) or isinstance(step, bool) or step < 0):
        raise CheckpointError(f"early_exit_step={step!r}: must be a whole number from 0, or null")
    rule = None if threshold is None else f"quantile:{threshold!r}"
    if threshold is not None and threshold < 1:  # a threshold of 1 means all loops, even if a float32 sum rounds to 1
        rule = f"{rule}:1"
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


def _convert_hrm_text(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the configuration of an HRM-Text model, whose absent fields have the defaults of transformers.

    The H stack is the core, and the L stack the low-level stack. `num_hidden_layers` of transformers is the number of
    layers that a token passes, so the layers of a stack are `num_layers_per_stack`.
    """
    for name, value in (("attention_bias", False), ("mlp_bias", False), ("attention_dropout", 0)):
        _check_value(stored, name, value)
    config = HrmTextConfig.from_dict(dict(stored))
    described = config.to_dict()
    rope = described["rope_parameters"]
    _refuse_other_positions(rope)
    return {
        **{name: described[name] for name in _SHARED_FIELDS if name in described},
        "num_key_value_heads": None,
        "core": config.num_layers_per_stack,
        "low_layers": config.num_layers_per_stack,
        "low_cycles": config.L_cycles,
        "low_backprop": described["L_bp_cycles"],
        "num_loops": config.H_cycles,
        "attention_gate": True,
        "norm_weights": False,
        "state_norm": "fed",
        "embedding_scale": config.embedding_scale,
        "prefix_lm": config.prefix_lm,
        "rope_theta": rope["rope_theta"],
    }


def _convert_nanbeige(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the configuration of a Nanbeige model, a Llama whose layers run `num_loops` times.

    All layers form the core. The state is normed after every loop, or, with `skip_loop_final_norm`, after the last one
    only. Absent fields have the defaults of the published configuration class.
    """
    for name, value in _NANBEIGE_OFF.items():
        _check_value(stored, name, value)
    rope = stored.get("rope_parameters") or {}
    _refuse_other_positions(rope)
    if other := set(stored.get("layer_types") or ()) - {"full_attention"}:
        raise CheckpointError(f"layer_types has {other.pop()!r}: Nanbeige models have full attention only")
    return {
        "rms_norm_eps": 1e-6,
        **{name: stored[name] for name in _SHARED_FIELDS if name in stored},
        "core": stored["num_hidden_layers"],
        "num_loops": stored.get("num_loops", 1),
        "state_norm": "none" if stored.get("skip_loop_final_norm") else "fed",
        "rope_theta": stored.get("rope_theta", rope.get("rope_theta", 10000.0)),
    }


def _refuse_other_positions(rope: Mapping[str, Any]) -> None:
    """Raise an error if rotary positions are scaled."""
    if rope.get("rope_type", "default") != "default":
        raise CheckpointError(f"rope_parameters={dict(rope)}: only rope_type=default is supported")


def _convert_huginn(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the configuration of a Huginn model.

    The model has an adapter of [s, e], a random first state, norms of residual sums, and a norm before and after the
    coda.
    """
    _check_value(stored, "block_class_name", "SandwichBlock")
    _check_value(stored, "nonlin_name", "SiLU")
    if not stored["n_layers_in_coda"]:
        raise CheckpointError("n_layers_in_coda=0: Huginn models need a coda")
    return {
        **_convert_loops(stored),
        "hidden_size": _get_first(stored, "n_embd", "hidden_size"),
        "num_attention_heads": _get_first(stored, "num_attention_heads", "n_heads"),
        "max_position_embeddings": stored["block_size"],
        "rms_norm_eps": stored["norm_eps"],
        "norms": "sandwich",
        "state_norm": "read",
        "qk_bias": stored.get("qk_bias", True),
        "rope_theta": stored.get("rope_base", 50_000),
        "rope_pairs": True,
        "scale_embeddings": True,
        "tie_word_embeddings": stored.get("tie_embeddings", stored.get("tie_word_embeddings", True)),
        "initializer": "scaled",
    }


def _convert_loops(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Convert what Huginn and retrofits share: prelude, core, coda, a linear adapter and a random first state."""
    for name, value in (
        ("injection_type", "linear"),
        ("state_init", "like-init"),
        ("initial_state_mode", "random"),
        ("bias", False),
        ("test_time_noise", 0),
    ):
        _check_value(stored, name, value)
    return {
        **{name: stored[name] for name in _SHARED_FIELDS if name in stored},
        "prelude": stored["n_layers_in_prelude"],
        "core": stored["n_layers_in_recurrent_block"],
        "coda": stored["n_layers_in_coda"],
        "num_loops": stored["mean_recurrence"],
        "injection": "linear",
        "start": "drawn",
    }


def _convert_retrofit(stored: Mapping[str, Any], decoder: str, folder: Path) -> dict[str, Any]:
    """Convert the configuration of a retrofitted decoder, whose layers, norms and positions are those of transformers.

    The first state has the standard deviation `init_values.std`, times the scale of embeddings. Special tokens of
    Huginn's tokenizer are replaced by those of the tokenizer in the folder.

    Args:
        stored: Published configuration.
        decoder: Model type of the decoder; see `find_decoder`.
        folder: Folder of the model.
    """
    width = _get_first(stored, "n_embd", "hidden_size")
    values = stored.get("init_values", {})
    root, is_gemma = math.sqrt(width), decoder == "gemma2"
    deviation, scale = values.get("std", math.sqrt(2 / 5) / root), values.get("embed_scale", root)
    _check_value(stored, "qk_bias", False)
    if not math.isclose(scale, root if is_gemma else 1.0, rel_tol=1e-6):
        raise CheckpointError(f"init_values.embed_scale={scale}: must be {root if is_gemma else 1.0} with {decoder}")
    if not is_gemma:
        _check_value(stored, "nonlin_name", "SiLU")
    loops = _convert_loops(stored)
    tokens = {name: loops.pop(name, None) for name in TOKEN_FIELDS}
    if any(map(_is_of_huginn, tokens.values())):
        true_tokens = _read_special_tokens(folder)
        tokens = {name: true_tokens.get(name) if _is_of_huginn(token) else token for name, token in tokens.items()}
    heads = _get_first(stored, "num_attention_heads", "n_heads")
    base = {
        "model_type": decoder,
        "vocab_size": _get_first(stored, "padded_vocab_size", "vocab_size"),
        "hidden_size": width,
        "intermediate_size": stored["intermediate_size"],
        "num_hidden_layers": loops["prelude"] + loops["core"] + loops["coda"],
        "num_attention_heads": heads,
        "num_key_value_heads": stored.get("num_key_value_heads", heads),
        "head_dim": stored.get("head_dim", width // heads),
        "max_position_embeddings": _get_first(stored, "max_position_embeddings", "block_size"),
        "rms_norm_eps": stored["norm_eps"],
        "rope_parameters": _convert_positions(stored),
        "tie_word_embeddings": stored.get("tie_embeddings", False),
        **dict.fromkeys(TOKEN_FIELDS),
        **(_convert_gemma(stored, loops) if is_gemma else {}),
    }
    return {**loops, **tokens, "base_config": base, "start_std": deviation * scale}


def _convert_positions(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the rotary positions of a retrofit. Its `rope_base` is Huginn's and is not read."""
    if parameters := stored.get("rope_parameters"):
        return dict(parameters)
    if "rope_theta" not in stored:
        raise CheckpointError("rope_theta: missing, and rope_base is not that of a retrofitted decoder")
    scaling = dict(stored.get("rope_scaling") or {})
    return {**scaling, "rope_type": scaling.get("rope_type", "default"), "rope_theta": stored["rope_theta"]}


def _convert_gemma(stored: Mapping[str, Any], loops: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the fields that only Gemma 2 has. Values that are not stored are those of Gemma 2 2B."""
    layers = loops["prelude"] + loops["core"] + loops["coda"]
    return {
        "attn_logit_softcapping": stored.get("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": stored.get("final_logit_softcapping", 30.0),
        "query_pre_attn_scalar": stored.get("query_pre_attn_scalar", stored["head_dim"]),
        "layer_types": stored.get("layer_types", ["full_attention"] * layers),
    }


def _is_of_huginn(token: Any) -> bool:
    """Return whether one or several token ids are special tokens of Huginn's tokenizer."""
    return token is not None and _HUGINN_TOKENS.issuperset(token if isinstance(token, list) else [token])


def _read_special_tokens(folder: Path) -> dict[str, int]:
    """Return the ids of the special tokens of a folder's tokenizer, by the names of configuration fields."""
    described, backend = (
        json.loads((folder / name).read_text(encoding="utf-8")) if (folder / name).is_file() else {}
        for name in TOKENIZER_FILES
    )
    ids = {token["content"]: token["id"] for token in backend.get("added_tokens", ())}
    ids |= {token["content"]: int(number) for number, token in described.get("added_tokens_decoder", {}).items()}
    tokens = {name: described.get(name.removesuffix("_id")) for name in TOKEN_FIELDS}
    contents = {name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()}
    return {name: ids[content] for name, content in contents.items() if content in ids}


PUBLISHED_MODELS = {
    "ouro": _convert_ouro,
    "huginn_raven": _convert_huginn,
    "hrm_text": _convert_hrm_text,
    "nanbeige": _convert_nanbeige,
}


def _check_value(stored: Mapping[str, Any], name: str, published: Any) -> None:
    value = stored.get(name, published)
    if (value or None) != (published or None):
        raise CheckpointError(
            f"{name}={value!r}: the published models of type {stored['model_type']} have {published!r}"
        )


def _get_first(stored: Mapping[str, Any], *names: str) -> Any:
    return next(stored[name] for name in names if name in stored)
