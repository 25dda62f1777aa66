"""Nanbeige as published, loaded and written: its equations, exits and refused variants."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from adadepth import LoopedConfig, LoopedForCausalLM
from adadepth.errors import CheckpointError, ConfigError
from tests.marks_support import keep_one_quick
from tests.unit.models.looped import published_code
from tests.unit.models.looped.looped_support import IDS as SMALL_IDS
from tests.unit.models.looped.looped_support import build_looped, check_close
from tests.unit.models.looped.plain_looped import run_plain_nanbeige
from tests.unit.models.looped.published_support import NANBEIGE, PIECES, draw_nanbeige_weights, write_folder

LENGTH = 9
IDS = torch.randint(0, PIECES, (2, LENGTH), generator=torch.Generator().manual_seed(1))
GREEDY = {"max_new_tokens": 7, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}


def load_published(folder: Path, **changes: Any) -> Any:
    """Write a folder as published, with some fields changed, and load it."""
    return LoopedForCausalLM.from_pretrained(write_folder(folder, NANBEIGE | changes, draw_nanbeige_weights()))


# ---- Equations


@pytest.mark.parametrize("skips", [False, True])
def test_every_exit_equals_the_published_model_with_fewer_loops(skips: bool, tmp_path: Path) -> None:
    model = load_published(tmp_path, skip_loop_final_norm=skips)
    step_logits = model(IDS, num_loops=4, run_all_steps=True).step_logits
    fields = NANBEIGE | {"skip_loop_final_norm": skips}
    for loops in (1, 2, 3, 4):
        expected = torch.stack([run_plain_nanbeige(fields, draw_nanbeige_weights(), ids, loops) for ids in IDS])
        check_close(step_logits[:, :, loops - 1], expected)
        check_close(model(IDS, num_loops=loops).logits, expected)
        check_close(model(IDS, num_loops=4, exit_rule=f"fixed:{loops}").logits, expected)
    check_close(model(IDS).logits, step_logits[:, :, 1])


@published_code.require_files("modeling_nanbeige.py", "configuration_nanbeige.py")
@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("loops", [1, 2, 4])
def test_logits_equal_the_published_code(loops: int, skips: bool, tmp_path: Path) -> None:
    theirs = published_code.build_nanbeige(**NANBEIGE | {"num_loops": loops, "skip_loop_final_norm": skips})
    write_folder(tmp_path, NANBEIGE | {"num_loops": loops, "skip_loop_final_norm": skips}, theirs.state_dict())
    with torch.no_grad():
        check_close(LoopedForCausalLM.from_pretrained(tmp_path)(IDS).logits, theirs(IDS, use_cache=False).logits)


# ---- Exits, caches and budgets


@pytest.mark.parametrize("rule", [None, "fixed:1", "margin:0.1"])
def test_a_cache_changes_no_generated_token(rule: str | None, tmp_path: Path) -> None:
    """Generate with a cache, which has an entry for every layer of every loop."""
    model = load_published(tmp_path)
    cached, plain = (model.generate(IDS, **GREEDY, exit_rule=rule, use_cache=use_cache) for use_cache in (True, False))
    assert torch.equal(cached, plain)
    assert len(model(IDS, use_cache=True).cache.layers) == 2 * 3


def test_a_loaded_model_meets_a_depth_budget_and_stops_exited_tokens(tmp_path: Path) -> None:
    model = load_published(tmp_path, num_loops=4)
    fit = model.fit_depth(2.5, lambda: float(model(IDS).exit_steps.double().mean()))
    assert fit.depth == pytest.approx(2.5, abs=0.15)
    everything = model.price(model(IDS, exit_rule="fixed:4").trace).executed
    assert model.price(model(IDS, use_cache=True, cache_policy="frozen").trace).executed < everything


# ---- Loading


def test_auto_classes_load_a_folder_without_its_code(tmp_path: Path) -> None:
    model = load_published(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is LoopedConfig
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path)(IDS).logits, model(IDS).logits)


def test_missing_fields_have_the_published_defaults() -> None:
    sizes = {"model_type": "nanbeige", "num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4}
    config = LoopedConfig.from_dict(sizes)
    assert (config.num_loops, config.state_norm, config.rope_theta, config.rms_norm_eps) == (1, "fed", 1e4, 1e-6)
    assert (config.width_of_head, config.key_value_heads, config.tie_word_embeddings) == (8, 4, False)
    positions = {"rope_parameters": {"rope_type": "default", "rope_theta": 7e7}}  # as transformers 5 saves them
    assert LoopedConfig.from_dict(sizes | positions).rope_theta == 7e7


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("qk_layernorm", True), ("emb_neighbor_num", 4), ("insert_ngram_layer_idx", [0]),
        ("ngram_insert_all_layers", True), ("enable_double_loop_split", True), ("loop_middle_layers", 2),
        ("loop_share_kv", True), ("enable_hyper_connection", True), ("enable_mhc", True),
        ("enable_h_res_identity", True), ("enable_depth_attention", True), ("attention_bias", True),
        ("mlp_bias", True), ("rope_scaling", {"type": "linear", "factor": 2.0}), ("hidden_act", "gelu"),
        ("rope_parameters", {"rope_type": "yarn"}), ("loop_loss_weights", [0.5]),
    ],
)  # fmt: skip
def test_a_model_with_other_arithmetic_is_refused_in_one_line(field: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=f"^{re.escape(f'{field}={value!r}')}: ") as caught:
        LoopedConfig.from_dict(NANBEIGE | {field: value})
    assert "\n" not in str(caught.value)


def test_layers_with_a_window_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"^layer_types has 'sliding_attention': Nanbeige models have full"):
        LoopedConfig.from_dict(NANBEIGE | {"layer_types": ["full_attention", "sliding_attention", "full_attention"]})


# ---- Writing


def test_a_published_folder_survives_a_round_trip(tmp_path: Path) -> None:
    load_published(tmp_path / "a", skip_loop_final_norm=True).save_pretrained(tmp_path / "b", layout="nanbeige")
    expected, weights = draw_nanbeige_weights(), load_file(tmp_path / "b" / "model.safetensors")
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], weight) for name, weight in expected.items())
    fields = json.loads((tmp_path / "b" / "config.json").read_text())
    ignored = {"auto_map", "kv_channels", "pretraining_tp"}  # from the hub; fields without influence
    for name, value in NANBEIGE.items():
        assert name in ignored or fields[name] == (name == "skip_loop_final_norm" or value), name


@pytest.mark.parametrize(
    ("fields", "loops"),
    keep_one_quick(2, [
        ({"state_norm": "fed", "exit_rule": "fixed:2", "num_key_value_heads": 2, "head_dim": 10}, 2),
        ({"state_norm": "none", "tie_word_embeddings": True, "rope_theta": 5e5}, 4),
        ({"state_norm": "fed", "exit_rule": "fixed:3", "gate": True, "rms_norm_eps": 1e-3}, 3),  # reads no gate
    ]),
)  # fmt: skip
def test_a_written_model_predicts_at_the_fixed_exit(fields: dict[str, Any], loops: int, tmp_path: Path) -> None:
    model = build_looped(**fields)
    model.save_pretrained(tmp_path, layout="nanbeige")
    loaded = LoopedForCausalLM.from_pretrained(tmp_path)
    assert (loaded.config.num_loops, loaded.config.exit_rule) == (loops, None)
    with torch.no_grad():
        assert torch.equal(loaded(SMALL_IDS).logits, model(SMALL_IDS).logits)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prelude": 1}, "prelude=1: layout=nanbeige needs prelude=0"),
        ({"coda": 1}, "coda=1: layout=nanbeige needs coda=0"),
        ({"norms": "branch"}, "norms=branch: layout=nanbeige needs norms=pre"),
        ({"injection": "add"}, "injection=add: layout=nanbeige needs injection=none"),
        ({"start": "zeros"}, "start=zeros: layout=nanbeige needs start=input"),
        ({"damping": None}, "damping=None: layout=nanbeige needs damping=1.0"),
        ({"rope_pairs": True}, "rope_pairs=True: layout=nanbeige needs rope_pairs=False"),
        ({"hidden_act": "gelu"}, "hidden_act=gelu: layout=nanbeige needs hidden_act=silu"),
        ({"loop_lora_rank": 2}, "loop_lora_rank=2: layout=nanbeige needs loop_lora_rank=None"),
        ({"state_norm": "read"}, "state_norm=read: layout=nanbeige needs state_norm=none or fed"),
        (
            {"exit_rule": "margin:0.5"},
            "exit_rule=margin:0.5: layout=nanbeige needs exit_rule=None or fixed:1",
        ),
        ({"gate": True}, "gate=True: layout=nanbeige needs gate=False, or exit_rule=fixed:N, which reads no gate"),
        ({"gate": True, "exit_rule": "quantile:0.5"}, "gate=True: layout=nanbeige needs gate=False, or exit_rule=fix"),
        ({"exit_rule": "fixed:5"}, "exit_rule=fixed:5: layout=nanbeige needs exit_rule=None or fixed:1 to fixed:4"),
        ({"exit_rule": "fixed:2", "cache_policy": "last"}, "cache_policy=last: layout=nanbeige needs cache_policy=all"),
    ],
)
def test_a_model_without_a_published_layout_is_refused_in_one_line(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        build_looped(**fields).save_pretrained(tmp_path / "a", layout="nanbeige")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "a").exists()
