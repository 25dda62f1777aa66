"""Looped models from layers of other decoders: one loop is the decoder, and dropped layers are the middle ones."""

from __future__ import annotations

import dataclasses
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from adadepth import LoopedConfig, LoopedForCausalLM, LoopedForSequenceClassification
from adadepth.errors import CheckpointError, ConfigError
from adadepth.models.build import build_classifier, build_language_model, load_model
from adadepth.models.looped.retrofit import retrofit, select_layers
from tests.configs.support import configured
from tests.marks_support import keep_one_quick
from tests.unit.models.looped.retrofit_support import DECODERS, IDS, LAYERS, PIECES, build_decoder, check_close


@pytest.mark.parametrize(("kind", "parts"), keep_one_quick(5, product(DECODERS, [(0, 6, 0), (2, 2, 2)])))
def test_one_loop_of_all_layers_equals_the_decoder(kind: str, parts: tuple[int, int, int]) -> None:
    source = build_decoder(kind)
    prelude, core, coda = parts
    looped = retrofit(source, prelude=prelude, core=core, coda=coda, num_loops=1)
    mask = torch.ones_like(IDS)
    mask[0, :4] = 0
    with torch.no_grad():
        check_close(looped(IDS).logits, source(IDS).logits)
        padded = looped(IDS, attention_mask=mask).logits, source(IDS, attention_mask=mask).logits
        torch.testing.assert_close(*(logits[mask.bool()] for logits in padded), atol=1e-5, rtol=1e-5)
    actual, expected = (
        model.generate(IDS, max_new_tokens=6, do_sample=False, pad_token_id=0) for model in (looped, source)
    )
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("kind", keep_one_quick(3, ["llama", "qwen2", "mistral"]))
def test_loops_repeat_the_layers(kind: str) -> None:
    """Compare four loops of two layers with a decoder that contains layers 2 and 3 four times."""
    source = build_decoder(kind)
    looped = retrofit(source, prelude=2, core=2, coda=2, num_loops=4)
    deep = build_decoder(kind, num_hidden_layers=12)
    order = [0, 1, *[2, 3] * 4, 4, 5]
    for target, number in zip(deep.model.layers, order, strict=True):
        target.load_state_dict(source.model.layers[number].state_dict())
    for part in ("embed_tokens", "norm"):
        getattr(deep.model, part).load_state_dict(getattr(source.model, part).state_dict())
    deep.lm_head.load_state_dict(source.lm_head.state_dict())
    with torch.no_grad():
        check_close(looped(IDS).logits, deep(IDS).logits, 1e-5)
        cached = looped(IDS[:, :5], use_cache=True)
        check_close(looped(IDS[:, 5:], past_key_values=cached.past_key_values).logits, looped(IDS).logits[:, 5:], 1e-5)
    assert looped.config.num_hidden_layers == len(cached.past_key_values.layers) == 12


def test_middle_layers_are_dropped() -> None:
    source = build_decoder()
    looped = retrofit(source, prelude=1, core=2, coda=1, num_loops=2)
    numbers = [0, 3, 4, 5]
    assert select_layers(LAYERS, 1, 2, 1) == numbers
    for layer, number in zip([*looped.model.prelude, *looped.model.core, *looped.model.coda], numbers, strict=True):
        for name, weight in layer.state_dict().items():
            assert torch.equal(weight, source.model.layers[number].state_dict()[name])
    assert len(source.model.layers) == LAYERS  # the source is unchanged
    assert source.config.num_hidden_layers == LAYERS
    assert select_layers(22, 4, 8, 4) == [*range(4), *range(10, 18), *range(18, 22)]  # TinyLlama as published


def test_layers_keep_their_attention_windows() -> None:
    """Check a decoder with windows in some layers, which keep them at their new positions."""
    kinds = ["full_attention", "full_attention", "full_attention", "sliding_attention", "full_attention",
             "sliding_attention"]  # fmt: skip
    fields = {"layer_types": kinds, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0}
    source = build_decoder("qwen2", **fields)
    looped = retrofit(source, prelude=1, core=2, coda=1, num_loops=1)
    assert looped.config.base_config.layer_types == [kinds[number] for number in (0, 3, 4, 5)]
    source.model.layers = torch.nn.ModuleList(source.model.layers[number] for number in (0, 3, 4, 5))
    source.config.layer_types, source.config.num_hidden_layers = looped.config.base_config.layer_types, 4
    with torch.no_grad():
        check_close(looped(IDS).logits, source(IDS, use_cache=False).logits)


def test_a_retrofit_is_saved_and_loaded_in_our_format(tmp_path: Path) -> None:
    looped = retrofit(build_decoder("qwen3"), prelude=1, core=2, coda=1, num_loops=3, injection="linear", gate=True)
    looped.save_pretrained(tmp_path)
    loaded = LoopedForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        check_close(loaded(IDS).logits, looped(IDS).logits)
        check_close(loaded(IDS, exit_rule="quantile:0.5").logits, looped(IDS, exit_rule="quantile:0.5").logits)
    assert loaded.config.base_config.model_type == "qwen3"


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_attention_implementation_is_set_in_all_layers(attention: str) -> None:
    looped = retrofit(build_decoder(), prelude=2, core=2, coda=2, num_loops=2)
    with torch.no_grad():
        expected = looped(IDS).logits
        looped.set_attn_implementation(attention)
        assert {layer.self_attn.config._attn_implementation for layer in looped.model.core} == {attention}
        torch.testing.assert_close(looped(IDS).logits, expected, atol=1e-5, rtol=1e-5)


def test_a_retrofit_starts_from_a_folder(tmp_path: Path) -> None:
    source = build_decoder("llama", tie_word_embeddings=True)
    source.save_pretrained(tmp_path)
    looped = retrofit(str(tmp_path), prelude=2, core=2, coda=2, num_loops=1)
    with torch.no_grad():
        check_close(looped(IDS).logits, source(IDS).logits)
    assert looped.lm_head.weight is looped.model.embed_tokens.weight


@pytest.mark.parametrize("kind", ["cohere", "granite", "gemma2"])
def test_factors_and_bounds_of_logits_are_kept(kind: str, tmp_path: Path) -> None:
    """Check factors and bounds of logits, which change losses and exits on predictions, but no greedy token."""
    source = build_decoder(kind)
    looped = retrofit(source, prelude=2, core=2, coda=2, num_loops=1)
    with torch.no_grad():
        check_close(looped(IDS, labels=IDS).loss, source(IDS, labels=IDS).loss)
    looped.save_pretrained(tmp_path)
    with torch.no_grad():
        check_close(LoopedForCausalLM.from_pretrained(tmp_path)(IDS).logits, source(IDS).logits)


def test_a_decoder_that_changes_its_logits_is_refused_in_one_line() -> None:
    source = build_decoder()
    source.lm_head.register_forward_hook(lambda module, inputs, logits: logits.sin())
    with pytest.raises(CheckpointError, match="the head differs by") as raised:
        retrofit(source, prelude=2, core=2, coda=2)
    assert "\n" not in str(raised.value)


def test_a_factor_that_the_decoder_lacks_is_not_written(tmp_path: Path) -> None:
    looped = retrofit(build_decoder(), prelude=2, core=2, coda=2, num_loops=1)
    looped.config.logit_factor = 0.5
    with pytest.raises(ConfigError, match=r"logit_factor=0\.5: layout=llama needs logit_factor=1\.0"):
        looped.save_pretrained(tmp_path, layout="llama")


def test_a_decoder_with_fewer_layers_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="prelude=4, core=8, coda=4: 16 layers, but the decoder has 6"):
        retrofit(build_decoder(), prelude=4, core=8, coda=4)


def test_a_decoder_with_other_computations_is_refused_in_one_line() -> None:
    config = transformers.GPT2Config(n_embd=32, n_head=4, n_layer=2, vocab_size=PIECES)
    with pytest.raises((CheckpointError, ConfigError)) as raised:
        retrofit(AutoModelForCausalLM.from_config(config).eval(), prelude=0, core=2, coda=0)
    assert "\n" not in str(raised.value)


def test_sizes_equal_those_of_the_decoder() -> None:
    looped = retrofit(build_decoder(), prelude=2, core=2, coda=2)
    assert (looped.config.hidden_size, looped.config.vocab_size, looped.config.num_key_value_heads) == (32, PIECES, 2)
    with pytest.raises(ConfigError, match=r"base_config has 6 layers, but prelude \+ core \+ coda = 3"):
        LoopedConfig(base_config=looped.config.base_config.to_dict(), prelude=1, core=1, coda=1)


# ---- From settings


def build_settings(folder: Path, *overrides: str) -> Any:
    return configured("ponder_tiny", "model=looped_retrofit", f"model.pretrained={folder}", *overrides).model


def test_settings_make_a_looped_model_of_a_decoder(tmp_path: Path) -> None:
    source = build_decoder()
    source.save_pretrained(tmp_path)
    model_settings = build_settings(
        tmp_path, "model.prelude=1", "model.core=2", "model.coda=1", "model.num_loops=3", "model.gate=true"
    )
    classifier = build_classifier(model_settings, PIECES, {"id2label": {0: "a", 1: "b", 2: "c"}})
    assert isinstance(classifier, LoopedForSequenceClassification)
    assert (classifier.config.num_loops, classifier.config.gate, classifier.config.num_labels) == (3, True, 3)
    for name, weight in source.model.layers[3].state_dict().items():
        assert torch.equal(classifier.model.core[0].state_dict()[name], weight)
    language = build_language_model(model_settings, PIECES)
    with torch.no_grad():
        check_close(language(IDS).logits, retrofit(source, prelude=1, core=2, coda=1, num_loops=3)(IDS).logits)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.hidden_size=64"], "model.hidden_size=64, but the pretrained model has 32"),
        (["model.norms=branch"], "model.norms=branch: not supported, because model.pretrained="),
        (["model.core=9"], "prelude=0, core=9, coda=0: 9 layers, but the decoder has 6"),
    ],
)
def test_settings_that_contradict_the_decoder_are_refused_in_one_line(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    build_decoder().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=message) as raised:
        build_language_model(build_settings(tmp_path, *overrides), PIECES)
    assert "\n" not in str(raised.value)


def test_a_tokenizer_with_more_pieces_is_refused_in_one_line(tmp_path: Path) -> None:
    build_decoder().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=f"it has {PIECES} tokens, the tokenizer 60"):
        build_language_model(build_settings(tmp_path), 60)


@pytest.mark.slow
def test_a_saved_rule_is_replaced_only_on_request(tmp_path: Path) -> None:
    model = retrofit(build_decoder(), prelude=1, core=2, coda=1, num_loops=3, exit_rule="margin:0.1")
    model.save_pretrained(tmp_path)
    model_settings = dataclasses.replace(build_settings(tmp_path), pretrained=None, exit_rule=None)
    assert load_model(str(tmp_path), LoopedForCausalLM, model_settings, ["exit_rule"]).config.exit_rule is None
    assert load_model(str(tmp_path), LoopedForCausalLM, model_settings, []).config.exit_rule == "margin:0.1"


def test_a_model_with_a_resized_vocabulary_is_loaded_unchanged(tmp_path: Path) -> None:
    model = retrofit(build_decoder("llama"), prelude=1, core=2, coda=1, num_loops=2)
    model.resize_token_embeddings(PIECES + 5)
    model.save_pretrained(tmp_path)
    loaded = LoopedForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        check_close(loaded(IDS).logits, model.eval()(IDS).logits)
    assert loaded.config.vocab_size == PIECES + 5
