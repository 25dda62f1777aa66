"""Quantised models: what bitsandbytes replaces, what stays as it is, and low-rank adapters on top."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BitsAndBytesConfig

import adadepth
from adadepth.models.routed.routers import Router
from adadepth.models.shared.layers import Product

SIZES: dict[str, Any] = {
    "vocab_size": 53, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "initializer_range": 0.1,
}  # fmt: skip
ALBERT = {**SIZES, "embedding_size": 32, "num_hidden_layers": 3}
MODELS: dict[str, tuple[Any, Any]] = {
    "looped": (adadepth.LoopedForCausalLM, adadepth.LoopedConfig(**SIZES, core=2, num_loops=2, gate=True)),
    "early_exit": (adadepth.EarlyExitForCausalLM, adadepth.EarlyExitConfig(**SIZES, num_hidden_layers=3)),
    "routed": (adadepth.RoutedForCausalLM, adadepth.RoutedConfig(**SIZES, num_hidden_layers=3, recursions=3)),
    "albert_act": (adadepth.AlbertActForTokenClassification, adadepth.AlbertActConfig(**ALBERT)),
    "ponder_albert": (adadepth.PonderAlbertForSequenceClassification, adadepth.PonderAlbertConfig(**ALBERT)),
}
IDS = torch.randint(5, 53, (2, 9), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("family", MODELS)
def test_a_model_to_be_quantised_has_plain_linear_layers(family: str) -> None:
    model_class, config = MODELS[family]
    config = type(config).from_dict(config.to_dict())
    config.quantization_config = BitsAndBytesConfig(load_in_8bit=True)
    model = model_class(config)
    assert not [layer for layer in model.modules() if type(layer) is Product]
    assert sum(type(layer) is nn.Linear for layer in model.modules()) >= 6


def draw(family: str, folder: Path) -> Any:
    model_class, config = MODELS[family]
    torch.manual_seed(3)
    model = model_class(config).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("family", MODELS)
def test_a_quantised_model_predicts_nearly_as_before(family: str, bits: int, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    model = draw(family, tmp_path)
    settings: Any = {8: {"load_in_8bit": True}, 4: {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}}[bits]
    quantised = type(model).from_pretrained(tmp_path, quantization_config=BitsAndBytesConfig(**settings)).eval()
    replaced = [layer for layer in quantised.modules() if type(layer).__module__.startswith("bitsandbytes")]
    assert len(replaced) >= 6
    for layer in quantised.modules():
        if isinstance(layer, Router):
            assert layer.output.weight.dtype == torch.float32
    with torch.no_grad():
        logits = [network(IDS).logits.float().flatten() for network in (model, quantised)]
    assert float(torch.corrcoef(torch.stack(logits))[0, 1]) > {8: 0.97, 4: 0.8}[bits]


def test_adapters_learn_on_a_quantised_model(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    peft = pytest.importorskip("peft")
    draw("looped", tmp_path)
    settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32)
    base = adadepth.LoopedForCausalLM.from_pretrained(tmp_path, quantization_config=settings)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(peft.prepare_model_for_kbit_training(base), config)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    losses = []
    for _ in range(20):
        loss = model(input_ids=IDS, labels=IDS).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.1
