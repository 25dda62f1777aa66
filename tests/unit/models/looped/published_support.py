"""Small models in the published formats of Ouro, Huginn, HRM-Text and Nanbeige, with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import HrmTextConfig, HrmTextForCausalLM

PIECES, STEPS = 61, 4
OURO = {
    "vocab_size": PIECES, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
    "head_dim": 8, "intermediate_size": 48, "hidden_act": "silu", "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "total_ut_steps": STEPS, "early_exit_threshold": 1.0, "tie_word_embeddings": False,
}  # fmt: skip
HUGINN = {
    "n_embd": 40, "num_attention_heads": 5, "num_key_value_heads": 5, "vocab_size": PIECES, "block_size": 32,
    "intermediate_size": 64, "mean_recurrence": STEPS, "mean_backprop_depth": 2, "n_layers_in_prelude": 2,
    "n_layers_in_recurrent_block": 4, "n_layers_in_coda": 2, "rope_base": 50_000, "norm_eps": 1e-6, "bias": False,
    "tie_embeddings": True, "qk_bias": True, "injection_type": "linear", "state_init": "like-init",
    "block_class_name": "SandwichBlock", "nonlin_name": "SiLU",
}  # fmt: skip

HRM_TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8,
    "initializer_range": 0.2, "max_position_embeddings": 128, "L_cycles": 3,
}  # fmt: skip
NANBEIGE = {  # fields of Nanbeige4.2-3B, in another size
    "model_type": "nanbeige", "architectures": ["NanbeigeForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_nanbeige.NanbeigeForCausalLM"},
    "vocab_size": PIECES, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 8, "kv_channels": 8, "hidden_act": "silu", "max_position_embeddings": 64,
    "rope_theta": 70_000_000, "rope_scaling": None, "attention_bias": False, "attention_dropout": 0.0,
    "rms_norm_eps": 1e-5, "num_loops": 2, "loop_loss_weights": [], "skip_loop_final_norm": False, "pretraining_tp": 1,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def draw_tensors(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        name: float("norm" in name or "ln_f" in name) + torch.randn(shape, generator=generator) * shape[-1] ** -0.5
        for name, shape in shapes.items()
    }


def draw_ouro_weights() -> dict[str, Tensor]:
    width, inner = 32, 48
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (PIECES, width), "model.norm.weight": (width,), "lm_head.weight": (PIECES, width),
        "model.early_exit_gate.weight": (1, width), "model.early_exit_gate.bias": (1,),
    }  # fmt: skip
    for number in range(3):
        layer = f"model.layers.{number}"
        shapes |= {f"{layer}.self_attn.{letter}_proj.weight": (width, width) for letter in "qkvo"}
        shapes |= {f"{layer}.mlp.{part}_proj.weight": (inner, width) for part in ("gate", "up")}
        shapes |= {f"{layer}.mlp.down_proj.weight": (width, inner)}
        shapes |= {
            f"{layer}.{name}.weight": (width,)
            for name in (
                "input_layernorm", "input_layernorm_2", "post_attention_layernorm", "post_attention_layernorm_2"
            )
        }  # fmt: skip
    return draw_tensors(shapes)


def draw_nanbeige_weights() -> dict[str, Tensor]:
    width, inner, query, key = 24, 40, 48, 16
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (PIECES, width), "model.norm.weight": (width,), "lm_head.weight": (PIECES, width),
    }  # fmt: skip
    for number in range(3):
        layer = f"model.layers.{number}"
        shapes |= {
            f"{layer}.self_attn.q_proj.weight": (query, width), f"{layer}.self_attn.k_proj.weight": (key, width),
            f"{layer}.self_attn.v_proj.weight": (key, width), f"{layer}.self_attn.o_proj.weight": (width, query),
            f"{layer}.mlp.gate_proj.weight": (inner, width), f"{layer}.mlp.up_proj.weight": (inner, width),
            f"{layer}.mlp.down_proj.weight": (width, inner), f"{layer}.input_layernorm.weight": (width,),
            f"{layer}.post_attention_layernorm.weight": (width,),
        }  # fmt: skip
    return draw_tensors(shapes)


def draw_huginn_weights() -> dict[str, Tensor]:
    width, inner, heads = 40, 64, 5
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (PIECES, width), "transformer.ln_f.weight": (width,),
        "transformer.adapter.weight": (width, 2 * width),
    }  # fmt: skip
    for part, layers in (("prelude", 2), ("core_block", 4), ("coda", 2)):
        for number in range(layers):
            layer = f"transformer.{part}.{number}"
            shapes |= {f"{layer}.norm_{norm}.weight": (width,) for norm in (1, 2, 3, 4)}
            shapes |= {
                f"{layer}.attn.Wqkv.weight": (3 * width, width), f"{layer}.attn.proj.weight": (width, width),
                f"{layer}.attn.qk_bias": (2, 1, heads, width // heads), f"{layer}.mlp.fc.weight": (2 * inner, width),
                f"{layer}.mlp.proj.weight": (width, inner),
            }  # fmt: skip
    return draw_tensors(shapes) | {"freqs_cis": torch.zeros(1, 32, 1, 4, 2)}


def write_folder(path: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


def build_hrm_text(cycles: int = 2, vocab_size: int = PIECES, **fields: Any) -> Any:
    """Build the HRM-Text of transformers with random weights and a first low-level state that is not zero."""
    torch.manual_seed(3)
    config = HrmTextConfig(vocab_size=vocab_size, H_cycles=cycles, **{**HRM_TEXT, **fields})
    model = HrmTextForCausalLM(config).eval()
    torch.nn.init.normal_(model.model.z_L_init)
    return model
