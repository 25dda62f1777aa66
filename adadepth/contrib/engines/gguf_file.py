"""GGUF files of language models for llama.cpp: one file with settings, weights and tokenizer.

A model is first converted to a published layout. Keys and names of tensors follow those that llama.cpp reads
(https://github.com/ggml-org/llama.cpp, `src/models`), and what it does not compute is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from adadepth.config.export import ExportConfig
from adadepth.contrib.engines.gguf_tokenizer import add_tokenizer
from adadepth.errors import ConfigError, nearest
from adadepth.models.shared.layouts import convert_to_layout
from adadepth.runtime.console import say

GGUF_FILE = "model.gguf"
_FILE_TYPES = {
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}
_NO_CAP = 1e6  # c tanh(x / c) is x in float32 for logits far below
_MOST_LAYERS = 512  # LLAMA_MAX_LAYERS of llama.cpp


@dataclass(frozen=True)
class _Architecture:
    """Architecture of llama.cpp that computes a layout.

    Attributes:
        name: Name of the architecture in GGUF.
        tensors: Architecture whose names the tensors have.
        is_interleaved: Whether rotary positions turn pairs of neighbouring dimensions of a head. Published layouts turn
            dimension i with i + d/2, so the rows of queries and keys are then reordered.
        has_biases: Whether the output of attention and the feed-forward network may have biases.
        needs_head: Whether the matrix of the head is stored even if it is that of the embeddings.
        activation: Activation of the feed-forward network.
        norm_offset: Number that llama.cpp expects to be added to the weights of norms.
    """

    name: str
    tensors: gguf.MODEL_ARCH
    is_interleaved: bool = False
    has_biases: bool = False
    needs_head: bool = False
    activation: str = "silu"
    norm_offset: float = 0.0


_ARCHITECTURES = {
    "llama": _Architecture("llama", gguf.MODEL_ARCH.LLAMA, is_interleaved=True, has_biases=True),
    "mistral": _Architecture("llama", gguf.MODEL_ARCH.LLAMA, is_interleaved=True),
    "nanbeige": _Architecture("nanbeige", gguf.MODEL_ARCH.LLAMA, is_interleaved=True),
    "smollm3": _Architecture("smollm3", gguf.MODEL_ARCH.SMOLLM3, is_interleaved=True),
    "qwen2": _Architecture("qwen2", gguf.MODEL_ARCH.QWEN2),
    "qwen3": _Architecture("qwen3", gguf.MODEL_ARCH.QWEN3),
    "olmo2": _Architecture("olmo2", gguf.MODEL_ARCH.OLMO2, needs_head=True),
    "gemma2": _Architecture("gemma2", gguf.MODEL_ARCH.GEMMA2, activation="gelu_pytorch_tanh", norm_offset=1.0),
}


def write_gguf(model: Any, folder: Path, source: Path, settings: ExportConfig) -> None:
    """Write a language model and its tokenizer as one GGUF file.

    Without `export.layout`, the layout is that of the model's layers: the type of a decoder of transformers, `llama`
    for our own layers, or `nanbeige` if they run several times. If llama.cpp has no equal tokenizer, the file has none,
    and a line says why.

    Args:
        model: A `DepthModel`.
        folder: Folder of the file.
        source: Folder with the tokenizer.
        settings: Layout, and number format of matrices. Vectors stay in float32.

    Raises:
        ConfigError: If the model has no such layout, or llama.cpp does not compute the layout as the model does.
    """
    layout = settings.layout or _find_layout(model.config)
    if layout not in _ARCHITECTURES:
        allowed = f"one of {', '.join(_ARCHITECTURES)}{nearest(layout, _ARCHITECTURES)}"
        raise ConfigError(f"layout={layout}: export.format=gguf needs {allowed}")
    architecture = _ARCHITECTURES[layout]
    published = convert_to_layout(model, layout)
    config = _read_fields(published.config)
    _refuse_differences(config, architecture)
    matrix_type, file_type = _FILE_TYPES[settings.weights or "f32"]
    writer = gguf.GGUFWriter(folder / GGUF_FILE, architecture.name)
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_settings(writer, config)
    problem = add_tokenizer(writer, source, config["vocab_size"])
    tensors = [
        (name, weight, _choose_type(weight, matrix_type))
        for name, weight in _convert_weights(published.weights, config, architecture)
    ]
    for name, weight, number_type in tensors:
        block, size = gguf.GGML_QUANT_SIZES[number_type]
        nbytes = weight.numel() // block * size
        writer.add_tensor_info(name, weight.shape, np.dtype(np.float32), nbytes, raw_dtype=number_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, weight, number_type in tensors:
        writer.write_tensor_data(gguf.quantize(weight.float().contiguous().cpu().numpy(), number_type))
    writer.close()
    if problem is not None:
        say(f"{GGUF_FILE} has no tokenizer, so llama.cpp reads and writes token ids only: {problem}")


def _find_layout(config: Any) -> str:
    """Return the layout that fits the layers of a model."""
    if (base := getattr(config, "base_config", None)) is not None:
        return str(base.model_type)
    return "nanbeige" if getattr(config, "num_loops", 1) > 1 else "llama"


def _read_fields(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a published configuration with all fields that are read here."""
    heads = stored["num_attention_heads"]
    positions = stored.get("rope_parameters") or {"rope_theta": stored["rope_theta"]}
    return {
        **stored,
        "head_dim": stored.get("head_dim") or stored["hidden_size"] // heads,
        "num_key_value_heads": stored.get("num_key_value_heads") or heads,
        "rope_parameters": {"rope_type": "default", **positions},
        "hidden_act": stored.get("hidden_activation") or stored["hidden_act"],
    }


def _refuse_differences(config: Mapping[str, Any], architecture: _Architecture) -> None:
    """Raise an error if llama.cpp would compute something else than the model.

    Raises:
        ConfigError: Names the setting, and its only value in llama.cpp.
    """
    for name, needed in _list_needed(config, architecture):
        if config.get(name) != needed:
            raise ConfigError(f"{name}={config.get(name)}: export.format=gguf needs {name}={needed}")
    kind = config["rope_parameters"]["rope_type"]
    if kind != "default" and (kind, architecture.name) != ("llama3", "llama"):
        raise ConfigError(
            f"rope_parameters.rope_type={kind}: export.format=gguf needs rope_parameters.rope_type=default"
        )
    loops = config.get("num_loops", 1)
    if (layers := loops * config["num_hidden_layers"]) > _MOST_LAYERS:
        raise ConfigError(f"num_loops={loops}: {layers} layers in all; llama.cpp runs {_MOST_LAYERS} or fewer")


def _list_needed(config: Mapping[str, Any], architecture: _Architecture) -> Iterator[tuple[str, Any]]:
    """Yield fields of a published configuration that have one value in llama.cpp, and this value."""
    layers = range(1, config["num_hidden_layers"] + 1)
    yield "hidden_act", architecture.activation
    if architecture.name == "gemma2":
        yield "layer_types", ["sliding_attention" if layer % 2 else "full_attention" for layer in layers]
        yield "tie_word_embeddings", True
    elif config.get("layer_types") is not None:
        yield "layer_types", ["full_attention" for _ in layers]
    elif (config.get("sliding_window") or config["max_position_embeddings"]) < config["max_position_embeddings"]:
        yield "sliding_window", None
    for name in ("attention_bias", "mlp_bias"):
        if config.get(name) and not architecture.has_biases:
            yield name, False
    if architecture.name == "smollm3":
        yield "no_rope_layers", [int(layer % 4 != 0) for layer in layers]
    if architecture.name == "olmo2":
        yield "head_dim", config["hidden_size"] // config["num_attention_heads"]


def _add_settings(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    """Add the sizes and other settings of the network to a file."""
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if writer.arch == "nanbeige":  # whose keys released versions of the package `gguf` do not have
        writer.add_uint32("nanbeige.num_loops", config["num_loops"])
        writer.add_bool("nanbeige.skip_loop_final_norm", config["skip_loop_final_norm"])
    if writer.arch == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"] or _NO_CAP)
        writer.add_final_logit_softcapping(config["final_logit_softcapping"] or _NO_CAP)
        writer.add_sliding_window(config["sliding_window"])


def _convert_weights(
    weights: Mapping[str, Tensor], config: Mapping[str, Any], architecture: _Architecture
) -> Iterator[tuple[str, Tensor]]:
    """Yield weights as llama.cpp names and orders them."""
    names = gguf.get_tensor_name_map(architecture.tensors, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for published, weight in weights.items():
        name = names.get_name(published, try_suffixes=(".weight", ".bias"))
        assert name is not None, published
        module = published.split(".")[-2]
        if architecture.is_interleaved and module in heads:
            # (h, 2, d/2, ...) -> (h, d/2, 2, ...)
            pairs = weight.reshape(heads[module], 2, config["head_dim"] // 2, *weight.shape[1:])
            yield name, pairs.transpose(1, 2).reshape(weight.shape)
        elif architecture.name == "gemma2" and module == "q_proj":
            yield name, weight * _compute_query_factor(config)
        elif published.endswith("norm.weight"):
            yield name, weight + architecture.norm_offset
        else:
            yield name, weight
    if architecture.needs_head and config["tie_word_embeddings"]:
        yield "output.weight", weights["model.embed_tokens.weight"]
    if config["rope_parameters"]["rope_type"] == "llama3":
        yield "rope_freqs.weight", _compute_rotary_divisors(config)


def _compute_query_factor(config: Mapping[str, Any]) -> float:
    """Return the factor of Gemma's queries in the configuration, relative to that of llama.cpp.

    llama.cpp divides queries by the square root of the size of a head; in Gemma 2 27B, which it tells by its 46 layers,
    by that of the hidden size per head.
    """
    per_head = config["hidden_size"] // config["num_attention_heads"]
    divisor = per_head if config["num_hidden_layers"] == 46 else config["head_dim"]
    return float((divisor / config["query_pre_attn_scalar"]) ** 0.5)


def _compute_rotary_divisors(config: Mapping[str, Any]) -> Tensor:
    """Return theta^(-2i/d) over the scaled rotary frequencies, float32 (d/2,)."""
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(**config), torch.device("cpu"))
    exponents = torch.arange(0, config["head_dim"], 2) / config["head_dim"]
    return config["rope_parameters"]["rope_theta"] ** -exponents / scaled


def _choose_type(weight: Tensor, matrix_type: gguf.GGMLQuantizationType) -> gguf.GGMLQuantizationType:
    """Return the number format of a tensor: vectors in float32, and float16 for rows that are no whole q8_0 blocks."""
    if weight.dim() < 2:
        return gguf.GGMLQuantizationType.F32
    block, _ = gguf.GGML_QUANT_SIZES[matrix_type]
    return matrix_type if weight.shape[-1] % block == 0 else gguf.GGMLQuantizationType.F16
