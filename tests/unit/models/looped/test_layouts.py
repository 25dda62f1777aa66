"""Looped models written in the published formats of Ouro, Huginn, retrofits and Llama: a round trip of files."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from adadepth import LoopedForCausalLM, LoopedForSequenceClassification, Pipeline, tasks
from adadepth.errors import CheckpointError, ConfigError
from adadepth.models.looped.convert import convert_config
from adadepth.models.looped.layouts import to_ouro
from tests.configs.support import configured
from tests.marks_support import keep_one_quick
from tests.unit.data.tokenizers_support import tokenizer
from tests.unit.models.looped import published_support
from tests.unit.models.looped.looped_support import HUGINN, IDS, OURO, build_looped, build_looped_llama, check_close
from tests.unit.models.looped.retrofits_support import KINDS, build_config_fields, draw_weights, write_retrofit

# Fields of published files without influence: names of code, and tokens of another tokenizer.
UNREAD = {"auto_map", "bos_token_id", "eos_token_id", "pad_token_id", "mean_backprop_depth", "block_size", "rope_base"}
PLAIN = {"num_loops": 1, "prelude": 1, "core": 2, "coda": 1}


def read_files(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


def check_round_trip(published: Path, layout: str, ignored: set[str]) -> None:
    """Load a published folder, write it again, and compare all files."""
    model = LoopedForCausalLM.from_pretrained(published)
    model.save_pretrained(written := published.parent / "written", layout=layout)
    (fields, weights), (expected_fields, expected) = read_files(written), read_files(published)
    assert weights.keys() == expected.keys()
    tables = {"freqs_cis"}
    assert all(torch.equal(weights[name], expected[name]) for name in expected.keys() - tables)
    for name, value in expected_fields.items():
        if name not in ignored:
            assert fields[name] == pytest.approx(value), name
    loaded = LoopedForCausalLM.from_pretrained(written)
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, model(IDS).logits)
    assert loaded.config.exit_rule == model.config.exit_rule


def test_a_published_ouro_survives_a_round_trip(tmp_path: Path) -> None:
    fields = published_support.OURO | {"model_type": "ouro", "early_exit_threshold": 0.7}
    check_round_trip(
        published_support.write_folder(tmp_path / "a", fields, published_support.draw_ouro_weights()), "ouro", set()
    )


def test_a_published_huginn_survives_a_round_trip(tmp_path: Path) -> None:
    fields = published_support.HUGINN | {"model_type": "huginn_raven"}
    folder = published_support.write_folder(tmp_path / "a", fields, published_support.draw_huginn_weights())
    check_round_trip(folder, "huginn", {"mean_backprop_depth"})  # fields of training


@pytest.mark.parametrize("kind", keep_one_quick(4, KINDS))
def test_a_published_retrofit_survives_a_round_trip(kind: str, tmp_path: Path) -> None:
    check_round_trip(write_retrofit(tmp_path / "a", kind), "huginn", UNREAD)
    assert draw_weights(kind).keys() == load_file(tmp_path / "written" / "model.safetensors").keys()
    fields = json.loads((tmp_path / "written" / "config.json").read_text())
    assert "auto_map" not in fields  # the code differs with the decoder
    assert fields["rope_theta"] == build_config_fields(kind)["rope_theta"]


@pytest.mark.parametrize(
    ("layout", "fields"),
    keep_one_quick(
        3,
        [
            ("ouro", OURO | {"exit_rule": "fixed:2", "num_key_value_heads": 2}),
            ("ouro", OURO | {"exit_rule": "quantile:.7", "tie_word_embeddings": True, "objective": "gate"}),
            ("ouro", OURO | {"head_dim": 10, "hidden_act": "relu", "rope_theta": 5e5, "rms_norm_eps": 1e-5}),
            ("huginn", HUGINN),
            ("huginn", HUGINN | {"qk_bias": False, "num_key_value_heads": 2, "tie_word_embeddings": True}),
        ],
    ),
)
def test_a_written_model_is_loaded_bit_for_bit(layout: str, fields: dict[str, Any], tmp_path: Path) -> None:
    model = build_looped(**fields)
    model.generation_config.eos_token_id = 7
    model.save_pretrained(tmp_path, layout=layout)
    loaded = LoopedForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, model(IDS).logits)
        for source, target in ((model, loaded), (loaded, model)):
            steps = [network(IDS, exit_rule="fixed:1", num_loops=5).logits for network in (source, target)]
            assert torch.equal(*steps)
    assert loaded.generation_config.eos_token_id == 7
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors", "generation_config.json"}


@pytest.mark.parametrize(
    ("rule", "read"),
    [("quantile:.7", "quantile:0.7:1"), ("quantile", "quantile:0.5:1"), ("quantile:1", "quantile:1.0")],
)
def test_ouros_threshold_is_reached_however_the_rule_is_written(rule: str, read: str) -> None:
    model = build_looped(**OURO | {"exit_rule": rule})
    stored = to_ouro(model, model.state_dict(), "ouro").config
    assert convert_config(stored)["exit_rule"] == read
    assert stored["early_exit_threshold"] == model.config.parsed_exit_rule.q


@pytest.mark.parametrize(
    "fields",
    [PLAIN, {"num_loops": 1, "core": 3, "state_norm": "fed", "damping": None, "tie_word_embeddings": True}],
)
def test_one_loop_of_our_layers_equals_a_llama(fields: dict[str, Any], tmp_path: Path) -> None:
    model = build_looped(**fields, num_key_value_heads=2, head_dim=10, rope_theta=5e5, rms_norm_eps=1e-3)
    model.save_pretrained(tmp_path, layout="llama")
    llama, report = LlamaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] | report["unexpected_keys"]
    with torch.no_grad():
        check_close(model(IDS).logits, llama.eval()(IDS).logits)


def test_one_loop_of_a_retrofit_equals_its_decoder(tmp_path: Path) -> None:
    model = build_looped_llama()
    model.config.num_loops = 1
    model.save_pretrained(tmp_path, layout="llama")
    llama = LlamaForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        check_close(model(IDS).logits, llama(IDS).logits)


@pytest.mark.parametrize(
    ("layout", "fields", "message"),
    [
        ("llama", PLAIN | {"num_loops": 2}, "num_loops=2: layout=llama needs num_loops=1"),
        ("llama", PLAIN | {"norms": "branch"}, "norms=branch: layout=llama needs norms=pre"),
        ("llama", PLAIN | {"scale_embeddings": True}, "scale_embeddings=True: layout=llama needs scale_embeddings=Fal"),
        ("llama", PLAIN | {"rope_pairs": True}, "rope_pairs=True: layout=llama needs rope_pairs=False"),
        ("llama", PLAIN | {"loop_lora_rank": 2}, "loop_lora_rank=2: layout=llama needs loop_lora_rank=None"),
        ("qwen3", PLAIN, "layout=qwen3: its layers are those of llama; set layout=llama"),
        ("ouro", OURO | {"prelude": 1}, "prelude=1: layout=ouro needs prelude=0"),
        ("ouro", OURO | {"gate": False}, "gate=False: layout=ouro needs gate=True"),
        ("ouro", OURO | {"exit_rule": "margin:0.5"}, "exit_rule=margin:0.5: layout=ouro needs exit_rule=None, quan"),
        ("ouro", OURO | {"cache_policy": "last"}, "cache_policy=last: layout=ouro needs cache_policy=all"),
        ("ouro", OURO | {"injection": "add"}, "injection=add: layout=ouro needs injection=none"),
        ("huginn", HUGINN | {"coda": 0}, "coda=0: layout=huginn needs coda=1 or more"),
        ("huginn", HUGINN | {"draw_seed": 3}, "draw_seed=3: layout=huginn needs draw_seed=0"),
        ("huginn", HUGINN | {"hidden_act": "gelu"}, "hidden_act=gelu: layout=huginn needs hidden_act=silu"),
        ("huginn", HUGINN | {"num_key_value_heads": 2}, "num_key_value_heads=2: layout=huginn needs num_key_value_hea"),
        ("huginn", HUGINN | {"head_dim": 10}, "head_dim=10: layout=huginn needs head_dim=8"),
        ("huginn", HUGINN | {"start_std": 0.5}, "start_std=0.5: layout=huginn needs start_std=0.632"),
        ("lama", PLAIN, "layout=lama: must be ouro, huginn, hrm_text, nanbeige, llama"),
    ],
)  # fmt: skip
def test_a_model_without_a_published_layout_is_refused_in_one_line(
    layout: str, fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as raised:
        build_looped(**fields).save_pretrained(tmp_path / "a", layout=layout)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "a").exists()


def test_a_retrofit_with_other_arithmetic_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="injection=none: layout=huginn needs injection=linear"):
        build_looped_llama().save_pretrained(tmp_path, layout="huginn")
    model = LoopedForCausalLM.from_pretrained(write_retrofit(tmp_path / "a", "llama"))
    model.config.base_config.attention_bias = True
    with pytest.raises(ConfigError, match=r"base_config\.attention_bias=True: layout=huginn needs base_config"):
        model.save_pretrained(tmp_path / "b", layout="huginn")
    with pytest.raises(ConfigError, match="base_config: layers of llama; layout=ouro needs our own layers"):
        model.save_pretrained(tmp_path / "b", layout="ouro")


def test_classifiers_have_no_layout(tmp_path: Path) -> None:
    model = build_looped(LoopedForSequenceClassification, **OURO, num_labels=3)
    with pytest.raises(ConfigError, match="layout=ouro: LoopedForSequenceClassification has none"):
        model.save_pretrained(tmp_path, layout="ouro")


# ---- from the command line


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """Return the folder of a model of this project with a tokenizer and a model card."""
    words = tokenizer("roberta")
    model = build_looped(**OURO, exit_rule="margin:0.3").to(torch.bfloat16)
    model.resize_token_embeddings(len(words))
    model.save_pretrained(tmp_path / "ours")
    words.save_pretrained(tmp_path / "ours")
    card = (
        "---\nlicense: mit\n---\n\n# Mine\n\n## Use\n\nOld.\n\n## Depth and compute\n\nRule `margin:0.3`: 2.1 loops.\n"
    )
    (tmp_path / "ours" / "README.md").write_text(card)
    return tmp_path / "ours"


def test_a_checkpoint_is_exported(ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adadepth.tasks.export.list_overridden_model_settings", lambda: ["exit_rule"])
    command = ("loop_tiny", "mode=export", f"checkpoint={ours}", "export.layout=ouro", "model.exit_rule=fixed:2")
    tasks.run(configured(*command, f"export.folder={tmp_path}/written"))
    written = tmp_path / "written"
    fields, weights = read_files(written)
    assert (fields["early_exit_step"], fields["torch_dtype"]) == (1, "bfloat16")
    assert weights["model.norm.weight"].dtype == torch.bfloat16
    assert (written / "tokenizer.json").read_bytes() == (ours / "tokenizer.json").read_bytes()
    actual, expected = (Pipeline.from_pretrained(folder, new_tokens=3) for folder in (written, ours))
    expected.model.config.exit_rule = "fixed:2"
    assert actual(["a cat"])[0].score == expected(["a cat"])[0].score
    card = (written / "README.md").read_text()
    for part in ("license: mit", "# Mine", "published layout `ouro`", "rule `fixed:2`", "Rule `margin:0.3`: 2.1 lo"):
        assert part in card
    assert "Old." not in card
    with pytest.raises(ConfigError, match=r"export\.folder=.*written: must be new or empty"):
        tasks.run(configured(*command, f"export.folder={written}"))


def test_an_impossible_export_names_the_setting(ours: Path, tmp_path: Path) -> None:
    command = ("loop_tiny", "mode=export", f"checkpoint={ours}", f"export.folder={tmp_path}/written")
    with pytest.raises(ConfigError, match=r"model\.exit_rule=margin:0\.3: layout=ouro needs exit_rule=None, quantile"):
        tasks.run(configured(*command, "export.layout=ouro"))
    with pytest.raises(
        ConfigError, match=r"export\.layout=lama: must be ouro, huginn, hrm_text, nanbeige, llama, .* mean 'llama'"
    ):
        tasks.run(configured(*command, "export.layout=lama"))
    assert not (tmp_path / "written").exists()


def make_unpublishable(file: Path, kind: str, outside: Path) -> None:
    """Replace a file of a checkpoint by one that cannot be published."""
    file.unlink(missing_ok=True)
    outside.write_text("private")
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(outside if kind == "link" else "nowhere")


@pytest.mark.parametrize(
    ("name", "kind", "problem"),
    keep_one_quick(4, [
        ("vocab.txt", "link", "is a link to .*private.txt, outside the folder; replace the link by the file"),
        ("README.md", "link", "is a link to .*private.txt, outside the folder; replace the link by the file"),
        ("chat_template.jinja", "pipe", "is not a regular file"),
        ("tokenizer.tiktoken", "folder", "is not a regular file"),
        ("chat_template.jinja", "broken", "is a broken link"),
        ("README.md", "pipe", "is not a regular file"),
    ]),
)  # fmt: skip
def test_an_export_copies_no_file_from_outside(ours: Path, tmp_path: Path, name: str, kind: str, problem: str) -> None:
    make_unpublishable(ours / name, kind, tmp_path / "private.txt")
    with pytest.raises(CheckpointError, match=rf"^checkpoint={ours}: its {name} {problem}$"):
        export(ours, tmp_path / "written")
    assert not (tmp_path / "written").exists()


def export(ours: Path, folder: Path) -> None:
    overrides = (f"checkpoint={ours}", f"export.folder={folder}", "export.layout=ouro", "model.exit_rule=null")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("adadepth.tasks.export.list_overridden_model_settings", lambda: ["exit_rule"])
        tasks.run(configured("loop_tiny", "mode=export", *overrides))


def test_an_export_copies_known_files_and_links_of_the_cache_of_the_hub(ours: Path, tmp_path: Path) -> None:
    for name in ("tokenizer_old.json", "vocab_secret.txt", "notes.model"):
        (ours / name).write_text("private")
    (ours / "tokenizer_old").mkdir()
    snapshot, blobs = tmp_path / "models--ours" / "snapshots" / "main", tmp_path / "models--ours" / "blobs"
    snapshot.mkdir(parents=True)
    ours.rename(blobs)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(Path("../../blobs", file.name))
    export(snapshot, tmp_path / "written")
    names = {file.name for file in (tmp_path / "written").iterdir()}
    assert {"tokenizer.json", "README.md", "model.safetensors"} <= names
    assert not any("old" in name or "secret" in name or "notes" in name for name in names)


def test_a_failed_export_leaves_no_file(ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("adadepth.tasks.export.write_layout_card", fail)
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "written", tmp_path / "empty"):
        with pytest.raises(CheckpointError, match="cannot be written"):
            export(ours, folder)
    assert not (tmp_path / "written").exists()
    assert not list((tmp_path / "empty").iterdir())
