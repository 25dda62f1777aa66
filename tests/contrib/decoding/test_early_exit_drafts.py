"""Self-speculative decoding of early-exit models, which gives the tokens of full depth."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from adadepth.contrib.decoding.speculative_decoding import SpeculativeOutput, self_speculation
from adadepth.errors import ConfigError
from tests.marks_support import keep_one_quick
from tests.unit.models.early_exit.early_exit_support import DECODERS, IDS, LAYERS, build_early_exit

NEW = 12


def make_prompt(padded: bool = False) -> dict[str, Any]:
    """Return one text, whose first two tokens are padding if `padded`."""
    mask = torch.ones_like(IDS[:1])
    mask[:, : 2 * padded] = 0
    return {"input_ids": IDS[:1], "attention_mask": mask, "max_new_tokens": NEW}


def speculate(model: Any, **options: Any) -> SpeculativeOutput:
    output = model.generate(custom_generate=self_speculation, return_dict_in_generate=True, **options)
    assert isinstance(output, SpeculativeOutput)
    return output


@pytest.mark.parametrize(
    ("base", "draft", "padded"),
    keep_one_quick(7, [(base, *draft) for base in DECODERS for draft in (("fixed:1", False), ("margin:0.1", True))]),
)
def test_the_most_probable_tokens_are_those_of_full_depth(base: str, draft: str, padded: bool) -> None:
    model = build_early_exit(base=base)
    model = model if base == "gemma2" else model.double()  # transformers' Gemma 2 gives NaN for padding in float64
    expected = model.generate(**make_prompt(padded), output_logits=True, return_dict_in_generate=True)
    output = speculate(model, **make_prompt(padded), draft_rule=draft, draft_tokens=3, output_logits=True)
    assert torch.equal(output.sequences, expected.sequences)
    torch.testing.assert_close(output.logits, expected.logits)
    tokens = slice(2 * padded, output.past_key_values.get_seq_length())
    for ours, theirs in zip(output.past_key_values.layers, expected.past_key_values.layers, strict=True):
        torch.testing.assert_close(ours.keys[:, 0, :, tokens], theirs.keys[:, :, tokens])


def test_compute_follows_from_accepted_drafts() -> None:
    """Count passes: accepted drafts take 3 of the first layer and one of each other layer for 3 tokens."""
    model = build_early_exit()
    for other in torch.nn.ModuleList.__iter__(model.layers):
        other.self_attn.o_proj.weight.data.zero_()
        other.mlp.down_proj.weight.data.zero_()
    output = speculate(model, **make_prompt() | {"max_new_tokens": 13}, draft_rule="fixed:1", draft_tokens=3)
    assert (output.drafted, output.accepted) == (12, 12)  # one token from the prompt, then 4 rounds of 3
    assert output.core_passes == 4 * (3 + LAYERS - 1)
    assert output.token_loops == 12 * LAYERS


def test_unsupported_drafts_are_refused() -> None:
    model = build_early_exit()
    with pytest.raises(ConfigError, match="one text at a time"):
        model.generate(IDS, custom_generate=self_speculation, max_new_tokens=2)
    cache = DynamicCache()
    model(IDS[:1, :4], past_key_values=cache, use_cache=True)
    with pytest.raises(ConfigError, match="needs cache_policy=deferred"):
        model.generate(IDS[:1], custom_generate=self_speculation, max_new_tokens=2, past_key_values=cache)
