"""Small decoders of transformers with random weights, which tests turn into looped models."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

PIECES, LENGTH, LAYERS = 53, 9, 6
IDS = torch.randint(0, PIECES, (3, LENGTH), generator=torch.Generator().manual_seed(1))
SIZES = {
    "vocab_size": PIECES, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "num_hidden_layers": LAYERS, "max_position_embeddings": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
DECODERS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 12},
    "olmo": {},
    "olmo2": {},
    "mistral": {"sliding_window": 4},
    "smollm3": {},
    "phi3": {},
    "cohere": {"logit_scale": 0.0625},
    "cohere2": {"logit_scale": 0.0625, "sliding_window": 4},
    "granite": {"logits_scaling": 8.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.5},
    "gemma2": {"head_dim": 12, "query_pre_attn_scalar": 20, "final_logit_softcapping": 2.0},
}  # fmt: skip


def build_decoder(kind: str = "llama", **fields: Any) -> Any:
    config = AutoConfig.for_model(kind, **{**SIZES, **DECODERS.get(kind, {}), **fields})
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.3 if weight.dim() == 1 else weight.shape[-1] ** -0.5
            weight.copy_(float("norm" in name) + spread * torch.randn_like(weight))
    return model.eval()


def check_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)
