"""Small looped models with random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from adadepth import LoopedConfig, LoopedForCausalLM
from adadepth.models.looped.retrofit import retrofit

PIECES, WIDTH, LENGTH = 53, 32, 9
IDS = torch.randint(0, PIECES, (3, LENGTH), generator=torch.Generator().manual_seed(1))
SIZES = {"vocab_size": PIECES, "hidden_size": WIDTH, "num_attention_heads": 4, "intermediate_size": 48}
OURO = {"core": 2, "num_loops": 4, "norms": "branch", "state_norm": "fed", "gate": True}
HUGINN = {
    "prelude": 1, "core": 2, "coda": 1, "num_loops": 3, "norms": "sandwich", "state_norm": "read",
    "injection": "linear", "start": "drawn", "qk_bias": True, "rope_pairs": True, "scale_embeddings": True,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"prelude": 1, "core": 1, "coda": 1, "num_loops": 2},
    "ouro": OURO,
    "huginn": HUGINN,
    "fully looped": {"core": 2, "num_loops": 3, "state_norm": "fed", "injection": "restart", "queries": "previous"},
    "damped": {"prelude": 1, "core": 2, "coda": 1, "num_loops": 4, "damping": None},
    "half way, from zeros, input added": {
        "core": 2, "num_loops": 3, "damping": 0.5, "start": "zeros", "injection": "add", "prelude": 1, "coda": 2,
        "state_norm": "fed",
    },
    "two states": {
        "core": 2, "low_layers": 1, "low_cycles": 2, "num_loops": 3, "state_norm": "fed", "attention_gate": True,
        "norm_weights": False, "embedding_scale": 3.0,
    },
    "two states, and everything else": {
        "prelude": 1, "core": 1, "low_layers": 2, "low_cycles": 3, "coda": 1, "num_loops": 2, "damping": 0.5,
        "injection": "linear", "gate": True, "num_key_value_heads": 2,
    },
    "sliding window": {
        "prelude": 1, "core": 1, "coda": 1, "num_loops": 3, "state_norm": "fed", "injection": "add",
        "sliding_window": 3,
    },
    "few keys, wide heads": {"core": 2, "num_loops": 2, "num_key_value_heads": 2, "head_dim": 10},
}  # fmt: skip


def build_looped(model_class: Any = LoopedForCausalLM, **fields: Any) -> Any:
    """Build a model with all weights random, so that no two of them are equal by chance."""
    torch.manual_seed(3)
    model = model_class(LoopedConfig(**{**SIZES, **fields}))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            middle = float("norm" in name)
            weight.copy_(middle + torch.randn_like(weight) * (0.3 if weight.dim() == 1 else weight.shape[-1] ** -0.5))
        for _, start in model.named_buffers():  # of a low-level stack
            start.normal_()
    return model.eval()


def build_looped_llama() -> Any:
    torch.manual_seed(5)
    sizes = {**SIZES, "eos_token_id": None, "num_key_value_heads": 2, "num_hidden_layers": 4, "initializer_range": 0.3}
    return retrofit(LlamaForCausalLM(LlamaConfig(**sizes)).eval(), prelude=1, core=2, coda=1, num_loops=3)


def check_close(actual: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), atol=tolerance, rtol=tolerance)
