"""Generation of PAR-XL with a cache: the same words as without, at constant compute per token."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache, StaticCache

from adadepth.errors import ConfigError, DataError
from adadepth.models.par_xl.attention import Context, ParXLCache
from tests.marks_support import keep_one_quick
from tests.unit.models import par_xl_support
from tests.unit.models.par_xl_support import ORIGINAL, build_network

FREE = {"eos_token_id": None, "initializer_range": 1.0, "memory_length": 64}
CHANGES = [{}, ORIGINAL, {"branch_norm": "paper", "clamp_length": 3}, {"tie_word_embeddings": True, "cutoffs": [9, 20]}]
BEAMS = [{}, {"num_beams": 3}, {"num_beams": 4, "num_return_sequences": 2, "top_k": 5, "do_sample": True}]


def draw_words(*args, **options):
    """Draw ids without the padding id, which `generate` would remove from a prompt."""
    return par_xl_support.draw_words(*args, **options).clamp(min=1)


def generate(model, prompt, **options):
    return model.generate(prompt, **({"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0} | options))


@pytest.mark.parametrize(("changes", "options"), keep_one_quick(5, product(CHANGES, BEAMS)))
def test_a_cache_changes_no_word(changes, options):
    model, prompt, texts = build_network("sfs-fs", **FREE, **changes), draw_words(rows=3, length=7), []
    for use_cache in (True, False):
        torch.manual_seed(0)
        texts.append(generate(model, prompt, use_cache=use_cache, no_repeat_ngram_size=2, **options))
    assert torch.equal(*texts)
    assert len(set(texts[0][0, 7:].tolist())) > 3


def test_greedy_words_equal_those_of_full_passes():
    model, text = build_network("sfsf", **FREE), draw_words(rows=2, length=4)
    generated = generate(model, text)
    for _ in range(12):
        text = torch.cat([text, model(text).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(generated, text)


def test_sampling_draws_the_same_words():
    model, prompt, texts = build_network("sfs", **FREE), draw_words(rows=3, length=7), []
    for use_cache in (True, False):
        torch.manual_seed(3)
        texts.append(generate(model, prompt, use_cache=use_cache, do_sample=True, temperature=3.0))
    assert torch.equal(*texts)
    torch.manual_seed(4)
    assert not torch.equal(texts[0], generate(model, prompt, do_sample=True, temperature=3.0))


@pytest.mark.parametrize("options", keep_one_quick(2, [{}, {"num_beams": 3}]), ids=["greedy", "beams"])
def test_prompts_of_several_lengths_are_generated_in_one_batch(options):
    model = build_network("sfs-fs", **FREE)
    prompts = [draw_words(rows=1, length=length, seed=length)[0] for length in (3, 8, 1, 5)]
    ids = torch.stack([torch.nn.functional.pad(prompt, (8 - len(prompt), 0)) for prompt in prompts])
    mask = torch.stack([torch.arange(8) >= 8 - len(prompt) for prompt in prompts]).long()
    together = generate(model, ids, attention_mask=mask, **options)[:, 8:]
    for prompt, generated in zip(prompts, together, strict=True):
        assert torch.equal(generate(model, prompt[None], **options)[0, len(prompt) :], generated)


@pytest.mark.parametrize("lengths", keep_one_quick(3, [[12], [7, 5], [1] * 12, [3, 1, 1, 4, 3]]))
@pytest.mark.parametrize("changes", CHANGES)
def test_a_text_read_through_a_cache_equals_one_in_one_piece(changes, lengths):
    model, ids = build_network("sfs-s", memory_length=12, **changes), draw_words(length=12)
    cache, parts = ParXLCache(model.config), []
    for segment in ids.split(lengths, dim=1):
        outputs = model(segment, past_key_values=cache)
        assert outputs.memory is None
        assert outputs.past_key_values is cache
        parts.append(outputs.logits)
    assert cache.get_seq_length() == 12
    torch.testing.assert_close(torch.cat(parts, dim=1), model(ids).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("memory_length", [1, 3, 5])
def test_a_cache_equals_a_memory(memory_length):
    """Check also a cache shorter than the text: both attend to the last M tokens and the token itself."""
    model, ids = build_network("sfs-s", memory_length=memory_length), draw_words(length=12)
    cache, memory = ParXLCache(model.config), None
    for token in ids.split([4, *[1] * 8], dim=1):
        cached, remembered = model(token, past_key_values=cache), model(token, memory=memory)
        memory = remembered.memory
        torch.testing.assert_close(cached.logits, remembered.logits, atol=1e-5, rtol=1e-5)
        assert cached.trace.execution.memory_length == remembered.trace.execution.memory_length <= memory_length
        assert cache.layers[0].keys.shape[2] <= memory_length
    assert cache.get_seq_length() == 12
    whole = model(ids).logits
    assert (whole[:, -1] - cached.logits[:, -1]).abs().max() > 1e-2, "the cache is shorter than the text"


def test_with_the_same_length_for_all_a_short_memory_suffices_for_any_text():
    model, prompt = build_network("sfs", **(FREE | {"memory_length": 4}), same_length=True), draw_words(length=9)
    assert torch.equal(generate(model, prompt), generate(model, prompt, use_cache=False))


def test_padding_outside_a_short_cache_changes_nothing():
    model = build_network("sfs-s", memory_length=3)
    text, mask = draw_words(rows=1, length=9), torch.ones(1, 14, dtype=torch.long)
    mask[:, :5] = 0
    padded, plain = ParXLCache(model.config), ParXLCache(model.config)
    first = torch.cat([torch.zeros(1, 5, dtype=torch.long), text[:, :2]], dim=1)
    model(first, attention_mask=mask[:, :7], past_key_values=padded)
    model(text[:, :2], past_key_values=plain)
    for read in range(2, 9):
        token = text[:, read : read + 1]
        logits = model(token, attention_mask=mask[:, : read + 6], past_key_values=padded).logits
        torch.testing.assert_close(logits, model(token, past_key_values=plain).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_a_given_cache_is_used():
    model, prompt = build_network("sfs", **(FREE | {"memory_length": 2})), draw_words(length=9)
    everything = generate(model, prompt, use_cache=False)
    assert not torch.equal(generate(model, prompt), everything), "two positions are less than the prompt"
    for cache in (ParXLCache(model.config, memory_length=64), DynamicCache(), DynamicCache(config=model.config)):
        assert torch.equal(generate(model, prompt, past_key_values=cache), everything)
    none = build_network("sfs", **(FREE | {"memory_length": 0}))
    assert torch.equal(generate(none, prompt), generate(none, prompt, use_cache=False)), (
        "without memory, the cache keeps all tokens"
    )


def test_a_text_continues_from_its_cache():
    model, prompt = build_network("sfs-", **FREE), draw_words(length=5)
    whole = generate(model, prompt, max_new_tokens=10)
    first = generate(model, prompt, max_new_tokens=4, return_dict_in_generate=True)
    second = generate(model, first.sequences, past_key_values=first.past_key_values, max_new_tokens=6)
    assert torch.equal(second, whole)


@pytest.mark.slow
def test_a_smaller_model_may_draft():
    model, assistant, prompt = build_network("sfs-", **FREE), build_network("sf", **FREE), draw_words(rows=1, length=5)
    assert torch.equal(generate(model, prompt, assistant_model=assistant), generate(model, prompt))
    assert torch.equal(generate(model, prompt, prompt_lookup_num_tokens=2), generate(model, prompt))


def test_generation_without_attention_equals_that_without_a_cache():
    model, prompt = build_network("f-ff", **FREE), draw_words(length=5)
    assert torch.equal(generate(model, prompt), generate(model, prompt, use_cache=False))


# ---- compute


def measure_next_token(model, prefix, rows=1):
    """Return multiply-accumulates, and rows read by linear layers, of one token after a prefix."""
    cache, read = ParXLCache(model.config), []
    for start in range(0, prefix, 8):
        model(draw_words(rows, min(8, prefix - start), seed=start), past_key_values=cache)
    model(draw_words(rows, 1), past_key_values=cache)  # projects the last distance
    hooks = [
        module.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].shape[:-1].numel()))
        for module in model.modules()
        if isinstance(module, torch.nn.Linear)
    ]
    with FlopCounterMode(display=False) as counter:
        model(draw_words(rows, 1, seed=9), past_key_values=cache)
    for hook in hooks:
        hook.remove()
    return counter.get_total_flops(), read


@torch.no_grad()
def test_macs_of_a_token_do_not_grow_with_the_prefix():
    model = build_network("sfs-", memory_length=16)
    model.set_attn_implementation("eager")  # the fused kernel of a CPU is not counted
    short, long = measure_next_token(model, 20), measure_next_token(model, 200)
    assert short == long
    # Queries, keys and values, and output of two blocks that attend, two layers of the one that feeds forward, and the
    # words; no distance is projected again.
    assert long[1] == [1] * (2 * 3 + 2 + 1)


@torch.no_grad()
def test_a_prefix_within_memory_only_adds_products_with_its_keys():
    model = build_network("sfs-", memory_length=500)
    model.set_attn_implementation("eager")  # the fused kernel of a CPU is not counted
    work = {prefix: measure_next_token(model, prefix) for prefix in (20, 120, 220)}
    # Each attention block projects one more distance, that of the position that would be dropped.
    assert work[20][1] == work[220][1] == [1] * (2 * 4 + 2 + 1)
    per_position = 2 * 2 * 3 * model.config.hidden_size  # two blocks; content, distance and values
    assert work[220][0] - work[120][0] == pytest.approx(100 * per_position, rel=0.2)


# ---- errors


def test_contradictions_are_refused_in_one_line():
    model, ids = build_network("sfs"), draw_words()
    memory = model(ids).memory
    for options in ({"past_key_values": ParXLCache(model.config)}, {"use_cache": True}):
        with pytest.raises(DataError, match=r"^memory and cache: both hold the previous text; pass one of them"):
            model(ids, memory=memory, **options)
    with pytest.raises(DataError, match=r"^cache=StaticCache: must be a dynamic cache, such as ParXLC"):
        model(ids, past_key_values=StaticCache(config=model.config, max_cache_len=20))
    with pytest.raises(ConfigError, match=r"^cache_implementation=static: par_xl supports only dynamic, or none$"):
        generate(model, ids, cache_implementation="static")


def test_the_context_applies_with_a_cache():
    model, ids, context = build_network("sfs", memory_length=12), draw_words(length=12), Context(4, 2, True)
    cache = ParXLCache(model.config)
    parts = [model(part, past_key_values=cache, context=context).logits for part in ids.split([7, 1, 4], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(ids, context=context).logits, atol=1e-5, rtol=1e-5)
