"""Early-exit language models written as plain decoders of transformers, the format of LayerSkip's checkpoints."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from adadepth import EarlyExitForMaskedLM, add_exits
from adadepth.errors import ConfigError
from tests.marks_support import keep_one_quick
from tests.unit.models.early_exit.early_exit_support import DECODERS, IDS, build_early_exit, check_close

SCALED = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}  # fmt: skip


@pytest.mark.parametrize(("kind", "is_tied"), keep_one_quick(5, product(DECODERS, (False, True))))
@torch.no_grad()
def test_full_depth_is_the_decoder_of_transformers(kind: str, is_tied: bool, tmp_path: Path) -> None:
    model = build_early_exit(base=kind, tie_word_embeddings=is_tied, num_key_value_heads=2, exit_layers=[2])
    model.save_pretrained(tmp_path, layout=kind)
    stock, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] | report["unexpected_keys"]
    check_close(model(IDS).logits, stock.eval()(IDS).logits)
    loaded = add_exits(str(tmp_path))
    assert torch.equal(loaded(IDS).logits, model(IDS).logits)
    loaded = add_exits(str(tmp_path), exit_layers=[2])
    for rule in ("fixed:1", "margin:0.1"):
        assert torch.equal(loaded(IDS, exit_rule=rule).logits, model(IDS, exit_rule=rule).logits)


@pytest.mark.parametrize("kind", keep_one_quick(4, ("llama", "smollm3", "gemma2", "qwen3")))
@torch.no_grad()
def test_a_fixed_exit_is_the_truncated_decoder(kind: str, tmp_path: Path) -> None:
    model = build_early_exit(base=kind, exit_layers=[1, 3])
    for rule, layers in (("fixed:1", 1), ("fixed:2", 3), ("fixed:3", 4)):
        model.config.exit_rule = rule
        model.save_pretrained(tmp_path / rule, layout=kind)
        stock = AutoModelForCausalLM.from_pretrained(tmp_path / rule).eval()
        assert stock.config.num_hidden_layers == layers
        check_close(stock(IDS).logits, model(IDS).logits)


def test_scaled_positions_are_written_for_older_versions_too(tmp_path: Path) -> None:
    model = build_early_exit()
    model.config.base_config.rope_parameters = dict(SCALED)
    model.save_pretrained(tmp_path, layout="llama")
    fields = json.loads((tmp_path / "config.json").read_text())
    assert fields["rope_theta"] == 5e5
    assert fields["rope_scaling"] == {name: value for name, value in SCALED.items() if name != "rope_theta"}
    assert LlamaForCausalLM.from_pretrained(tmp_path).config.rope_parameters == SCALED
    for name in ("rope_parameters", "rope_scaling"):  # each is sufficient
        (tmp_path / "config.json").write_text(json.dumps({key: fields[key] for key in fields if key != name}))
        assert LlamaForCausalLM.from_pretrained(tmp_path).config.rope_parameters == SCALED


@pytest.mark.parametrize(
    ("layout", "fields", "message"),
    [
        ("llama", {"exit_heads": "own"}, "exit_heads=own: layout=llama needs exit_heads=shared"),
        ("llama", {"exit_gate": True}, "exit_gate=True: layout=llama needs exit_gate=False"),
        ("llama", {"exit_rule": "margin:0.5"}, "exit_rule=margin:0.5: layout=llama needs exit_rule=None or fixed:N"),
        ("llama", {"base": "qwen3"}, "layout=llama: its layers are those of qwen3; set layout=qwen3"),
        ("ouro", {}, "layout=ouro: must be llama, qwen2"),
    ],
)
def test_exits_with_weights_or_a_rule_are_refused_in_one_line(
    layout: str, fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as raised:
        build_early_exit(**fields).save_pretrained(tmp_path / "a", layout=layout)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "a").exists()


def test_encoders_have_no_layout(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="layout=llama: EarlyExitForMaskedLM has none"):
        build_early_exit(EarlyExitForMaskedLM, "bert").save_pretrained(tmp_path, layout="llama")
