"""A model's folder from anywhere: what is wrong with it is one line, and no weight is drawn at random for another."""

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
from tests.models_support import SMALL, small_config

WEIGHTS, CONFIG, INDEX = "model.safetensors", "config.json", "model.safetensors.index.json"
LAYER = "albert.encoder.albert_layer.ffn.weight"
CLASSES = {"id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}, "problem_type": "single_label_classification"}


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as a colleague would hand it on."""
    folder = tmp_path_factory.mktemp("colleague") / "model"
    torch.manual_seed(0)
    AlbertActForPreTraining(small_config()).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "model")


def settings(**given: Any) -> Any:
    return family("albert_act").settings(name="albert_act", **given)


READERS: dict[str, Callable[[str], Any]] = {
    "checkpoint": lambda path: load_model(path, AlbertActForPreTraining, settings(), []),
    "probe": lambda path: load_encoder(path, settings(), []),
    "model.pretrained": lambda path: build_classifier(
        settings(pretrained=path, **dict.fromkeys(SMALL)), SMALL["vocab_size"], CLASSES
    ),
    "Pipeline": Pipeline.from_pretrained,
    "model.base_model": lambda path: AdaLayersForSequenceClassification.from_base(path),
}  # fmt: skip


def edited(**fields: Any) -> Callable[[Path], None]:
    """Damage to config.json; an ellipsis takes a field away."""

    def damage(folder: Path) -> None:
        found = json.loads((folder / CONFIG).read_text())
        for name, value in fields.items():
            found[name] = value
            if value is ...:
                del found[name]
        (folder / CONFIG).write_text(json.dumps(found))

    return damage


def weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    """Damage to the weights."""

    def damage(folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        change(found)
        save_file(found, folder / WEIGHTS, {"format": "pt"})

    return damage


def bytes_of(name: str, content: bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return damage


def link(name: str, target: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return damage


def fifo(folder: Path) -> None:
    (folder / CONFIG).unlink()
    os.mkfifo(folder / CONFIG)


def a_folder(folder: Path) -> None:
    (folder / CONFIG).unlink()
    (folder / CONFIG).mkdir()


def index(file: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": {LAYER: file}}))

    return damage


def renamed(found: dict[str, torch.Tensor]) -> None:
    found["albert.encoder.albert_layer.fnn.weight"] = found.pop(LAYER)


def typed(dtype: torch.dtype) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda found: found.update({name: weight.to(dtype) for name, weight in found.items()})


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "header of no JSON": (bytes_of(WEIGHTS, struct.pack("<Q", 8) + b"{broken}"), "its weights are damaged"),
    "header without end": (bytes_of(WEIGHTS, struct.pack("<Q", 2**62) + b"{}"), "its weights are damaged"),
    "empty weights": (bytes_of(WEIGHTS, b""), "its weights are damaged"),
    "cut weights": (lambda folder: os.truncate(folder / WEIGHTS, 9000), "its weights are damaged"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), WEIGHTS),
    "shape": (
        weights(lambda found: found.update({LAYER: torch.zeros(3, 3)})),
        r"albert_layer.ffn.weight' have the shape \(3, 3\), not \(64, 32\)"
    ),
    "int8": (weights(typed(torch.int8)), "have type I8, but torch.float32 or a similar type is needed"),
    "bool": (weights(typed(torch.bool)), "have type BOOL, but torch.float32 or a similar type is needed"),
    "a name": (
        weights(renamed),
        f"'{LAYER}' are missing; it contains 'albert.encoder.albert_layer.fnn.weight'"
        "|weights 'encoder.albert_layer.ffn.weight' are missing",
    ),
    "all names": (
        weights(lambda found: [found.update({f"x{name}": found.pop(name)}) for name in list(found)]), "more are missing"
    ),
    "no JSON": (bytes_of(CONFIG, b"{"), f"its {CONFIG} is not JSON"),
    "a list": (bytes_of(CONFIG, b"[]"), f"its {CONFIG} must contain a JSON object, not list"),
    "deep JSON": (bytes_of(CONFIG, b"[" * 100_000), f"its {CONFIG} is not JSON"),
    "no type": (edited(model_type=...), r"config.json: model_type=None must be the name of a model type"),
    "unknown type": (
        edited(model_type="albert_atc"),
        r"unknown model_type='albert_atc'; must be one of .* \(did you mean 'albert_act'\?\)",
    ),
    "missing field": (edited(hidden_size=...), "config.json: missing fields: hidden_size"),
    "null": (edited(hidden_size=None), "config.json: .*'hidden_size' expected int, got NoneType"),
    "text for a number": (edited(num_hidden_layers="6"), "config.json: .*'num_hidden_layers' expected int, got str"),
    "out of range": (edited(act_epsilon=2), "config.json: act_epsilon=2 must"),
    "choice": (edited(state_rule="singel"), r"config.json: state_rule='singel' must be one of .*did you mean 'single'"),
    "not a number": (edited(hidden_dropout_prob=float("nan")), "config.json: hidden_dropout_prob=nan"),
    "heads": (edited(num_attention_heads=5), "config.json: num_attention_heads=5 must divide"),
    "another size": (edited(hidden_size=64), r"have the shape \(32\), not \(64\)"),
    "architectures": (edited(architectures=3), "architectures=3 must be a list of names"),
    "precision": (edited(dtype="floot32"), "config.json: .*floot32"),
    "device": (link(WEIGHTS, "/dev/zero"), f"its {WEIGHTS} is not a regular file"),
    "endless configuration": (link(CONFIG, "/dev/zero"), f"its {CONFIG} is not a regular file"),
    "fifo": (fifo, f"its {CONFIG} is not a regular file"),
    "link to nothing": (link(WEIGHTS, "nowhere"), f"its {WEIGHTS} is a broken link"),
    "folder": (a_folder, f"its {CONFIG} is not a regular file"),
    "index of a pickle": (index("pytorch_model.bin"), f"its {INDEX} names 'pytorch_model.bin'; allowed are files of"),
    "index outside": (index("../../x.safetensors"), f"its {INDEX} names '../../x.safetensors'"),
    "index of nothing": (index("model-1.safetensors"), f"its {INDEX} names model-1.safetensors, which is missing"),
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
def test_a_damaged_folder_is_one_line(kind: str, reader: str, folder: Path) -> None:
    damage, message = BROKEN[kind]
    damage(folder)
    with pytest.raises(CheckpointError, match=message) as caught:
        READERS[reader](str(folder))
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("reader", ["checkpoint", "probe", "model.pretrained"])
def test_a_whole_folder_is_read(reader: str, folder: Path) -> None:
    assert READERS[reader](str(folder)) is not None


def test_a_head_that_is_new_is_told_and_no_other_weight_is(whole: Path, caplog: pytest.LogCaptureFixture) -> None:
    READERS["model.pretrained"](str(whole))
    (line,) = [record.getMessage() for record in caplog.records if "randomly initialised" in record.getMessage()]
    assert line.startswith(
        f"model.pretrained={whole}: randomly initialised, because the checkpoint lacks them: classifier."
    )
    caplog.clear()
    build_pretraining_model(settings(pretrained=str(whole), **dict.fromkeys(SMALL)), SMALL["vocab_size"])
    assert not caplog.records


def test_a_checkpoint_of_another_head_is_not_evaluated_with_a_random_one(whole: Path, tmp_path: Path) -> None:
    AlbertActForMaskedLM(small_config()).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"'albert\.pooler\.bias' and 3 more are missing"):
        load_model(str(tmp_path), AlbertActForPreTraining, settings(), [])


def test_weights_nobody_asked_for_are_refused(folder: Path) -> None:
    weights(lambda found: found.update(stray=torch.zeros(2)))(folder)
    with pytest.raises(CheckpointError, match="it contains the weights 'stray', which its model does not have"):
        READERS["checkpoint"](str(folder))


def test_links_to_files_are_followed(folder: Path, tmp_path: Path) -> None:
    """The hub's cache has them, and so have folders of models that share a disk."""
    kept = tmp_path / "another disk"
    kept.mkdir()
    for name in (CONFIG, WEIGHTS):
        (folder / name).rename(kept / name)
        (folder / name).symlink_to(kept / name)
    assert READERS["checkpoint"](str(folder)) is not None


def test_a_size_that_came_later_may_be_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model from before it means its default, and then has the weights that go with it."""
    edited(type_vocab_size=...)(folder)
    with pytest.raises(CheckpointError, match=r"config\.json: missing fields: type_vocab_size$"):
        READERS["checkpoint"](str(folder))
    about = get_field_specs(AlbertActConfig)
    later = {"type_vocab_size": dataclasses.replace(about["type_vocab_size"], later=True)}
    monkeypatch.setattr("adadepth.models.folder.get_field_specs", lambda _: about | later)
    assert READERS["checkpoint"](str(folder)).config.type_vocab_size == 2


def test_a_broken_stock_model_is_one_line(tmp_path: Path) -> None:
    sizes = {name: size for name, size in SMALL.items() if name != "embedding_size"}
    BertModel(BertConfig(**sizes)).save_pretrained(tmp_path)
    stock = family("stock_classifier").settings(name="stock_classifier", pretrained=str(tmp_path))
    assert build_classifier(stock, SMALL["vocab_size"], CLASSES) is not None
    edited(num_attention_heads=5)(tmp_path)
    with pytest.raises(CheckpointError, match=r"^model\.pretrained=\S+: .*5") as caught:
        build_classifier(stock, SMALL["vocab_size"], CLASSES)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_is_blamed_on_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    given = SMALL | {"hidden_act": "gelu_newest"}
    monkeypatch.setattr("adadepth.models.build._build_config", lambda *_: _unchecked(given))
    with pytest.raises(ConfigError, match=r"^model\.hidden_act=gelu_newest: "):
        build_pretraining_model(settings(**given), SMALL["vocab_size"])


def test_a_package_that_is_missing_is_blamed_on_the_attention(whole: Path) -> None:
    with pytest.raises(ConfigError, match=r"^model\.attn_implementation=flash_attention_2: ") as caught:
        load_model(
            str(whole),
            AlbertActForPreTraining,
            settings(attn_implementation="flash_attention_2"),
            ["attn_implementation"],
        )
    assert "\n" not in str(caught.value)


def _unchecked(given: dict[str, Any]) -> Any:
    config = small_config()
    for name, value in given.items():
        setattr(config, name, value)
    return config
