"""Continuous batching of many texts in slots: each text gets the tokens of a plain loop over it alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from adadepth.contrib.decoding.continuous_batching import decode_texts
from adadepth.errors import ConfigError
from tests.marks_support import keep_one_quick
from tests.unit.models.looped.looped_support import IDS, KINDS, OURO, build_looped, build_looped_llama
from tests.unit.models.looped.plain_cache import generate_plainly

PROMPTS = [IDS[0, :4].tolist(), IDS[1].tolist(), IDS[2, :1].tolist(), IDS[2, 2:5].tolist(), IDS[0, 3:].tolist()]
GREEDY = GenerationConfig(max_new_tokens=6, do_sample=False)


@pytest.mark.parametrize(
    ("kind", "rule", "policy"),
    keep_one_quick(6, [
        (*case, policy)
        for case in (
            ("ouro", "quantile:0.6"),
            ("huginn", "margin:0.05"),
            ("few keys, wide heads", "margin:0.1"),
            ("two states", "margin:0.1"),
            ("half way, from zeros, input added", "margin:0.05"),
            ("two states, and everything else", "margin:0.03"),
        )
        for policy in ("all", "frozen")
    ]),
)  # fmt: skip
def test_a_text_gets_the_tokens_of_a_plain_loop(kind: str, rule: str, policy: str) -> None:
    model = build_looped(**KINDS[kind]).double()
    initial_states = model.model._draw_states(torch.arange(20).unsqueeze(0))[0] if kind == "huginn" else None
    decoded = decode_texts(model, PROMPTS, GREEDY, places=2, exit_rule=rule, cache_policy=policy)
    for prompt, tokens, steps in zip(PROMPTS, decoded.tokens, decoded.exit_steps, strict=True):
        expected = generate_plainly(model.config, model.state_dict(), prompt, 6, rule, policy, initial_states)
        assert (tokens.tolist(), steps.tolist()) == expected
    assert len(set(torch.cat(decoded.exit_steps).tolist())) > 1


@pytest.mark.parametrize(
    ("kind", "policy", "step"),
    keep_one_quick(12, [
        (kind, *case)
        for kind in ("plain", "huginn", "damped", "two states", "llama")
        for case in (("all", 1), ("frozen", 2))
    ]),
)  # fmt: skip
def test_tokens_of_fixed_loops_are_those_of_generate(kind: str, policy: str, step: int) -> None:
    """Check tokens that all run the same number of loops, for which no cache policy withholds anything."""
    model = (build_looped_llama() if kind == "llama" else build_looped(**KINDS[kind])).double()
    before = model.config._attn_implementation
    decoded = decode_texts(model, PROMPTS, GREEDY, places=3, exit_rule=f"fixed:{step}", cache_policy=policy)
    for prompt, tokens in list(zip(PROMPTS, decoded.tokens, strict=True))[::2]:
        ids = torch.tensor([prompt])
        expected = model.generate(ids, generation_config=GREEDY, exit_rule=f"fixed:{step}", pad_token_id=0)
        assert tokens.tolist() == expected[0, len(prompt) :].tolist()
    assert model.config._attn_implementation == before
    assert decoded.work.loops == 5 * 5 * (step if policy == "frozen" else model.config.num_loops)


@pytest.mark.parametrize("rule", keep_one_quick(2, ["margin:0.05", "sample"]))
def test_slots_and_neighbours_change_nothing(rule: str) -> None:
    model = build_looped(**OURO).double()
    sampling = GenerationConfig(max_new_tokens=9, do_sample=True, temperature=0.7, top_k=20)
    expected = [decode_texts(model, [prompt], sampling, places=1, exit_rule=rule, seeds=[number])
                for number, prompt in enumerate(PROMPTS)]  # fmt: skip
    for slots in (2, 9):
        decoded = decode_texts(model, PROMPTS, sampling, places=slots, exit_rule=rule)
        for tokens, steps, alone in zip(decoded.tokens, decoded.exit_steps, expected, strict=True):
            assert torch.equal(tokens, alone.tokens[0])
            assert torch.equal(steps, alone.exit_steps[0])
        assert decoded.work.loops == sum(alone.work.loops for alone in expected)
    one = decode_texts(model, PROMPTS, sampling, places=1, exit_rule=rule)
    # With one place a pass is a loop of a token, or of a prompt.
    assert 5 <= one.work.passes - one.work.loops <= 5 * model.config.num_loops


def test_slots_are_busy_until_no_text_waits() -> None:
    model = build_looped(**OURO)
    longer = GenerationConfig(max_new_tokens=30, do_sample=False)
    decoded = decode_texts(model, PROMPTS * 2, longer, places=4, exit_rule="margin:0.05")
    alone = [int(steps.sum()) + model.config.num_loops for steps in decoded.exit_steps]
    # Bound of list scheduling: an equal share, and the longest text started last.
    assert decoded.work.passes <= sum(alone) / 4 + max(alone)
    assert decoded.work.passes < sum(alone) / 2


@pytest.mark.slow
def test_drawn_tokens_have_their_probabilities() -> None:
    model = build_looped(**OURO)
    chances = model(IDS[:1]).logits[0, -1].float()
    chances = torch.where(chances >= chances.topk(5).values[-1], chances, -torch.inf).softmax(0)
    once = GenerationConfig(max_new_tokens=1, do_sample=True, top_k=5)
    tokens = torch.cat(decode_texts(model, [IDS[0]] * 300, once, places=4, exit_rule="fixed:4").tokens)
    counts, expected = torch.bincount(tokens, minlength=len(chances)), chances * len(tokens)
    assert not counts[chances == 0].any()
    possible = chances > 0
    assert ((counts[possible] - expected[possible]) ** 2 / expected[possible]).sum() < 18.5  # .999 of 4 degrees


def test_a_text_ends_at_its_end_token_under_logits_processors() -> None:
    model = build_looped(**OURO).double()
    options = {"max_new_tokens": 12, "do_sample": False, "repetition_penalty": 1.3, "min_new_tokens": 3}
    first = decode_texts(model, PROMPTS, GenerationConfig(**options), places=2, exit_rule="fixed:4")
    end = int(first.tokens[1][5])
    config = GenerationConfig(**options, eos_token_id=end, pad_token_id=0)
    decoded = decode_texts(model, PROMPTS, config, places=2, exit_rule="fixed:4")
    for prompt, tokens in zip(PROMPTS, decoded.tokens, strict=True):
        expected = model.generate(torch.tensor([prompt]), generation_config=config, exit_rule="fixed:4")
        assert tokens.tolist() == expected[0, len(prompt) :].tolist()


def test_an_empty_request_has_an_empty_answer() -> None:
    model = build_looped(**OURO)
    assert decode_texts(model, []).tokens == []
    assert decode_texts(model, PROMPTS[:2], GenerationConfig(max_length=2)).tokens[0].tolist() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"places": 0}, "places=0: the number of texts decoded at once must be at least 1"),
        ({"cache_policy": "some"}, "cache_policy=some: must be one of all, frozen"),
        ({"exit_rule": "expectation"}, "exit_rule=expectation: averages the predictions of all loops"),
        ({"seeds": [1]}, "seeds: got 1 seeds for 5 prompts"),
        ({"generation_config": GenerationConfig(num_beams=2)}, "num_beams=2: decode_texts supports only 1"),
        ({"generation_config": GenerationConfig(stop_strings=["a"])}, "stop_strings"),
        ({"prompts": [[]]}, "every prompt must have"),
    ],
)
def test_unsupported_options_are_one_line_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        decode_texts(build_looped(**OURO), **{"prompts": PROMPTS, **options})
