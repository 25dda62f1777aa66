"""Greedy decoding of early-exit models against LayerSkip's published code.

`ADADEPTH_LAYERSKIP=FOLDER pytest tests/parity/test_layerskip_reference.py` compares with a checkout of
facebookresearch/LayerSkip (f42c669). Its two strategies run as published. They were written for transformers 4.50, so
three adapters make them run with the installed release: layers that take arguments by their former names and return
tuples, a `DynamicCache` with conversions from and to tuples, and an empty `colorama`, which only colours a console.

Rounds are not compared: LayerSkip also runs the last draft of a round through all layers, which gives one more token if
all drafts are accepted, and drafts from the prompt's last token, whose full depth this package has already run.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from adadepth import self_speculation
from tests.unit.models.early_exit.early_exit_support import IDS, LAYERS, build_early_exit, get_stock

_FOLDER = os.environ.get("ADADEPTH_LAYERSKIP")
pytestmark = pytest.mark.skipif(_FOLDER is None, reason="ADADEPTH_LAYERSKIP names no checkout of LayerSkip")
NEW, PROMPT = 24, 5
Pairs = tuple[tuple[Tensor, Tensor], ...]


class FormerCache(transformers.DynamicCache):
    """A `DynamicCache` with the methods that transformers 4.50 had."""

    @classmethod
    def from_legacy_cache(cls, pairs: Pairs | None) -> FormerCache:
        """Build a cache from keys and values of every layer."""
        cache = cls()
        for number, (keys, values) in enumerate(pairs or ()):
            cache.update(keys, values, number)
        return cache

    def to_legacy_cache(self) -> Pairs:
        """Return keys and values of every layer."""
        return tuple(self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        layer: Any = self.layers[number]
        return layer.keys, layer.values


class FormerLayer:
    """A layer of Llama that is called as in transformers 4.50."""

    def __init__(self, layer: Any, rotary: Any) -> None:
        self._layer, self._rotary = layer, rotary

    def __call__(
        self, states: Tensor, attention_mask: Tensor, position_ids: Tensor, past_key_value: Any, **_: Any
    ) -> tuple[Tensor, Any]:
        rotations = self._rotary(states, position_ids)
        updated = self._layer(
            states, attention_mask=attention_mask, past_key_values=past_key_value, position_embeddings=rotations
        )
        return updated, past_key_value


@pytest.fixture
def layerskip(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Load the strategies of LayerSkip and their configuration."""
    assert _FOLDER is not None
    monkeypatch.syspath_prepend(_FOLDER)
    monkeypatch.setitem(sys.modules, "colorama", ModuleType("colorama"))
    monkeypatch.setattr(transformers.cache_utils, "DynamicCache", FormerCache)
    speculative = importlib.import_module("self_speculation.self_speculation_generator")
    plain = importlib.import_module("self_speculation.autoregressive_generator")
    yield SimpleNamespace(
        speculative=speculative.SelfSpeculativeGenerationStrategy(),
        plain=plain.AutoRegressiveGenerationStrategy(),
        describe=speculative.GenerationConfig,
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == "self_speculation"]:
        del sys.modules[name]


def build_former(model: Any) -> Any:
    """Return transformers' Llama with the weights of an early-exit model, as LayerSkip's functions take it."""
    stock = get_stock(model).double()
    stock.set_attn_implementation("eager")
    layers = [FormerLayer(layer, stock.model.rotary_emb) for layer in stock.model.layers]
    network = SimpleNamespace(embed_tokens=stock.model.embed_tokens, layers=layers, norm=stock.model.norm)
    return SimpleNamespace(device=stock.device, model=network, lm_head=stock.lm_head)


def run_strategy(strategy: Any, former: Any, prompt: list[int], config: Any, ends: list[int]) -> Any:
    """Decode with a strategy of LayerSkip, which makes masks in the default type."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode():
            return strategy.generate_token_ids(former, prompt, ends, config)
    finally:
        torch.set_default_dtype(default)


def decode(strategy: Any, former: Any, layerskip: Any, row: int, ends: list[int], **options: Any) -> list[int]:
    """Decode a prompt with a strategy of LayerSkip; the tokens end before the first of `ends`."""
    config = layerskip.describe(max_steps=NEW, sample=False, **options)
    tokens: list[int] = run_strategy(strategy, former, IDS[row, :PROMPT].tolist(), config, ends).predicted_tokens
    return tokens


def draw_models(**fields: Any) -> tuple[Any, Any]:
    """Build an early-exit model and LayerSkip's model of the same weights, in float64, without an end-of-text token."""
    model = build_early_exit(**fields)
    former = build_former(model)  # gives the model the weights
    return model.double(), former


@pytest.mark.parametrize("drafts", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("exit", range(1, LAYERS))
def test_self_speculation_equals_layerskip(layerskip: Any, exit: int, drafts: int) -> None:
    model, former = draw_models()
    for row in range(len(IDS)):
        expected = decode(layerskip.speculative, former, layerskip, row, [], exit_layer=exit, num_speculations=drafts)
        output = model.generate(
            IDS[row : row + 1, :PROMPT], custom_generate=self_speculation, draft_rule=f"fixed:{exit}",
            draft_tokens=drafts, max_new_tokens=NEW,
        )  # fmt: skip
        assert output[0, PROMPT:].tolist() == expected
        assert len(expected) == NEW


@pytest.mark.parametrize("heads", [4, 2])
def test_a_text_ends_as_in_layerskip(layerskip: Any, heads: int) -> None:
    """Check texts with an end-of-text token, which LayerSkip drops, with keys shared by groups of queries."""
    model, former = draw_models(num_key_value_heads=heads)
    whole = decode(layerskip.speculative, former, layerskip, 0, [], exit_layer=2, num_speculations=3)
    for end in sorted(set(whole))[:4]:
        expected = decode(layerskip.speculative, former, layerskip, 0, [end], exit_layer=2, num_speculations=3)
        output = model.generate(
            IDS[:1, :PROMPT], custom_generate=self_speculation, draft_rule="fixed:2", draft_tokens=3,
            max_new_tokens=NEW, eos_token_id=end, pad_token_id=0,
        )  # fmt: skip
        assert output[0, PROMPT:].tolist() == [*expected, end]


@pytest.mark.parametrize("policy", ["all", "frozen", "deferred"])
@pytest.mark.parametrize("exit", range(1, LAYERS))
def test_one_fixed_exit_equals_layerskip(layerskip: Any, exit: int, policy: str) -> None:
    """Decode with the first layers alone, whose keys and values are the same under every cache policy."""
    model, former = draw_models()
    for row in range(len(IDS)):
        expected = decode(layerskip.plain, former, layerskip, row, [], exit_layer=exit)
        output = model.generate(
            IDS[row : row + 1, :PROMPT], exit_rule=f"fixed:{exit}", cache_policy=policy, max_new_tokens=NEW
        )
        assert output[0, PROMPT:].tolist() == expected


@pytest.mark.parametrize("exit", range(1, LAYERS))
def test_assisted_decoding_of_transformers_equals_layerskip(layerskip: Any, exit: int) -> None:
    model, former = draw_models()
    expected = decode(layerskip.speculative, former, layerskip, 0, [], exit_layer=exit, num_speculations=4)
    output = model.generate(IDS[:1, :PROMPT], assistant_early_exit=exit, max_new_tokens=NEW)
    assert output[0, PROMPT:].tolist() == expected
