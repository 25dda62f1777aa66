"""Retrofits published under Huginn's model type, recognised by their weights: equations and published code."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from adadepth import (
    LoopedConfig,
    LoopedForCausalLM,
    decode_texts,
    self_speculation,
    tasks,
)
from adadepth.errors import CheckpointError
from adadepth.models.build import build_language_model
from adadepth.models.folder import read_config
from adadepth.prediction.models import resolve_model_class
from tests.configs.support import configured
from tests.marks_support import keep_one_quick, mark_mostly_slow
from tests.unit.data.tokenizers_support import tokenizer
from tests.unit.models.looped import published_code
from tests.unit.models.looped.plain_looped import run_plain_retrofit
from tests.unit.models.looped.retrofits_support import (
    KINDS,
    PIECES,
    WIDTH,
    build_config_fields,
    draw_weights,
    name_decoder,
    write_retrofit,
)

LENGTH = 9
IDS = torch.randint(0, PIECES, (2, LENGTH), generator=torch.Generator().manual_seed(1))
STATE = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(2))
LOADERS = [LoopedForCausalLM.from_pretrained, AutoModelForCausalLM.from_pretrained]
CODE = ("raven_config_minimal.py", "raven_modeling_minimal_llama.py", "raven_modeling_minimal_olmo.py")


def check_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", keep_one_quick(2, KINDS))
@torch.no_grad()
def test_a_retrofit_equals_its_equations(kind: str, tmp_path: Path) -> None:
    model, weights = LoopedForCausalLM.from_pretrained(write_retrofit(tmp_path, kind)), draw_weights(kind)
    assert model.config.base_config.model_type == name_decoder(kind)
    for loops in (1, 2, 5):
        logits = model(IDS, num_loops=loops, initial_state=STATE).logits
        for row, ids in enumerate(IDS):
            expected = run_plain_retrofit(
                name_decoder(kind), build_config_fields(kind), weights, ids, STATE[row], loops
            )
            check_close(logits[row], expected)


@published_code.require_files(*CODE)
@pytest.mark.parametrize("kind", ["llama", "tinyllama", "olmo2"])
def test_a_retrofit_equals_the_published_code(kind: str, tmp_path: Path) -> None:
    published = published_code.build_retrofit(name_decoder(kind), build_config_fields(kind))
    ours = LoopedForCausalLM.from_pretrained(write_retrofit(tmp_path, kind, published.state_dict()))
    with torch.no_grad():
        step_logits = ours(IDS, initial_state=STATE, num_loops=7, run_all_steps=True).step_logits
        for loops in (1, 2, 4, 7):
            expected = published(IDS, input_states=STATE, num_steps=torch.tensor([loops])).logits
            check_close(ours(IDS, initial_state=STATE, num_loops=loops).logits, expected)
            check_close(step_logits[:, :, loops - 1], expected)


@pytest.mark.parametrize("kind", keep_one_quick(4, KINDS))
def test_auto_classes_load_a_retrofit_without_its_code(kind: str, tmp_path: Path) -> None:
    write_retrofit(tmp_path, kind)
    config = AutoConfig.from_pretrained(tmp_path)
    assert type(config) is LoopedConfig
    assert (config.num_loops, config.prelude, config.core, config.coda) == (4, 2, 2, 1)
    assert config.max_position_embeddings == 128
    assert LoopedConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(model) is LoopedForCausalLM
    with torch.no_grad():
        expected = LoopedForCausalLM.from_pretrained(tmp_path)(IDS, initial_state=STATE).logits
        assert torch.equal(model(IDS, initial_state=STATE).logits, expected)
    described = read_config("checkpoint", str(tmp_path))
    assert resolve_model_class("checkpoint", str(tmp_path), described) is LoopedForCausalLM


def test_first_states_have_the_published_standard_deviation(tmp_path: Path) -> None:
    model = LoopedForCausalLM.from_pretrained(write_retrofit(tmp_path / "a", "llama")).model
    spread = model._draw_states(torch.arange(256).unsqueeze(0)).std()
    assert spread == pytest.approx(0.0087 * 0.987, rel=0.02)  # truncated at three deviations
    gemma = LoopedForCausalLM.from_pretrained(write_retrofit(tmp_path / "b", "gemma2"))
    assert gemma.config.start_std == pytest.approx(0.0087 * math.sqrt(WIDTH))


def test_special_tokens_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    words = tokenizer("roberta")
    words.save_pretrained(tmp_path)
    write_retrofit(tmp_path, "llama", vocab_size=len(words), padded_vocab_size=len(words))
    model = LoopedForCausalLM.from_pretrained(tmp_path)
    expected = (words.bos_token_id, words.eos_token_id, words.pad_token_id)
    assert (model.config.bos_token_id, model.config.eos_token_id, model.config.pad_token_id) == expected
    assert model.generation_config.eos_token_id == words.eos_token_id
    assert AutoTokenizer.from_pretrained(tmp_path)("a cat")["input_ids"] == words("a cat")["input_ids"]


def test_special_tokens_without_a_tokenizer_are_unknown(tmp_path: Path) -> None:
    model = LoopedForCausalLM.from_pretrained(write_retrofit(tmp_path, "llama"))
    assert (model.config.eos_token_id, model.generation_config.eos_token_id) == (None, None)
    loaded = LoopedForCausalLM.from_pretrained(write_retrofit(tmp_path, "llama", eos_token_id=7))
    assert loaded.config.eos_token_id == 7


@pytest.mark.parametrize("load", keep_one_quick(2, LOADERS))
@pytest.mark.parametrize(
    ("missing", "added", "message"),
    keep_one_quick(2, [
        ("transformer.core_block.1.norm_2.weight", None, "'model.core.1.post_attention_layernorm.weight' are missing"),
        ("lm_head.weight", None, "'lm_head.weight' are missing"),
        ("transformer.adapter.weight", None, "'model.adapter.weight' are missing"),
        (None, "transformer.core_block.0.attn.qk_bias", r"'model\.core\.0\.self_attn\.k_proj\.bias' and 1 more, which"),
        (None, "transformer.step_embedding.weight", r"contains the weights 'model\.step_embedding\.weight'"),
    ]),
)  # fmt: skip
def test_incompatible_weights_are_refused_in_one_line(
    load: Any, missing: str | None, added: str | None, message: str, tmp_path: Path
) -> None:
    weights = draw_weights("llama")
    weights.pop(missing, None)
    weights |= {} if added is None else {added: torch.zeros(2, 1, 4, 8)}
    write_retrofit(tmp_path, "llama", weights)
    with pytest.raises(CheckpointError, match=message) as raised:
        load(tmp_path)
    assert str(tmp_path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("llama", {"init_values": {"std": 0.0087, "embed_scale": 5.0}}, r"init_values\.embed_scale=5\.0: must be 1\.0"),
        ("llama", {"qk_bias": True}, "qk_bias=True"),
        ("olmo2", {"initial_state_mode": "skip-adapter"}, "initial_state_mode='skip-adapter'"),
        ("llama", {"nonlin_name": "GELU"}, "nonlin_name='GELU'"),
        ("llama", {"injection_type": "add"}, "injection_type='add'"),
    ],
)
def test_a_retrofit_with_other_arithmetic_is_refused(
    kind: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = write_retrofit(tmp_path, kind, **changes)
    for load in LOADERS:
        with pytest.raises(CheckpointError, match=message) as raised:
            load(folder)
        assert "\n" not in str(raised.value)


def test_a_missing_rope_theta_is_refused(tmp_path: Path) -> None:
    folder = write_retrofit(tmp_path, "llama")
    described = {name: value for name, value in build_config_fields("llama").items() if name != "rope_theta"}
    (folder / "config.json").write_text(json.dumps(described))
    with pytest.raises(CheckpointError, match="rope_theta: missing"):
        LoopedForCausalLM.from_pretrained(folder)


def test_the_decoder_is_not_recognised_by_its_configuration_alone() -> None:
    with pytest.raises(CheckpointError, match="whose kind only its weights show"):
        LoopedConfig.from_dict(build_config_fields("llama"))


def test_the_decoder_is_recognised_in_pickles(tmp_path: Path) -> None:
    write_retrofit(tmp_path, "olmo2")
    (tmp_path / "model.safetensors").unlink()
    torch.save(draw_weights("olmo2"), tmp_path / "pytorch_model.bin")
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    expected = run_plain_retrofit("olmo2", build_config_fields("olmo2"), draw_weights("olmo2"), IDS[0], STATE[0], 4)
    with torch.no_grad():
        check_close(model(IDS[:1], initial_state=STATE[:1]).logits[0], expected)


@pytest.mark.parametrize("kind", mark_mostly_slow(KINDS, "llama".__eq__))
def test_decoding_is_the_same_in_a_batch(kind: str, tmp_path: Path) -> None:
    """Compare padded decoding, decoding in shared slots, and drafts of one loop: the same tokens."""
    model = LoopedForCausalLM.from_pretrained(write_retrofit(tmp_path, kind))
    prompts, options = [IDS[0].tolist(), IDS[1, :4].tolist()], {"max_new_tokens": 5, "do_sample": False}
    alone = [model.generate(torch.tensor([prompt]), **options)[0, len(prompt) :].tolist() for prompt in prompts]
    together = decode_texts(model, prompts, GenerationConfig(**options), places=2, exit_rule="fixed:4")
    assert [tokens.tolist() for tokens in together.tokens] == alone
    ids, mask = IDS.clone(), torch.ones_like(IDS)
    ids[1, -4:], mask[1, :-4] = IDS[1, :4], 0
    assert model.generate(ids, attention_mask=mask, pad_token_id=0, **options)[:, LENGTH:].tolist() == alone
    drafted = model.generate(IDS[:1], custom_generate=self_speculation, draft_rule="fixed:1", **options)
    assert drafted[0, LENGTH:].tolist() == alone[0]


@pytest.mark.parametrize("kind", keep_one_quick(4, KINDS))
def test_macs_equal_the_counter_of_torch(kind: str, tmp_path: Path) -> None:
    """Compare with torch's counter, which counts all pairs of tokens (half of them causally masked) and the head."""
    model = LoopedForCausalLM.from_pretrained(write_retrofit(tmp_path, kind), attn_implementation="eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        trace = model(IDS).trace
    layers, queries = 2 + 2 * 4 + 1, 4 * build_config_fields(kind)["head_dim"]
    masked = layers * 2 * 2 * queries * LENGTH * (LENGTH - 1) / 2
    prediction = model.reading_work("logits", torch.full((2 * LENGTH,), LENGTH)).sum()
    assert counter.get_total_flops() == 2 * (model.price(trace).executed + masked + prediction)


def test_a_hub_id_is_loaded_like_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load from the cache of the hub, in which the id has a folder for every commit."""
    commit, name = "0" * 40, "models--someone--Recurrent"
    folder = write_retrofit(tmp_path / name / "snapshots" / commit, "olmo2")
    (tmp_path / name / "refs").mkdir()
    (tmp_path / name / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    expected = LoopedForCausalLM.from_pretrained(folder)
    hub = {"cache_dir": str(tmp_path), "local_files_only": True}
    with torch.no_grad():
        for load in LOADERS:
            model = load("someone/Recurrent", **hub)
            assert torch.equal(model(IDS).logits, expected(IDS).logits)
            assert model.name_or_path == "someone/Recurrent"


# ---- from the command line


@pytest.fixture(scope="module", params=keep_one_quick(3, ["llama", "olmo2", "gemma2"]))
def checkpoint_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a tokenizer and a text file next to it."""
    folder: Path = tmp_path_factory.mktemp(request.param) / "published"
    words = tokenizer("roberta")
    words.save_pretrained(folder)
    write_retrofit(folder, request.param, vocab_size=len(words) + 3, padded_vocab_size=len(words) + 3)
    (folder.parent / "text.txt").write_text("\n\n".join(["don't stop the naive cat: 12 of 345 cats don't"] * 60))
    return folder


def test_an_evaluation_runs_the_published_loops_and_more(checkpoint_dir: Path, tmp_path: Path) -> None:
    dataset_path = f"dataset.path={checkpoint_dir.parent}/text.txt"
    for loops in (4, 7):
        changes = () if loops == 4 else (f"model.num_loops={loops}",)
        config = configured(
            "loop_retrofit", "mode=evaluate", f"checkpoint={checkpoint_dir}", "dataset=causal_text", dataset_path,
            f"output_dir={tmp_path}/{loops}", "logger=none", "trainer.disable_tqdm=true", *changes,
        )  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            overridden = ["num_loops"] if changes else []
            patch.setattr("adadepth.tasks.language_model.list_overridden_model_settings", lambda: overridden)  # noqa: B023
            tasks.run(config)
        record = json.loads(next((tmp_path / str(loops)).glob("*/*/run.json")).read_text(encoding="utf-8"))
        assert record["final_metrics"]["halting/all/mean"] == loops


@pytest.mark.slow
def test_training_starts_from_a_published_retrofit(checkpoint_dir: Path, tmp_path: Path) -> None:
    source = LoopedForCausalLM.from_pretrained(checkpoint_dir)
    source.save_pretrained(tmp_path)
    sizes = [f"model.{part}={getattr(source.config, part)}" for part in ("prelude", "core", "coda")]
    for folder in (checkpoint_dir, tmp_path):
        overrides = ["model=published_retrofit", f"model.pretrained={folder}", *sizes, "model.num_loops=3"]
        settings = configured("loop_tiny", *overrides, f"model.vocab_size={source.config.vocab_size}").model
        model = build_language_model(settings, source.config.vocab_size).eval()
        assert model.config.start_std == pytest.approx(0.0087, rel=1e-3)
        with torch.no_grad():
            expected = source(IDS, initial_state=STATE, num_loops=3).logits
            assert torch.equal(model(IDS, initial_state=STATE).logits, expected)


def test_the_published_number_of_weights() -> None:
    """Check 2 V D + D + 2 D^2 + 14 (2 D^2 + 2 D h d + 3 D F + 2 D), of Llama 3.2 1B as 4, 6, 4 layers."""
    base = {"model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
            "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 14}  # fmt: skip
    with torch.device("meta"):
        model = LoopedForCausalLM(LoopedConfig(prelude=4, core=6, coda=4, injection="linear", base_config=base))
    assert sum(weight.numel() for weight in model.parameters()) == 1_385_228_288
