"""Small routed models with random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adadepth.models.routed.configuration import RoutedConfig
from adadepth.models.routed.heads import RoutedForCausalLM
from tests.unit.models.early_exit.early_exit_support import check_close, draw_weights

__all__ = ["IDS", "LEFT", "LENGTH", "PIECES", "RIGHT", "ROUTERS", "SIZES", "WIDTH", "build_routed", "check_close"]

PIECES, WIDTH, LENGTH = 53, 16, 10
IDS = torch.randint(3, PIECES, (3, LENGTH), generator=torch.Generator().manual_seed(5))
RIGHT, LEFT = torch.ones_like(IDS), torch.ones_like(IDS)
RIGHT[0, 6:], RIGHT[1, 9:] = 0, 0
LEFT[0, :4], LEFT[1, :1] = 0, 0
SIZES = {
    "vocab_size": PIECES, "hidden_size": WIDTH, "num_hidden_layers": 4, "num_attention_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
RECURSIONS: dict[str, Any] = {"recursions": 3, "prelude": 1, "coda": 1, "choice_bias": 0.6}
SINGLE: dict[str, Any] = {"capacities": [0.4], "choice_bias": 0.2}
# Every kind of router with its possible sources of keys and values.
ROUTERS: dict[str, dict[str, Any]] = {
    **{f"expert {source}": RECURSIONS | {"keys_and_values": source} for source in ("selected", "all", "first")},
    "expert predictor": RECURSIONS | {"causal_choice": "predictor"},
    "expert untied": RECURSIONS | {"sharing": "none", "num_hidden_layers": 5, "gating": "update", "gate_scale": 1.0},
    "expert in a row": RECURSIONS | {"sharing": "sequence", "keys_and_values": "first", "num_hidden_layers": 4},
    **{
        f"layers {source}": SINGLE | {"gating": "update", "gate_scale": 1.0, "keys_and_values": source}
        for source in ("selected", "all")
    },
    **{
        f"token {source}": RECURSIONS | {"router": "token", "keys_and_values": source}
        for source in ("selected", "all", "first")
    },
    "token bias": RECURSIONS | {"router": "token", "balance": "bias", "gating": "none"},
    "threshold": SINGLE | {"router": "threshold", "keys_and_values": "all"},
    "adapters": SINGLE | {"router": "threshold", "keys_and_values": "all", "adapter_size": 6},
}


def draw_routers(model: Any, spread: float = 1.0) -> Any:
    """Draw routers that select some tokens and not others."""
    torch.manual_seed(4)
    with torch.no_grad():
        for router in (*model.routers, *model.predictors):
            for weight in router.parameters():
                weight.copy_(spread * torch.randn_like(weight) * (1 if weight.dim() == 1 else weight.shape[-1] ** -0.5))
        if model.config.balance == "bias":
            model.depth_bias.copy_(torch.linspace(-0.1, 0.2, len(model.depth_bias)))
    return model


def build_routed(model_class: Any = RoutedForCausalLM, base: str = "llama", **fields: Any) -> Any:
    """Build a model in float64 and evaluation mode."""
    model = draw_weights(model_class(RoutedConfig(base=base, **{**SIZES, **fields})))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embed" in name and weight.dim() == 2:
                weight.copy_(torch.randn_like(weight))
    return draw_routers(model).double()


def select_real(values: Tensor, mask: Tensor) -> Tensor:
    """Return the values of tokens that are no padding."""
    return values[mask.bool()]
