"""The two names of a key-value cache: `cache`, and `past_key_values` as in transformers before 5.24."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from adadepth.errors import ConfigError
from adadepth.models.shared.generation import FORMER_NAME
from tests.unit.models.early_exit.early_exit_support import build_early_exit
from tests.unit.models.looped.looped_support import build_looped
from tests.unit.models.par_xl_support import build_network
from tests.unit.models.routed.routed_support import build_routed

MODELS: dict[str, Callable[[], Any]] = {
    "looped": build_looped, "early exit": build_early_exit, "routed": build_routed, "network": build_network,
}  # fmt: skip
IDS = torch.arange(8).expand(2, 8) + 1


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_cache_is_passed_and_read_by_both_names(name: str) -> None:
    model = MODELS[name]().eval()
    expected = model(IDS).logits[:, 5:]
    for argument in ("cache", FORMER_NAME):
        output = model(IDS[:, :5], use_cache=True)
        assert output.cache is output.past_key_values is output["cache"] is output[FORMER_NAME] is not None
        assert "cache" in output
        assert FORMER_NAME in output
        assert FORMER_NAME not in list(output)
        torch.testing.assert_close(model(IDS[:, 5:], **{argument: output.cache}).logits, expected, atol=1e-5, rtol=1e-5)
    assert "cache" not in model(IDS)
    assert FORMER_NAME not in model(IDS)


def test_a_call_with_both_names_of_a_cache_is_refused() -> None:
    model = build_looped()
    cache = model(IDS, use_cache=True).cache
    with pytest.raises(ConfigError, match="cache and past_key_values"):
        model(IDS, cache=cache, past_key_values=cache)


@pytest.mark.parametrize("argument", ["cache", FORMER_NAME])
def test_generation_takes_a_cache_by_both_names(argument: str) -> None:
    model, options = build_looped().eval(), {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
    cache = model(IDS[:, :5], use_cache=True).cache
    assert torch.equal(model.generate(IDS, **{argument: cache}, **options), model.generate(IDS, **options))
    assert cache.get_seq_length() == IDS.shape[1] + 2


@pytest.mark.parametrize("name", MODELS)
def test_generation_computes_a_token_once(name: str) -> None:
    model, widths = MODELS[name]().eval(), []
    embeddings = model.get_input_embeddings()
    embeddings.register_forward_hook(lambda _, inputs, output: widths.append(inputs[0].shape[-1]))
    model.generate(IDS, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    assert widths == [8, 1, 1]
