"""Options of `generate`: our decoders give the same tokens, or refuse the option in one line."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, SynthIDTextWatermarkingConfig, WatermarkingConfig

from adadepth import decode_texts, self_speculation
from adadepth.errors import ConfigError
from tests.marks_support import keep_one_quick
from tests.unit.models.looped.looped_support import IDS, OURO, build_looped

PROMPTS = [IDS[0, :4].tolist(), IDS[1, :4].tolist(), IDS[2, :7].tolist(), IDS[2, :1].tolist()]  # two of one length
SYNTH = SynthIDTextWatermarkingConfig(keys=[3, 5, 7], ngram_len=3)
# Every option of `GenerationConfig`, with a value that is not the default.
OPTIONS: dict[str, Any] = {
    "max_length": 9, "max_new_tokens": 12, "min_length": 8, "min_new_tokens": 6, "early_stopping": True,
    "max_time": 9.0, "stop_strings": ["a"], "do_sample": False, "num_beams": 2, "use_mtp": True, "use_cache": True,
    "cache_implementation": "dynamic", "cache_config": {}, "max_cache_len": 40, "temperature": 0.5, "top_k": 3,
    "top_p": 0.5, "min_p": 0.1, "top_h": 0.5, "typical_p": 0.5, "epsilon_cutoff": 0.1, "eta_cutoff": 0.1,
    "repetition_penalty": 1.5, "encoder_repetition_penalty": 3.0, "length_penalty": 2.0, "no_repeat_ngram_size": 2,
    "bad_words_ids": [[5], [7, 8]], "renormalize_logits": True, "forced_bos_token_id": 4, "forced_eos_token_id": 2,
    "remove_invalid_values": True, "exponential_decay_length_penalty": (3, 1.5), "suppress_tokens": [5, 6],
    "begin_suppress_tokens": [5, 6, 7, 11], "sequence_bias": [[[5], 8.0]], "token_healing": True,
    "guidance_scale": 2.0, "watermarking_config": WatermarkingConfig(bias=4.0), "num_return_sequences": 2,
    "output_attentions": True, "output_hidden_states": True, "output_scores": True, "output_logits": True,
    "return_dict_in_generate": True, "pad_token_id": 1, "bos_token_id": 3, "eos_token_id": [2, 9, 17],
    "encoder_no_repeat_ngram_size": 1, "decoder_start_token_id": 1, "is_assistant": True, "num_assistant_tokens": 3,
    "num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.1,
    "prompt_lookup_num_tokens": 2, "max_matching_ngram_size": 2, "assistant_early_exit": 1, "assistant_lookbehind": 2,
    "target_lookbehind": 2, "assistant_ensemble_weight": 0.5, "speculation_type": "x", "compile_config": None,
    "disable_compile": True, "continuous_batching_config": None, "low_memory": True, "penalty_alpha": 0.6,
    "dola_layers": "high", "diversity_penalty": 0.5, "num_beam_groups": 2, "constraints": ["a"],
    "force_words_ids": [[5]], "prefill_chunk_size": 2,
}  # fmt: skip
COMMON = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
REFUSED = {
    "max_time", "stop_strings", "num_beams", "use_mtp", "token_healing", "guidance_scale", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_scores", "output_logits", "prompt_lookup_num_tokens",
    "assistant_early_exit", "penalty_alpha", "dola_layers", "diversity_penalty", "num_beam_groups", "constraints",
    "force_words_ids", "is_assistant",
}  # fmt: skip


@cache
def build_model() -> Any:
    return build_looped(**OURO).double()


def make_config(**options: Any) -> GenerationConfig:
    config = GenerationConfig(**COMMON)
    if "exponential_decay_length_penalty" in options:
        config.eos_token_id = 2
    for name, value in options.items():  # also values that a new configuration refuses alone
        setattr(config, name, value)
    return config


def generate(prompt: list[int], config: GenerationConfig, **options: Any) -> list[int]:
    ids = torch.tensor([prompt])
    output = build_model().generate(ids, generation_config=config, attention_mask=torch.ones_like(ids), **options)
    return output[0, len(prompt) :].tolist()


def test_every_option_is_tested() -> None:
    """Compare with the options of transformers, of which a new one must be served or refused, too."""
    options = {name for name in vars(GenerationConfig()) if not name.startswith("_")} - {"transformers_version"}
    assert options <= set(OPTIONS)


@pytest.mark.parametrize("name", keep_one_quick(8, [name for name in OPTIONS if name not in REFUSED]))
def test_tokens_are_those_of_generate(name: str) -> None:
    config = make_config(**{name: OPTIONS[name]})
    if name == "max_length":
        config.max_new_tokens = None
    if name == "return_dict_in_generate":
        expected = [generate(prompt, make_config()) for prompt in PROMPTS]
    else:
        expected = [generate(prompt, config) for prompt in PROMPTS]
    decoded = decode_texts(build_model(), PROMPTS, config, cache_policy="all", places=2)
    assert [tokens.tolist() for tokens in decoded.tokens] == expected


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_other_options_are_refused(name: str) -> None:
    config = make_config(**{name: OPTIONS[name]}, do_sample=name == "num_return_sequences")
    with pytest.raises(ConfigError, match=f"^{name}=.*: decode_texts supports only") as raised:
        decode_texts(build_model(), PROMPTS, config)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "options", keep_one_quick(3, [{"forced_eos_token_id": 2}, {"forced_eos_token_id": 2, "max_new_tokens": 30}, {}])
)
def test_lengths_are_those_of_generate(options: dict[str, Any]) -> None:
    """Check also without any length, which means 20 new tokens, and with the model's own configuration."""
    config = GenerationConfig(do_sample=False, pad_token_id=0, **options)
    decoded = decode_texts(build_model(), PROMPTS, config, cache_policy="all")
    assert [tokens.tolist() for tokens in decoded.tokens] == [generate(prompt, config) for prompt in PROMPTS]


def test_a_watermark_with_memory_belongs_to_one_text() -> None:
    config = make_config(watermarking_config=SYNTH)
    decoded = decode_texts(build_model(), PROMPTS, config, cache_policy="all", places=2)
    assert [tokens.tolist() for tokens in decoded.tokens] == [generate(prompt, config) for prompt in PROMPTS]


@pytest.mark.parametrize("name", ["guidance_scale", "dola_layers", "penalty_alpha", "prompt_lookup_num_tokens"])
def test_self_speculation_refuses_other_decoding(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}=.*: self-speculation supports only"):
        generate(PROMPTS[0], make_config(**{name: OPTIONS[name]}), custom_generate=self_speculation)


def test_self_speculation_refuses_a_watermark_with_memory() -> None:
    with pytest.raises(ConfigError, match=r"^watermarking_config: self-speculation"):
        generate(PROMPTS[0], make_config(watermarking_config=SYNTH), custom_generate=self_speculation)


@pytest.mark.parametrize("name", keep_one_quick(4, [
    "encoder_repetition_penalty", "encoder_no_repeat_ngram_size", "no_repeat_ngram_size", "forced_eos_token_id",
    "exponential_decay_length_penalty", "sequence_bias", "watermarking_config", "begin_suppress_tokens",
]))  # fmt: skip
def test_self_speculation_has_the_tokens_of_generate(name: str) -> None:
    config = make_config(**{name: OPTIONS[name]})
    assert generate(PROMPTS[0], config, custom_generate=self_speculation) == generate(PROMPTS[0], config)
