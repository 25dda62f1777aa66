"""Self-speculative decoding of looped models, which gives the tokens of full depth."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from transformers import DynamicCache, GenerationConfig, LogitsProcessorList

import adadepth
from adadepth.contrib.decoding.continuous_batching import decode_texts
from adadepth.contrib.decoding.speculative_decoding import SpeculativeOutput, _AcceptedTokens, self_speculation
from adadepth.errors import ConfigError, DataError
from tests.marks_support import keep_one_quick, mark_mostly_slow
from tests.unit.models.looped.looped_support import IDS, KINDS, OURO, build_looped, build_looped_llama

NEW = 12


def test_self_speculation_is_a_public_name() -> None:
    assert adadepth.self_speculation is self_speculation
    assert adadepth.decode_texts is decode_texts


def make_prompt(padded: bool) -> dict[str, Any]:
    """Return one text, whose first two tokens are padding if `padded`."""
    mask = torch.ones_like(IDS[:1])
    mask[:, : 2 * padded] = 0
    return {"input_ids": IDS[:1], "attention_mask": mask, "pad_token_id": 0, "max_new_tokens": NEW}


def speculate(model: Any, **options: Any) -> SpeculativeOutput:
    output = model.generate(custom_generate=self_speculation, return_dict_in_generate=True, **options)
    assert isinstance(output, SpeculativeOutput)
    return output


def compute_chi_square(counts: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((counts - expected) ** 2 / expected.clamp(min=1e-9)).sum())


@pytest.mark.parametrize(
    ("kind", "draft", "padded"),
    keep_one_quick(6, [
        (kind, *draft)
        for kind in ("ouro", "huginn", "fully looped", "half way, from zeros, input added", "two states", "llama")
        for draft in (("fixed:1", False), ("margin:0.05", True))
    ]),
)  # fmt: skip
def test_the_most_probable_tokens_are_those_of_full_depth(kind: str, draft: str, padded: bool) -> None:
    model = build_looped_llama() if kind == "llama" else build_looped(**KINDS[kind])
    model, loops = model.double(), model.config.num_loops
    expected = model.generate(
        **make_prompt(padded), exit_rule=f"fixed:{loops}", output_logits=True, return_dict_in_generate=True
    )
    output = speculate(model, **make_prompt(padded), draft_rule=draft, draft_tokens=3, output_logits=True)
    assert torch.equal(output.sequences, expected.sequences)
    torch.testing.assert_close(output.logits, expected.logits)
    for ours, theirs in zip(output.past_key_values.layers, expected.past_key_values.layers, strict=True):
        torch.testing.assert_close((ours.keys, ours.values), (theirs.keys, theirs.values))


def test_compute_follows_from_accepted_drafts() -> None:
    """Count loops: drafts that are all accepted need k n + N - n loops for k tokens, drafts that are all wrong that for
    one.
    """
    model = build_looped(**OURO)
    text = make_prompt(padded=False) | {"max_new_tokens": 13}  # one is read from the prompt
    with torch.no_grad():
        for layer in model.model.core:
            layer.attention_post_norm.weight.zero_()
            layer.mlp_post_norm.weight.zero_()
        model.model.norm.weight.fill_(1)  # loops change nothing: a draft is always right
    right = speculate(model, **text, draft_rule="fixed:1", draft_tokens=4)
    assert (right.drafted, right.accepted) == (12, 12)
    assert right.core_passes == 3 * (4 + 3)
    assert right.token_loops == 12 * 4
    some = speculate(build_looped(**OURO), **text, draft_rule="fixed:1", draft_tokens=4)
    assert some.accepted < some.drafted
    whole = speculate(model, **text, draft_rule="fixed:4", draft_tokens=4)
    assert (whole.drafted, whole.core_passes) == (0, 12 * 4)


def test_a_text_ends_at_its_first_end() -> None:
    model = build_looped(**OURO)
    text = make_prompt(padded=False) | {"max_new_tokens": 15}
    whole = model.generate(**text)
    for end in whole[0, len(IDS[0]) :][[2, 5, 9]].tolist():
        expected = model.generate(**text, eos_token_id=end)
        assert torch.equal(model.generate(**text, eos_token_id=end, custom_generate=self_speculation), expected)


def test_processors_see_the_drafts() -> None:
    model = build_looped(**OURO)
    text = make_prompt(padded=False) | {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2}
    assert torch.equal(model.generate(**text, custom_generate=self_speculation), model.generate(**text))


@pytest.mark.slow
def test_a_cache_may_contain_the_start_of_the_prompt() -> None:
    model = build_looped(**OURO)
    cache = DynamicCache()
    with torch.no_grad():
        model(IDS[:1, :5], past_key_values=cache, use_cache=True)
    expected = model.generate(**make_prompt(padded=False))
    assert torch.equal(
        model.generate(**make_prompt(padded=False), past_key_values=cache, custom_generate=self_speculation), expected
    )


@pytest.mark.slow
def test_more_loops_are_drafted_and_verified() -> None:
    model = build_looped(**OURO)
    expected = model.generate(**make_prompt(padded=False), num_loops=6)
    tokens = model.generate(
        **make_prompt(padded=False), num_loops=6, custom_generate=self_speculation, draft_rule="fixed:2"
    )
    assert torch.equal(tokens, expected)


@pytest.mark.parametrize("likeness", mark_mostly_slow([0.0, 0.5, 1.0], lambda likeness: likeness == 0.5))
def test_a_draft_does_not_change_the_distribution(likeness: float) -> None:
    """Draw 6,000 times with a draft from another distribution: each token occurs as often as full depth says."""
    torch.manual_seed(0)
    other, target = torch.randn(2, 5)
    target = likeness * other + (1 - likeness) * target
    config = GenerationConfig(do_sample=True)
    committed = _AcceptedTokens(torch.zeros(1, 1, dtype=torch.long), LogitsProcessorList(), None, config, None)
    draws = 6_000
    tokens = [committed.choose(target[None], committed.draft(other[None], [])).item() for _ in range(draws)]
    expected = target.softmax(dim=0) * draws
    assert compute_chi_square(torch.bincount(torch.tensor(tokens), minlength=5), expected) < 18.5  # .999 of 4 degrees


@pytest.mark.slow
def test_drawn_tokens_have_the_distribution_of_full_depth() -> None:
    """Draw three tokens of a vocabulary of four: each of the 64 endings occurs as often as its probability says."""
    model = build_looped(**{**OURO, "vocab_size": 4, "hidden_size": 16, "num_loops": 2, "core": 1})
    start = torch.tensor([[1, 2]])
    endings = torch.tensor(list(itertools.product(range(4), repeat=3)))
    with torch.no_grad():
        logits = model(torch.cat([start.expand(64, 2), endings], dim=1)).logits[:, 1:-1].log_softmax(dim=-1)
    chances = logits.gather(2, endings.unsqueeze(-1)).sum(dim=(1, 2)).exp()
    torch.manual_seed(0)
    counts, draws = torch.zeros(64), 1500
    for _ in range(draws):
        tokens = model.generate(
            start, max_new_tokens=3, do_sample=True, pad_token_id=0, custom_generate=self_speculation, draft_tokens=2
        )
        counts[int((tokens[0, 2:] * torch.tensor([16, 4, 1])).sum())] += 1
    expected = chances * draws
    frequent = expected >= 5
    counts, expected = (
        torch.cat([cells[frequent], cells[~frequent].sum().unsqueeze(0)]) for cells in (counts, expected)
    )
    freedom = len(counts) - 1
    assert compute_chi_square(counts, expected) < freedom + 4 * (2 * freedom) ** 0.5  # four standard deviations


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft_tokens": 0}, "draft_tokens=0: must be at least 1"),
        ({"draft_rule": "expectation"}, "draft_rule=expectation: averages the predictions of all loops"),
        ({"draft_rule": "fixed:9"}, "the model has 4 steps"),
        ({"exit_rule": "fixed:2"}, "exit_rule: not supported by self-speculation, which verifies"),
        ({"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}, "one text at a time, without beams: 3 rows"),
        ({"num_beams": 2}, "one text at a time"),
        ({"cache_implementation": "static"}, "needs a DynamicCache, not StaticCache"),
        ({"use_cache": False}, "needs a DynamicCache, not none"),
        (
            {"output_hidden_states": True, "return_dict_in_generate": True},
            "output_hidden_states=True: not supported by self-speculation",
        ),
    ],
)
def test_unsupported_options_are_one_line_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_looped(**OURO).generate(**{**make_prompt(padded=False), **options}, custom_generate=self_speculation)


def test_a_prompt_without_tokens_is_a_one_line_error() -> None:
    with pytest.raises(DataError, match=r"input_ids of shape \(1, 0\)"):
        build_looped(**OURO).generate(
            torch.zeros(1, 0, dtype=torch.long), custom_generate=self_speculation, max_new_tokens=2
        )
