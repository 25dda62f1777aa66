"""A model that no memory holds is refused with its parts, and making sure costs nothing that a run would notice."""

from __future__ import annotations

import pytest
import torch

from adadepth import AlbertActForPreTraining
from adadepth.errors import ConfigError
from adadepth.families import size
from adadepth.families.build import build_pretraining_model
from tests.configs.support import configured
from tests.models_support import small_config


def test_the_parts_are_those_of_the_model_that_is_made() -> None:
    model = AlbertActForPreTraining(small_config())
    count = sum(parameter.numel() for parameter in model.parameters())
    needed = size.needed_bytes(AlbertActForPreTraining, small_config())
    assert needed == {"weights": 4 * count, "gradients": 4 * count, "optimizer": 8 * count}


@pytest.mark.parametrize("width", [10**11, 2**62])
def test_what_no_memory_holds_is_refused_in_one_line(width: int) -> None:
    settings = configured("act_tiny", f"model.intermediate_size={width}").model
    with pytest.raises(ConfigError, match=r"^model: training it needs [\d,.]+ GiB \(weights .*, here are ") as error:
        build_pretraining_model(settings, 1000)
    assert "\n" not in str(error.value)


def test_what_just_fits_is_built_as_without_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = configured("act_tiny").model
    torch.manual_seed(3)
    expected = build_pretraining_model(settings, 300).state_dict()
    exact = size.needed_bytes(AlbertActForPreTraining, build_pretraining_model(settings, 300).config)
    assert exact is not None
    monkeypatch.setattr(size, "total_memory", lambda: sum(exact.values()))
    torch.manual_seed(3)
    found = build_pretraining_model(settings, 300).state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    monkeypatch.setattr(size, "total_memory", lambda: sum(exact.values()) - 1)
    with pytest.raises(ConfigError, match="model: training it needs"):
        build_pretraining_model(settings, 300)
