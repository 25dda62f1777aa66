"""Damaged model folders: each gives a one-line error, and no weight is initialised in place of a missing one."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel

from adadepth import (
    AdaLayersForSequenceClassification,
    AlbertActConfig,
    AlbertActForMaskedLM,
    AlbertActForPreTraining,
    Pipeline,
)
from adadepth.config.declaration import get_field_specs
from adadepth.errors import CheckpointError, ConfigError
from adadepth.models.build import build_classifier, build_pretraining_model, load_encoder, load_model
from adadepth.models.registry import family
from tests.models_support import SMALL, make_small_config

WEIGHTS, CONFIG, INDEX = "model.safetensors", "config.json", "model.safetensors.index.json"
LAYER = "albert.encoder.albert_layer.ffn.weight"
CLASSES = {"id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}, "problem_type": "single_label_classification"}


@pytest.fixture(scope="session")
def intact_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a model as another person would pass it on."""
    folder = tmp_path_factory.mktemp("colleague") / "model"
    torch.manual_seed(0)
    AlbertActForPreTraining(make_small_config()).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(intact_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(intact_folder, tmp_path / "model")


def build_settings(**fields: Any) -> Any:
    return family("albert_act").settings(name="albert_act", **fields)


READERS: dict[str, Callable[[str], Any]] = {
    "checkpoint": lambda path: load_model(path, AlbertActForPreTraining, build_settings(), []),
    "probe": lambda path: load_encoder(path, build_settings(), []),
    "model.pretrained": lambda path: build_classifier(
        build_settings(pretrained=path, **dict.fromkeys(SMALL)), SMALL["vocab_size"], CLASSES
    ),
    "Pipeline": Pipeline.from_pretrained,
    "model.base_model": lambda path: AdaLayersForSequenceClassification.from_base(path),
}  # fmt: skip


def edit_config(**fields: Any) -> Callable[[Path], None]:
    """Return a function that changes fields of config.json; an ellipsis removes a field."""

    def damage(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        for name, value in fields.items():
            config[name] = value
            if value is ...:
                del config[name]
        (folder / CONFIG).write_text(json.dumps(config))

    return damage


def edit_weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    """Return a function that changes the weights."""

    def damage(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS, {"format": "pt"})

    return damage


def overwrite_file(name: str, content: bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return damage


def replace_by_link(name: str, target: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return damage


def replace_by_fifo(folder: Path) -> None:
    (folder / CONFIG).unlink()
    os.mkfifo(folder / CONFIG)


def replace_by_folder(folder: Path) -> None:
    (folder / CONFIG).unlink()
    (folder / CONFIG).mkdir()


def write_index(file: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": {LAYER: file}}))

    return damage


def rename_layer(tensors: dict[str, torch.Tensor]) -> None:
    tensors["albert.encoder.albert_layer.fnn.weight"] = tensors.pop(LAYER)


def cast_weights(dtype: torch.dtype) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.update({name: weight.to(dtype) for name, weight in tensors.items()})


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "header of no JSON": (overwrite_file(WEIGHTS, struct.pack("<Q", 8) + b"{broken}"), "its weights are damaged"),
    "header without end": (overwrite_file(WEIGHTS, struct.pack("<Q", 2**62) + b"{}"), "its weights are damaged"),
    "empty weights": (overwrite_file(WEIGHTS, b""), "its weights are damaged"),
    "cut weights": (lambda folder: os.truncate(folder / WEIGHTS, 9000), "its weights are damaged"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), WEIGHTS),
    "shape": (
        edit_weights(lambda tensors: tensors.update({LAYER: torch.zeros(3, 3)})),
        r"albert_layer.ffn.weight' have the shape \(3, 3\), not \(64, 32\)"
    ),
    "int8": (edit_weights(cast_weights(torch.int8)), "have type I8, but torch.float32 or a similar type is needed"),
    "bool": (edit_weights(cast_weights(torch.bool)), "have type BOOL, but torch.float32 or a similar type is needed"),
    "a name": (
        edit_weights(rename_layer),
        f"'{LAYER}' are missing; it contains 'albert.encoder.albert_layer.fnn.weight'"
        "|weights 'encoder.albert_layer.ffn.weight' are missing",
    ),
    "all names": (
        edit_weights(lambda tensors: [tensors.update({f"x{name}": tensors.pop(name)}) for name in list(tensors)]),
        "more are missing",
    ),
    "no JSON": (overwrite_file(CONFIG, b"{"), f"its {CONFIG} is not JSON"),
    "a list": (overwrite_file(CONFIG, b"[]"), f"its {CONFIG} must contain a JSON object, not list"),
    "deep JSON": (overwrite_file(CONFIG, b"[" * 100_000), f"its {CONFIG} is not JSON"),
    "no type": (edit_config(model_type=...), r"config.json: model_type=None must be the name of a model type"),
    "unknown type": (
        edit_config(model_type="albert_atc"),
        r"unknown model_type='albert_atc'; must be one of .* \(did you mean 'albert_act'\?\)",
    ),
    "missing field": (edit_config(hidden_size=...), "config.json: missing fields: hidden_size"),
    "null": (edit_config(hidden_size=None), "config.json: .*'hidden_size' expected int, got NoneType"),
    "text for a number": (
        edit_config(num_hidden_layers="6"), "config.json: .*'num_hidden_layers' expected int, got str"
    ),
    "out of range": (edit_config(act_epsilon=2), "config.json: act_epsilon=2 must"),
    "choice": (
        edit_config(state_rule="singel"),
        r"config.json: state_rule='singel' must be one of .*did you mean 'single'",
    ),
    "not a number": (edit_config(hidden_dropout_prob=float("nan")), "config.json: hidden_dropout_prob=nan"),
    "heads": (edit_config(num_attention_heads=5), "config.json: num_attention_heads=5 must divide"),
    "another size": (edit_config(hidden_size=64), r"have the shape \(32\), not \(64\)"),
    "architectures": (edit_config(architectures=3), "architectures=3 must be a list of names"),
    "precision": (edit_config(dtype="floot32"), "config.json: .*floot32"),
    "device": (replace_by_link(WEIGHTS, "/dev/zero"), f"its {WEIGHTS} is not a regular file"),
    "endless configuration": (replace_by_link(CONFIG, "/dev/zero"), f"its {CONFIG} is not a regular file"),
    "fifo": (replace_by_fifo, f"its {CONFIG} is not a regular file"),
    "link to nothing": (replace_by_link(WEIGHTS, "nowhere"), f"its {WEIGHTS} is a broken link"),
    "folder": (replace_by_folder, f"its {CONFIG} is not a regular file"),
    "index of a pickle": (
        write_index("pytorch_model.bin"), f"its {INDEX} names 'pytorch_model.bin'; allowed are files of"
    ),
    "index outside": (write_index("../../x.safetensors"), f"its {INDEX} names '../../x.safetensors'"),
    "index of nothing": (
        write_index("model-1.safetensors"), f"its {INDEX} names model-1.safetensors, which is missing"
    ),
    "index of no map": (
        lambda folder: ((folder / WEIGHTS).unlink(), (folder / INDEX).write_text('{"weight_map": 3}')),
        "has no weight_map"
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "reader"),
    [(kind, "checkpoint") for kind in BROKEN]
    + [(kind, reader) for kind in ("shape", "a name", "null", "index of a pickle") for reader in READERS],
)
def test_a_damaged_folder_is_refused_in_one_line(kind: str, reader: str, folder: Path) -> None:
    damage, message = BROKEN[kind]
    damage(folder)
    with pytest.raises(CheckpointError, match=message) as caught:
        READERS[reader](str(folder))
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("reader", ["checkpoint", "probe", "model.pretrained"])
def test_an_intact_folder_is_loaded(reader: str, folder: Path) -> None:
    assert READERS[reader](str(folder)) is not None


def test_only_a_new_head_is_reported(intact_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    READERS["model.pretrained"](str(intact_folder))
    (line,) = [record.getMessage() for record in caplog.records if "randomly initialised" in record.getMessage()]
    assert line.startswith(
        f"model.pretrained={intact_folder}: randomly initialised, because the checkpoint lacks them: classifier."
    )
    caplog.clear()
    build_pretraining_model(build_settings(pretrained=str(intact_folder), **dict.fromkeys(SMALL)), SMALL["vocab_size"])
    assert not caplog.records


def test_a_checkpoint_of_another_head_is_not_evaluated_with_a_random_one(intact_folder: Path, tmp_path: Path) -> None:
    AlbertActForMaskedLM(make_small_config()).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"'albert\.pooler\.bias' and 3 more are missing"):
        load_model(str(tmp_path), AlbertActForPreTraining, build_settings(), [])


def test_unexpected_weights_are_refused(folder: Path) -> None:
    edit_weights(lambda tensors: tensors.update(stray=torch.zeros(2)))(folder)
    with pytest.raises(CheckpointError, match="it contains the weights 'stray', which its model does not have"):
        READERS["checkpoint"](str(folder))


def test_links_to_files_are_followed(folder: Path, tmp_path: Path) -> None:
    """Check links as in the cache of the hub and in folders of models on a shared disk."""
    other_disk = tmp_path / "another disk"
    other_disk.mkdir()
    for name in (CONFIG, WEIGHTS):
        (folder / name).rename(other_disk / name)
        (folder / name).symlink_to(other_disk / name)
    assert READERS["checkpoint"](str(folder)) is not None


def test_a_field_added_later_may_be_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that an older model gets the default, and has weights of that shape."""
    edit_config(type_vocab_size=...)(folder)
    with pytest.raises(CheckpointError, match=r"config\.json: missing fields: type_vocab_size$"):
        READERS["checkpoint"](str(folder))
    specs = get_field_specs(AlbertActConfig)
    later = {"type_vocab_size": dataclasses.replace(specs["type_vocab_size"], later=True)}
    monkeypatch.setattr("adadepth.models.folder.get_field_specs", lambda _: specs | later)
    assert READERS["checkpoint"](str(folder)).config.type_vocab_size == 2


def test_a_broken_stock_model_is_refused_in_one_line(tmp_path: Path) -> None:
    sizes = {name: size for name, size in SMALL.items() if name != "embedding_size"}
    BertModel(BertConfig(**sizes)).save_pretrained(tmp_path)
    stock = family("stock_classifier").settings(name="stock_classifier", pretrained=str(tmp_path))
    assert build_classifier(stock, SMALL["vocab_size"], CLASSES) is not None
    edit_config(num_attention_heads=5)(tmp_path)
    with pytest.raises(CheckpointError, match=r"^model\.pretrained=\S+: .*5") as caught:
        build_classifier(stock, SMALL["vocab_size"], CLASSES)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_is_reported_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = SMALL | {"hidden_act": "gelu_newest"}
    monkeypatch.setattr("adadepth.models.build._build_config", lambda *_: _build_unchecked(fields))
    with pytest.raises(ConfigError, match=r"^model\.hidden_act=gelu_newest: "):
        build_pretraining_model(build_settings(**fields), SMALL["vocab_size"])


def test_a_missing_attention_package_is_reported_with_the_setting(intact_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"^model\.attn_implementation=flash_attention_2: ") as caught:
        load_model(
            str(intact_folder),
            AlbertActForPreTraining,
            build_settings(attn_implementation="flash_attention_2"),
            ["attn_implementation"],
        )
    assert "\n" not in str(caught.value)


def _build_unchecked(fields: dict[str, Any]) -> Any:
    config = make_small_config()
    for name, value in fields.items():
        setattr(config, name, value)
    return config
