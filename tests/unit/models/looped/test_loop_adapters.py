"""Relaxed recursion: a core with low-rank changes in every loop, and its initialisation from layers of a decoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from adadepth import LoopedConfig, LoopedForCausalLM
from adadepth.errors import ConfigError
from adadepth.models.folder import read_config
from adadepth.models.looped.loop_adapters import LoopProduct
from adadepth.models.looped.retrofit import retrofit
from tests.configs.support import configured
from tests.marks_support import keep_one_quick
from tests.unit.models.looped.looped_support import build_looped
from tests.unit.models.looped.retrofit_support import IDS, LAYERS, build_decoder, check_close

RANK = 48  # rank of every matrix in these decoders
FACTORS = ("loop_a", "loop_b")  # names of the weights of a low-rank change


def build_even_decoder(kind: str = "llama", **fields: Any) -> Any:
    """Build a decoder whose layers differ in their matrices, not in their norms."""
    source = build_decoder(kind, **fields)
    first = source.model.layers[0].state_dict()
    with torch.no_grad():
        for layer in source.model.layers:
            for name, weight in layer.named_parameters():
                if weight.dim() == 1:
                    weight.copy_(first[name])
    return source


def draw_changes(model: Any) -> Any:
    """Draw every low-rank change."""
    torch.manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(FACTORS):
                weight.normal_(std=0.2)
    return model


@pytest.mark.parametrize("kind", keep_one_quick(3, ["llama", "olmo2", "mistral"]))
@pytest.mark.parametrize(("prelude", "core", "coda", "loops"), [(0, 2, 0, 3), (1, 2, 1, 2), (1, 1, 2, 3)])
def test_full_rank_changes_equal_the_decoder(kind: str, prelude: int, core: int, coda: int, loops: int) -> None:
    source = build_even_decoder(kind)
    looped = retrofit(source, prelude=prelude, core=core, coda=coda, num_loops=loops, loop_lora_rank=RANK)
    with torch.no_grad():
        check_close(looped(IDS).logits, source(IDS).logits, 1e-4)
        cached = looped(IDS[:, :5], use_cache=True)
        check_close(looped(IDS[:, 5:], past_key_values=cached.past_key_values).logits, source(IDS).logits[:, 5:], 1e-4)
    assert len(source.model.layers) == LAYERS


def test_changes_are_the_best_low_rank_approximation() -> None:
    """Check that the squared error is the sum of the omitted squared singular values (Eckart and Young 1936)."""
    source = build_even_decoder()
    looped = retrofit(source, prelude=0, core=2, coda=0, num_loops=3, loop_lora_rank=4)
    for layer, shared in enumerate(looped.model.core):
        weights = [source.model.layers[layer + 2 * loop].mlp.up_proj.weight for loop in range(3)]
        product = shared.mlp.up_proj
        check_close(product.weight, torch.stack(weights).mean(0))
        for loop in range(3):
            error = weights[loop] - product.weight - product.loop_b[loop] @ product.loop_a[loop]
            left_out = torch.linalg.svdvals(weights[loop] - product.weight)[4:]
            torch.testing.assert_close(error.square().sum(), left_out.square().sum())


def test_without_changes_all_loops_are_the_same() -> None:
    plain, relaxed = build_looped(), build_looped(loop_lora_rank=2)
    shared = {name: weight for name, weight in relaxed.state_dict().items() if not name.endswith(FACTORS)}
    plain.load_state_dict(shared)
    fresh = LoopedForCausalLM(relaxed.config)
    assert all(not weight.any() for name, weight in fresh.named_parameters() if name.endswith("loop_b"))
    with torch.no_grad():
        for name, weight in relaxed.named_parameters():
            if name.endswith("loop_b"):
                weight.zero_()
        check_close(relaxed(IDS % 29).logits, plain(IDS % 29).logits)


def test_adapters_are_saved_and_later_loops_have_the_last_change(tmp_path: Path) -> None:
    looped = draw_changes(retrofit(build_decoder(), prelude=1, core=2, coda=1, num_loops=2, loop_lora_rank=3))
    looped.save_pretrained(tmp_path)
    loaded = LoopedForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.loop_lora_rank == 3
    with torch.no_grad():
        check_close(loaded(IDS, num_loops=4).logits, looped(IDS, num_loops=4).logits)
        longer = LoopedForCausalLM(LoopedConfig(**{**looped.config.to_dict(), "num_loops": 4})).eval()
        weights = looped.state_dict()
        for name in list(weights):
            if name.endswith(FACTORS):
                weights[name] = weights[name][[0, 1, 1, 1]]
        longer.load_state_dict(weights)
        check_close(longer(IDS).logits, looped(IDS, num_loops=4).logits)
        for loops in (1, 4):
            other = LoopedForCausalLM.from_pretrained(tmp_path, num_loops=loops).eval()
            check_close(other(IDS).logits, looped(IDS, num_loops=loops).logits)
            config = LoopedConfig.from_pretrained(tmp_path, num_loops=loops)
            check_close(
                LoopedForCausalLM.from_pretrained(tmp_path, config=config).eval()(IDS).logits, other(IDS).logits
            )


def test_checkpointing_changes_no_gradient() -> None:
    model = draw_changes(build_looped(loop_lora_rank=2, objective="mean")).train()
    gradients = []
    for recomputes in (False, True):
        model.zero_grad()
        if recomputes:
            model.gradient_checkpointing_enable()
        model(input_ids=IDS % 29, labels=IDS % 29).loss.backward()
        gradients.append({name: weight.grad.clone() for name, weight in model.named_parameters()})
    assert all(gradient.any() for name, gradient in gradients[0].items() if name.endswith(FACTORS))
    for name, gradient in gradients[0].items():
        check_close(gradients[1][name], gradient, 1e-5)


def test_macs_count_the_changes() -> None:
    plain, relaxed = build_looped(), build_looped(loop_lora_rank=2)
    with torch.no_grad():
        works = [model.price(model(IDS % 29).trace) for model in (plain, relaxed)]
    products = [layer for layer in relaxed.modules() if isinstance(layer, LoopProduct)]
    loop = sum(2 * (layer.in_features + layer.out_features) for layer in products)
    for name in ("executed", "dense", "adaptive", "full"):
        added = getattr(works[1], name) - getattr(works[0], name)
        assert float(added) == IDS.numel() * relaxed.config.num_loops * loop


def test_invalid_settings_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^cache_policy=last: must be all with loop_lora_rank=2$"):
        LoopedConfig(loop_lora_rank=2, cache_policy="last")
    with pytest.raises(ConfigError, match=r"model.cache_policy=last: must be all with model.loop_lora_rank=2"):
        configured("loop_tiny", "model.loop_lora_rank=2", "model.cache_policy=last")
    with pytest.raises(ConfigError, match="num_loops=3 with loop_lora_rank: 8 layers, but the decoder has 6"):
        retrofit(build_decoder(), prelude=1, core=2, coda=1, num_loops=3, loop_lora_rank=2)
    kinds = ["full_attention", "sliding_attention"] * 3
    source = build_decoder("qwen2", layer_types=kinds, use_sliding_window=True, sliding_window=3, max_window_layers=0)
    with pytest.raises(ConfigError, match="core=3, loop_lora_rank: a layer of the core stands for layers of different"):
        retrofit(source, prelude=0, core=3, coda=0, num_loops=2, loop_lora_rank=2)


def test_older_configurations_have_no_changes(tmp_path: Path) -> None:
    build_looped(loop_lora_rank=None).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    fields = json.loads(file.read_text(encoding="utf-8"))
    del fields["loop_lora_rank"]
    file.write_text(json.dumps(fields), encoding="utf-8")
    assert read_config("model.pretrained", str(tmp_path)).loop_lora_rank is None
    assert LoopedForCausalLM.from_pretrained(tmp_path).config.loop_lora_rank is None
