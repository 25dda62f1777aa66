"""Exits of a frozen network: stored without the network, attached to it again, and removed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BertForSequenceClassification, LlamaForCausalLM

from adadepth import EarlyExitForCausalLM, EarlyExitForSequenceClassification, LoopedForCausalLM, add_exits
from adadepth.errors import CheckpointError, ConfigError
from adadepth.models.build import build_language_model
from adadepth.models.early_exit.settings import EarlyExitSettings
from tests.unit.models.early_exit.early_exit_support import IDS, PIECES, build_early_exit, draw_weights
from tests.unit.models.looped.looped_support import build_looped

WEIGHTS = "model.safetensors"
KINDS: dict[str, dict[str, Any]] = {
    "norm": {"exit_heads": "norm"},
    "own": {"exit_heads": "own"},
    "mlp": {"exit_heads": "mlp", "exit_gate": True},
    "gate": {"exit_gate": True},
}


def save_stock(folder: Path, **fields: Any) -> str:
    """Save a Llama of transformers with random weights."""
    draw_weights(build_early_exit(**fields)._build_stock()).save_pretrained(folder)
    return str(folder)


def train_exits(base: str, **fields: Any) -> Any:
    """Build exits on a frozen network and draw their weights, as if they had been trained."""
    torch.manual_seed(5)
    model = add_exits(base, **{"exit_layers": [1, 3], "trains": "exits", **fields})
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(0.1 * torch.randn_like(weight))
    return model.eval()


def predict_all(model: Any) -> list[torch.Tensor]:
    """Return the logits of all exits, and those of the gate if there is one."""
    with torch.no_grad():
        output = model(IDS, run_all_steps=True)
    gates = [] if output.halting_logits is None else [output.halting_logits]
    return [output.step_logits[:, :], *gates]


def check_same(model: Any, other: Any) -> None:
    """Compare weights bit for bit, and predictions up to rounding, which depends on memory alignment."""
    weights, other_weights = model.state_dict(), other.state_dict()
    assert weights.keys() == other_weights.keys()
    assert all(torch.equal(weight, other_weights[name]) for name, weight in weights.items())
    for pair in zip(predict_all(model), predict_all(other), strict=True):
        torch.testing.assert_close(*pair, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_stored_exits_and_their_network_give_the_model(kind: str, is_tied: bool, tmp_path: Path) -> None:
    model = train_exits(save_stock(tmp_path / "base", tie_word_embeddings=is_tied), **KINDS[kind])
    model.save_pretrained(tmp_path / "exits", save_base=False)
    stored = load_file(tmp_path / "exits" / WEIGHTS)
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert stored.keys() == trained.keys()
    numbers = sum(weight.numel() for weight in trained.values())
    assert (tmp_path / "exits" / WEIGHTS).stat().st_size < 4 * numbers + 8192
    check_same(EarlyExitForCausalLM.from_pretrained(tmp_path / "exits").eval(), model)
    check_same(AutoModelForCausalLM.from_pretrained(tmp_path / "exits").eval(), model)


def test_a_loaded_model_is_saved_in_the_same_form_by_default(tmp_path: Path) -> None:
    model = train_exits(save_stock(tmp_path / "base"), exit_heads="own")
    model.save_pretrained(tmp_path / "exits", save_base=False)
    loaded = EarlyExitForCausalLM.from_pretrained(tmp_path / "exits")
    loaded.save_pretrained(tmp_path / "again")
    assert load_file(tmp_path / "again" / WEIGHTS).keys() == load_file(tmp_path / "exits" / WEIGHTS).keys()
    loaded.save_pretrained(tmp_path / "whole", save_base=True)
    (tmp_path / "base" / WEIGHTS).unlink()
    whole = EarlyExitForCausalLM.from_pretrained(tmp_path / "whole").eval()
    check_same(whole, model)
    assert whole.config.save_base
    with pytest.raises(ConfigError, match=r"^base_model=B: only for exits without their network"):
        EarlyExitForCausalLM.from_pretrained(tmp_path / "whole", base_model="B")


def test_a_network_in_half_precision_is_recognised(tmp_path: Path) -> None:
    """Load a network of bfloat16 in float32 for training, which changes none of its weights."""
    stock = draw_weights(build_early_exit()._build_stock()).bfloat16()
    stock.save_pretrained(tmp_path / "base")
    train_exits(str(tmp_path / "base"), exit_heads="norm").save_pretrained(tmp_path / "exits", save_base=False)
    loaded = EarlyExitForCausalLM.from_pretrained(tmp_path / "exits", dtype=torch.bfloat16)
    assert loaded.dtype == torch.bfloat16
    loaded.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / WEIGHTS).is_file()


def test_a_moved_network_is_accepted_and_another_one_refused(tmp_path: Path) -> None:
    model = train_exits(save_stock(tmp_path / "base"), exit_heads="norm")
    model.save_pretrained(tmp_path / "exits", save_base=False)
    stock = LlamaForCausalLM.from_pretrained(tmp_path / "base")
    (tmp_path / "base").rename(tmp_path / "moved")
    with pytest.raises(CheckpointError, match="has exits alone; name their network with base_model="):
        EarlyExitForCausalLM.from_pretrained(tmp_path / "exits")
    moved = EarlyExitForCausalLM.from_pretrained(tmp_path / "exits", base_model=tmp_path / "moved")
    check_same(moved.eval(), model)
    assert moved.config.base_config.name_or_path == str(tmp_path / "moved")
    with torch.no_grad():
        stock.model.layers[2].mlp.up_proj.weight[0, 0] += 1e-3
    stock.save_pretrained(tmp_path / "other")
    message = re.escape(f"base_model={tmp_path / 'other'}: its weights differ from those on which")
    with pytest.raises(CheckpointError, match=message) as raised:
        EarlyExitForCausalLM.from_pretrained(tmp_path / "exits", base_model=str(tmp_path / "other"))
    assert "\n" not in str(raised.value)


def _change_weight(model: Any) -> None:
    with torch.no_grad():
        model.model.embed_tokens.weight[0, 0] += 1


@pytest.mark.parametrize(
    ("fields", "is_changed", "options", "message"),
    [
        ({"trains": "all"}, False, {}, "save_base=False: these exits have no frozen network in another folder"),
        ({}, True, {}, "save_base=False: the weights of the network are no longer those of "),
        ({}, False, {"layout": "llama"}, "save_base=False: layout=llama is that of the network"),
    ],
)
def test_a_network_stored_nowhere_else_is_not_omitted(
    fields: Mapping[str, Any], is_changed: bool, options: Mapping[str, Any], message: str, tmp_path: Path
) -> None:
    model = train_exits(save_stock(tmp_path / "base"), exit_heads="norm", **fields)
    if is_changed:
        _change_weight(model)
    with pytest.raises(ConfigError, match=re.escape(message)):
        model.save_pretrained(tmp_path / "exits", save_base=False, **options)
    assert not (tmp_path / "exits").exists()
    model.save_pretrained(tmp_path / "whole")  # the refused call changed nothing
    assert EarlyExitForCausalLM.from_pretrained(tmp_path / "whole").config.save_base


def test_exits_of_a_classifier_are_stored_apart(tmp_path: Path) -> None:
    model_class = EarlyExitForSequenceClassification
    stock = draw_weights(build_early_exit(model_class, "bert", num_labels=3)._build_stock())
    stock.save_pretrained(tmp_path / "base")
    fields = {"model_class": model_class, "exit_heads": "own"}
    model = train_exits(str(tmp_path / "base"), **fields)
    model.save_pretrained(tmp_path / "exits", save_base=False)
    loaded = model_class.from_pretrained(tmp_path / "exits").eval()
    with torch.no_grad():
        first, second = (part(IDS, run_all_steps=True).step_logits for part in (model, loaded))
    assert torch.equal(first, second)
    with pytest.raises(CheckpointError, match="contains exits of EarlyExitForSequenceClassification, not EarlyExitFor"):
        EarlyExitForCausalLM.from_pretrained(tmp_path / "exits")
    BertForSequenceClassification(stock.config).bert.save_pretrained(tmp_path / "headless")
    with pytest.raises(ConfigError, match=r"^model.save_base=false: .* does not have 'classifier.bias'"):
        train_exits(str(tmp_path / "headless"), **fields, save_base=False)


@pytest.mark.parametrize("kind", KINDS)
def test_removing_the_exits_restores_the_frozen_network(kind: str, tmp_path: Path) -> None:
    base = save_stock(tmp_path / "base")
    model = train_exits(base, **KINDS[kind], exit_rule="margin:0.5")
    model.drop_exits()
    model.save_pretrained(tmp_path / "plain", layout="llama")
    before, after = (load_file(Path(folder) / WEIGHTS) for folder in (base, tmp_path / "plain"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    plain, stock = (LlamaForCausalLM.from_pretrained(folder).eval() for folder in (tmp_path / "plain", base))
    with torch.no_grad():
        assert torch.equal(plain(IDS).logits, stock(IDS).logits)
        assert torch.equal(model(IDS).logits, add_exits(base)(IDS).logits)
    model.save_pretrained(tmp_path / "shared")  # as an early-exit model whose exits have the head of the network
    assert EarlyExitForCausalLM.from_pretrained(tmp_path / "shared").config.exit_heads == "shared"


def test_a_looped_model_has_no_exits_to_remove() -> None:
    model = build_looped()
    assert isinstance(model, LoopedForCausalLM)
    with pytest.raises(ConfigError, match=r"^drop_exits=true: LoopedForCausalLM has no early exits"):
        model.drop_exits()


def test_other_exits_of_a_trained_model_are_refused_with_advice(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    build_early_exit(exit_layers=[1, 3]).save_pretrained(folder)
    settings = EarlyExitSettings(pretrained=str(folder), exit_layers=[2], exit_heads="own")
    advice = f"export checkpoint={folder} export.layout=llama export.drop_exits=true export.folder=FOLDER, then model.p"
    with pytest.raises(ConfigError, match=re.escape(advice)) as caught:
        build_language_model(settings, PIECES)
    assert "model.exit_layers=[2], but the pretrained model has [1, 3]" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        build_language_model(EarlyExitSettings(pretrained=str(folder), hidden_size=64, exit_layers=[2]), PIECES)
    assert "mode=export" not in str(caught.value), "the network has another width"
