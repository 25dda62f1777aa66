"""Configurations of folders with excessive counts, refused before a model is built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from adadepth import LoopedConfig, TrmConfig
from adadepth.errors import CheckpointError, ConfigError
from adadepth.models.folder import read_config
from tests.unit.models.looped.published_support import HRM_TEXT, HUGINN, NANBEIGE, OURO

MANY = 10**12
HRM = {**HRM_TEXT, "model_type": "hrm_text"}


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ({**OURO, "model_type": "ouro"}, "total_ut_steps"),
        ({**OURO, "model_type": "ouro"}, "num_hidden_layers"),
        ({**HUGINN, "model_type": "huginn_raven"}, "mean_recurrence"),
        ({**HUGINN, "model_type": "huginn_raven"}, "n_layers_in_coda"),
        (NANBEIGE, "num_loops"),
        (HRM, "H_cycles"),
        (HRM, "L_cycles"),
        ({"model_type": "looped", "core": 2}, "num_loops"),
        ({"model_type": "looped"}, "prelude"),
        ({"model_type": "looped"}, "low_layers"),
        ({"model_type": "looped", "low_layers": 2}, "low_cycles"),
    ],
)
def test_a_count_of_a_looped_folder_is_bounded(stored: dict[str, Any], name: str) -> None:
    with pytest.raises((CheckpointError, ConfigError), match=rf"^{name}={MANY}:? ") as caught:
        LoopedConfig.from_dict({**stored, name: MANY})
    assert "at most" in str(caught.value)


@pytest.mark.parametrize("name", ["num_layers", "answer_layers", "cycles", "reasoning_updates", "num_steps"])
def test_a_count_of_a_recursive_model_is_bounded(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}={MANY}: .*at most"):
        TrmConfig(**{name: MANY})


@pytest.mark.parametrize("nested", [False, True])
def test_a_network_of_transformers_is_bounded(tmp_path: Path, nested: bool) -> None:
    stored = {**LlamaConfig().to_dict(), "num_hidden_layers": MANY}
    stored = {"model_type": "llava", "text_config": stored} if nested else stored
    (tmp_path / "config.json").write_text(json.dumps(stored))
    name = r"text_config\.num_hidden_layers" if nested else "num_hidden_layers"
    with pytest.raises(CheckpointError, match=rf"^checkpoint=.*: its config.json: {name}={MANY} must be at most 4096$"):
        read_config("checkpoint", str(tmp_path))


def test_an_integer_beyond_int64_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^rope_theta=1000.*: must be an integer of 64 bits$"):
        LoopedConfig(rope_theta=10**30)
    assert LoopedConfig(rope_theta=1e30).rope_theta == 1e30


@pytest.mark.parametrize("step", [True, -1, 1.0, "1"])
def test_the_step_of_an_exit_must_be_an_integer(step: Any) -> None:
    with pytest.raises(CheckpointError, match=r"early_exit_step=.*: must be a whole number"):
        LoopedConfig.from_dict({**OURO, "model_type": "ouro", "early_exit_step": step})
