"""Prompts of language models: invalid ones, and drafts that a model cannot make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from adadepth.errors import ConfigError, DataError
from tests.unit.models.looped.looped_support import build_looped
from tests.unit.models.par_xl_support import build_network

MODELS: dict[str, Callable[[], Any]] = {"looped": build_looped, "par_xl": build_network}
PROMPTS: dict[str, tuple[Any, str]] = {
    "no token": (torch.zeros(1, 0, dtype=torch.long), r"input_ids of shape \(1, 0\)"),
    "no row": (torch.zeros(0, 3, dtype=torch.long), r"input_ids of shape \(0, 3\)"),
    "one dimension": (torch.tensor([1, 2]), r"input_ids of shape \(2,\)"),
    "too high": (torch.tensor([[1, 10**6]]), "input_ids from 1 to 1000000: must be from 0 to"),
    "negative": (torch.tensor([[-3, 1]]), "input_ids from -3 to 1: must be from 0 to"),
    "floats": (torch.tensor([[1.0, 2.0]]), "input_ids of type torch.float32"),
    "a list": ([[1, 2]], "input_ids: must be a tensor of token ids"),
}


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("name", MODELS)
def test_invalid_prompts_are_refused_in_one_line(name: str, prompt: str) -> None:
    model, (ids, message) = MODELS[name]().eval(), PROMPTS[prompt]
    with pytest.raises(DataError, match=message) as raised:
        model.generate(ids, max_new_tokens=2)
    assert "\n" not in str(raised.value)
    with pytest.raises(DataError, match=message):
        model.generate(input_ids=ids, max_new_tokens=2)


@pytest.mark.parametrize("prompt", ["no token", "no row", "one dimension", "too high", "negative"])
def test_a_forward_pass_refuses_invalid_ids(prompt: str) -> None:
    with pytest.raises(ValueError, match=r"input of shape|input_ids from"):
        build_looped()(PROMPTS[prompt][0])


@pytest.mark.parametrize("name", MODELS)
def test_drafts_without_early_exits_are_refused(name: str) -> None:
    model = MODELS[name]().eval()
    with pytest.raises(ConfigError, match="assistant_early_exit=1: ") as raised:
        model.generate(torch.tensor([[1, 2]]), assistant_early_exit=1, max_new_tokens=2)
    assert ("self_speculation" in str(raised.value)) == (name == "looped")
    model.generation_config.assistant_early_exit = 1
    with pytest.raises(ConfigError, match="assistant_early_exit=1: "):
        model.generate(torch.tensor([[1, 2]]), max_new_tokens=2)


def test_the_number_of_layers_of_a_looped_model_is_read_only() -> None:
    config = build_looped().config
    with pytest.raises(ConfigError, match="num_hidden_layers=2: computed from prelude, core, coda"):
        config.num_hidden_layers = 2
