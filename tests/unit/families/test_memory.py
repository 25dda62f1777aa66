"""A model that no machine can hold is refused before it is made."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from adadepth.errors import ConfigError
from adadepth.families.build import build_classifier, build_language_model, build_pretraining_model
from tests.configs.support import configured


@pytest.mark.parametrize(
    ("root", "build"),
    [
        ("act_tiny", build_pretraining_model),
        ("ponder_tiny", partial(build_classifier, fields={"num_labels": 2})),
        ("par_tiny", build_language_model),
    ],
)
def test_a_vocabulary_of_billions_is_refused_at_once(root: str, build: Callable[..., Any]) -> None:
    model = configured(root, "debug=default").model
    begun = time.monotonic()
    says = r"^model.name=\w+: its weights take .* GiB \(.*embedding.* GiB.*this machine has"
    with pytest.raises(ConfigError, match=says):
        build(model, 10**11)
    assert time.monotonic() - begun < 5


def test_looking_at_the_size_draws_no_number() -> None:
    model = configured("act_tiny", "debug=default").model
    torch.manual_seed(0)
    weights = build_pretraining_model(model, 100).state_dict()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("adadepth.families.build.check_memory", lambda *_: None)
        torch.manual_seed(0)
        unchecked = build_pretraining_model(model, 100).state_dict()
    assert all(torch.equal(weights[name], unchecked[name]) for name in unchecked)
