"""Checkpoints with low-rank adapters and incompatible files: a one-line error, and no other file is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from adadepth.errors import CheckpointError
from adadepth.models.adapter_weights import read_merged_weights, write_scale
from adadepth.models.loading import StrictLoading
from adadepth.models.shared.published_files import load_stored_weights

BASE, A, B = "layer.base_layer.weight", "layer.lora_A.default.weight", "layer.lora_B.default.weight"
WEIGHTS = {BASE: torch.zeros(6, 4), A: torch.ones(2, 4), B: torch.ones(6, 2), "norm.weight": torch.ones(4)}


def write(folder: Path, **changed: Tensor | None) -> Path:
    tensors = {"base": BASE, "down": A, "up": B}
    weights = WEIGHTS | {tensors[name]: value for name, value in changed.items()}
    save_file({name: value for name, value in weights.items() if value is not None}, folder / "model.safetensors")
    write_scale(folder, 0.5)
    return folder


def test_an_extra_file_next_to_the_weights_is_not_read(tmp_path: Path) -> None:
    write(tmp_path)
    save_file({"norm.weight": torch.zeros(4), "stray": torch.ones(1)}, tmp_path / "model_old.safetensors")
    merged = read_merged_weights(tmp_path)
    assert set(merged) == {"layer.weight", "norm.weight"}
    assert merged["layer.weight"].equal(torch.ones(6, 4))
    assert merged["norm.weight"].equal(torch.ones(4))
    assert "stray" not in load_stored_weights(tmp_path)


def test_only_the_files_of_an_index_are_read(tmp_path: Path) -> None:
    (write(tmp_path) / "model.safetensors").rename(tmp_path / "model-00001-of-00001.safetensors")
    save_file({"stray": torch.ones(1)}, tmp_path / "model-00009-of-00009.safetensors")
    index: dict[str, Any] = {"weight_map": dict.fromkeys(WEIGHTS, "model-00001-of-00001.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert set(read_merged_weights(tmp_path)) == {"layer.weight", "norm.weight"}
    for damaged in ({"weight_map": {"a": "../a"}}, {"weight_map": {"a": 3}}, {"weight_map": 3}, []):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(damaged))
        with pytest.raises(CheckpointError, match=r"index.json: (names '../a'; allowed|is damaged)"):
            read_merged_weights(tmp_path)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (
            {"up": torch.ones(1, 2)},
            r"'layer\.weight' have the shapes \(1, 2\) and \(2, 4\), whose product has not the shape \(6, 4\)",
        ),
        ({"down": torch.ones(3, 4)}, r"have the shapes \(6, 2\) and \(3, 4\)"),
        ({"up": torch.ones(2)}, r"have the shapes \(2,\) and"),
        ({"base": torch.ones(())}, r"the shape \(\) of the matrix"),
        ({"up": None}, r"'layer\.lora_B\.default\.weight' is missing"),
        ({"down": None}, r"'layer\.lora_A\.default\.weight' is missing"),
        ({"base": None}, r"'layer\.weight' is missing"),
        ({"up": None, "down": None}, r"its lora\.json names adapters, but its weights have none; delete lora\.json"),
    ],
)
def test_incompatible_adapters_are_refused_in_one_line(tmp_path: Path, changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem) as caught:
        read_merged_weights(write(tmp_path, **changed))
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ['{"scale": NaN}', '{"scale": 1e999}', '{"scale": true}', "{}", "[1]", "x"])
def test_a_non_numeric_scale_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (write(tmp_path) / "lora.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"lora\.json"):
        read_merged_weights(tmp_path)


def test_an_adapter_next_to_full_weights_is_refused(tmp_path: Path) -> None:
    (write(tmp_path) / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"adapter_config\.json beside the full weights model\.safetensors"):
        StrictLoading.from_pretrained(tmp_path)
