"""Small early-exit models with random weights, and the networks of transformers inside them."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from adadepth import (
    EarlyExitConfig,
    EarlyExitForCausalLM,
    EarlyExitForSequenceClassification,
    EarlyExitForTokenClassification,
)
from adadepth.models.shared.network_model import split_model

PIECES, WIDTH, LENGTH, LAYERS = 53, 32, 9, 4
IDS = torch.randint(3, PIECES, (3, LENGTH), generator=torch.Generator().manual_seed(1))
MASK = torch.ones_like(IDS)
MASK[0, 6:] = 0
MASK[1, 8:] = 0
PADDED = IDS * MASK
SIZES = {
    "vocab_size": PIECES, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "intermediate_size": 48, "embedding_size": 24, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
ENCODERS = ("bert", "roberta", "albert", "modernbert", "electra", "distilbert")
DECODERS = ("llama", "qwen2", "qwen3", "olmo2", "smollm3", "gemma2", "mistral")
LABELS = torch.tensor([0, 2, 1])
HEADS: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "words": (EarlyExitForCausalLM, {}, IDS),
    "texts": (EarlyExitForSequenceClassification, {"base": "bert", "num_labels": 3}, LABELS),
    "tokens": (EarlyExitForTokenClassification, {"base": "bert", "num_labels": 3}, IDS % 3),
    "texts by a decoder": (EarlyExitForSequenceClassification, {"num_labels": 3}, LABELS),
}


def draw_weights(model: Any) -> Any:
    """Draw every weight, so that no two weights are equal by chance."""
    torch.manual_seed(3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.3 if weight.dim() == 1 else weight.shape[-1] ** -0.5
            weight.copy_(float("norm" in name.lower() and weight.dim() == 1) + spread * torch.randn_like(weight))
    return model.eval()


def build_early_exit(model_class: Any = EarlyExitForCausalLM, base: str = "llama", **fields: Any) -> Any:
    """Build a model in evaluation mode."""
    return draw_weights(model_class(EarlyExitConfig(base=base, **{**SIZES, **fields})))


def get_stock(model: Any, layers: int | None = None) -> Any:
    """Return the model of transformers with the same weights, whole or with its first layers only."""
    stock = draw_weights(model._build_stock())
    parts = split_model(copy.deepcopy(stock))
    weights = {f"model.{name}": weight for name, weight in parts.base.state_dict().items()}
    weights |= {f"head.{name}": weight for name, weight in parts.head.state_dict().items()}
    model.load_state_dict(weights)
    if layers is not None:
        for owner in stock.modules():
            for name, part in owner.named_children():
                if isinstance(part, torch.nn.ModuleList) and len(part) == LAYERS:
                    setattr(owner, name, part[:layers])
        config = copy.deepcopy(stock.config)  # shared with the model
        config.num_hidden_layers = layers
        for part in stock.base_model.modules():
            if hasattr(part, "config"):
                part.config = config
    return stock


def check_close(actual: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), atol=tolerance, rtol=tolerance)


def build_config(layers: int, **fields: Any) -> Any:
    """Build a configuration with an exit after every layer."""
    defaults = {
        "exits": list(range(1, layers + 1)), "num_hidden_layers": layers, "exit_weights": "uniform", "exit_scale": 1.0,
        "exit_curriculum": "none", "rotation": 4, "trains": "all", "layer_dropout": 0.0, "dropout_growth": "none",
    }  # fmt: skip
    return SimpleNamespace(**{**defaults, **fields})
