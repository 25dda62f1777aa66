"""Small folders of retrofitted decoders as published: Huginn's model type, with unused fields of Huginn."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

PIECES, WIDTH, HEADS, SHARED, INNER = 61, 32, 4, 2, 48
PARTS = {"prelude": 2, "core_block": 2, "coda": 1}
LLAMA3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
          "rope_type": "llama3"}  # fmt: skip
KINDS = ("llama", "tinyllama", "olmo2", "gemma2")


def name_decoder(kind: str) -> str:
    """Return the decoder of a kind: TinyLlama's layers are those of Llama, without scaled positions."""
    return "llama" if kind == "tinyllama" else kind


def build_config_fields(kind: str, vocab_size: int = PIECES) -> dict[str, Any]:
    """Return the content of config.json, with unused `block_class_name`, `rope_base` and special tokens."""
    gemma = kind == "gemma2"
    return {
        "model_type": "huginn_raven", "architectures": ["RavenForCausalLM"], "block_class_name": "SandwichBlock",
        "auto_map": {"AutoConfig": "raven_config_minimal.RavenConfig",
                     "AutoModelForCausalLM": "raven_modeling_minimal.RavenForCausalLM"},
        "norm_class_name": "RMSNorm_llama", "nonlin_name": "SiLU", "injection_type": "linear",
        "state_init": "like-init", "bias": False, "qk_bias": False, "tie_embeddings": False, "rope_base": 500000.0,
        "rope_theta": 10000.0, "rope_scaling": LLAMA3 if kind == "llama" else None, "norm_eps": 1e-5,
        "n_embd": WIDTH, "n_heads": HEADS, "num_key_value_heads": SHARED,
        "head_dim": 12 if gemma else WIDTH // HEADS, "intermediate_size": INNER, "vocab_size": vocab_size,
        "padded_vocab_size": vocab_size, "block_size": 32, "max_position_embeddings": 128, "mean_recurrence": 4,
        "mean_backprop_depth": 2, "n_layers": sum(PARTS.values()), "n_layers_in_prelude": PARTS["prelude"],
        "n_layers_in_recurrent_block": PARTS["core_block"], "n_layers_in_coda": PARTS["coda"],
        "init_values": {"std": 0.0087, "embed_scale": math.sqrt(WIDTH) if gemma else 1.0},
        "bos_token_id": 65504, "eos_token_id": 65505, "pad_token_id": 65509, "torch_dtype": "float32",
        **({"query_pre_attn_scalar": 256} if gemma else {}),
    }  # fmt: skip


def draw_weights(kind: str, vocab_size: int = PIECES) -> dict[str, Tensor]:
    wide = build_config_fields(kind)["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (vocab_size, WIDTH), "transformer.adapter.weight": (WIDTH, 2 * WIDTH),
        "transformer.ln_f.weight": (WIDTH,), "lm_head.weight": (vocab_size, WIDTH),
    }  # fmt: skip
    for part, layers in PARTS.items():
        for number in range(layers):
            p = f"transformer.{part}.{number}."
            shapes |= {f"{p}norm_{norm}.weight": (WIDTH,) for norm in range(1, 5 if kind == "gemma2" else 3)}
            shapes |= {
                f"{p}attn.Wqkv.weight": ((HEADS + 2 * SHARED) * wide, WIDTH),
                f"{p}attn.proj.weight": (WIDTH, HEADS * wide), f"{p}mlp.fc.weight": (2 * INNER, WIDTH),
                f"{p}mlp.proj.weight": (WIDTH, INNER),
            }  # fmt: skip
            if kind == "olmo2":
                shapes |= {f"{p}attn.q_norm.weight": (HEADS * wide,), f"{p}attn.k_norm.weight": (SHARED * wide,)}
    generator = torch.Generator().manual_seed(3)
    weights = {}
    for name, shape in shapes.items():
        is_norm = "norm" in name or "ln_f" in name
        spread, middle = (0.3, float(kind != "gemma2")) if is_norm else (shape[-1] ** -0.5, 0.0)
        weights[name] = middle + spread * torch.randn(shape, generator=generator)
    return weights


def write_retrofit(path: Path, kind: str, weights: dict[str, Tensor] | None = None, **changes: Any) -> Path:
    """Write a folder; `changes` replace fields of config.json."""
    path.mkdir(parents=True, exist_ok=True)
    size = changes.get("vocab_size", PIECES)
    (path / "config.json").write_text(json.dumps(build_config_fields(kind, size) | changes))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [65505, 65508], "pad_token_id": 65509}))
    save_file(
        draw_weights(kind, size) if weights is None else weights, path / "model.safetensors", metadata={"format": "pt"}
    )
    return path
