"""Errors of `from_pretrained` in Python, equal to those of the command line, for every class of a family."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AlbertConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification

import adadepth
from adadepth import (
    AlbertActConfig,
    AlbertActForMaskedLM,
    AlbertActForPreTraining,
    AlbertActForSequenceClassification,
    AlbertActModel,
    LoopedForCausalLM,
    ParXLModel,
    PonderAlbertModel,
)
from adadepth.errors import CheckpointError, ConfigError
from adadepth.models.albert.modeling import PlainAlbertModel
from adadepth.models.build import load_model
from adadepth.models.folder import load_with_weights, read_config
from adadepth.models.loading import StrictLoading
from adadepth.models.registry import families, family
from tests.marks_support import keep_one_quick
from tests.models_support import SMALL, make_small_config, make_small_ponder
from tests.unit.models.every_model_support import BUILD
from tests.unit.models.looped.looped_support import build_looped
from tests.unit.models.par_xl_support import build_network

WEIGHTS, CONFIG = "model.safetensors", "config.json"
ENCODERS: dict[str, Callable[[], Any]] = {
    "act encoder": lambda: AlbertActModel(make_small_config()),
    "albert encoder": lambda: PlainAlbertModel(AlbertConfig(**SMALL)),
    "ponder encoder": lambda: PonderAlbertModel(make_small_ponder().config),
    "looped encoder": lambda: build_looped(adadepth.LoopedModel),
    "looped language": build_looped,
    "par_xl encoder": lambda: ParXLModel(build_network().config),
}
MODELS = BUILD | ENCODERS


@pytest.fixture(scope="module", params=keep_one_quick(4, MODELS))
def saved_once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Return the class of a model and its folder."""
    model, folder = MODELS[request.param](), tmp_path_factory.mktemp("written") / "model"
    model.save_pretrained(folder, **({"save_base": True} if request.param == "mixture" else {}))
    return type(model), folder


@pytest.fixture
def model_copy(saved_once: tuple[Any, Path], tmp_path: Path) -> tuple[Any, Path]:
    """Return the class of a model and a folder that a test may change."""
    model_class, folder = saved_once
    return model_class, shutil.copytree(folder, tmp_path / "model")


@pytest.fixture(scope="module")
def intact_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "model"
    torch.manual_seed(0)
    AlbertActForSequenceClassification(make_small_config()).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(intact_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(intact_folder, tmp_path / "model")


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    weights = {name: weight.clone() for name, weight in load_file(folder / WEIGHTS).items()}
    save_file(change(weights), folder / WEIGHTS, metadata={"format": "pt"})


def configure(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | fields))


def catch_error_line(call: Callable[[], Any]) -> str:
    """Return the one line of an error."""
    with pytest.raises((CheckpointError, ConfigError)) as raised:
        call()
    assert "\n" not in str(raised.value)
    return str(raised.value)


# ---- every class of every family


def test_every_class_is_strict() -> None:
    importers = [
        importer
        for descriptor in families().values()
        for importer in (*descriptor.heads.values(), *descriptor.auto.values(), descriptor.encoder)
        if importer is not None
    ]
    classes = dict.fromkeys(importer() for importer in importers)
    lenient = [
        model_class
        for model_class in classes
        if model_class.__module__.startswith("adadepth.") and not issubclass(model_class, StrictLoading)
    ]
    assert not lenient


def test_an_intact_folder_is_loaded_with_its_report(model_copy: tuple[Any, Path]) -> None:
    model_class, folder = model_copy
    model, report = model_class.from_pretrained(folder, output_loading_info=True)
    assert isinstance(model, model_class)
    assert not report["missing_keys"]
    stored = load_file(folder / WEIGHTS)
    assert all(torch.equal(weight, stored[name]) for name, weight in model.state_dict().items() if name in stored)


def test_a_missing_weight_is_refused(model_copy: tuple[Any, Path]) -> None:
    model_class, folder = model_copy
    name = min(load_file(folder / WEIGHTS), key=len)
    rewrite(folder, lambda weights: {key: weight for key, weight in weights.items() if key != name})
    line = catch_error_line(lambda: model_class.from_pretrained(folder))
    assert line.startswith(f"{folder}: its weights {name!r} ")
    assert line.partition(" missing")[1]


def test_an_unexpected_weight_is_refused(model_copy: tuple[Any, Path]) -> None:
    model_class, folder = model_copy
    rewrite(folder, lambda weights: weights | {"lora_A.weight": torch.ones(1)})
    if model_class.config_class.__module__.startswith("transformers."):  # others may have more weights
        assert isinstance(model_class.from_pretrained(folder), model_class)
        return
    expected = f"{folder}: it contains the weights 'lora_A.weight', which its model does not have"
    assert catch_error_line(lambda: model_class.from_pretrained(folder)) == expected


def test_another_model_type_is_refused_with_both_names(model_copy: tuple[Any, Path]) -> None:
    model_class, folder = model_copy
    configure(folder, model_type="dinov2")
    line = catch_error_line(lambda: model_class.from_pretrained(folder))
    assert "dinov2" in line
    if not model_class.config_class.__module__.startswith("transformers."):
        assert model_class.config_class.model_type in line
        assert "dinov2" in catch_error_line(lambda: model_class.config_class.from_pretrained(folder))


# ---- accepted and refused checkpoints


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "base_model.model."])
def test_prefixes_of_wrapped_models_are_named(prefix: str, folder: Path) -> None:
    rewrite(folder, lambda weights: {prefix + name: weight for name, weight in weights.items()})
    line = catch_error_line(lambda: AlbertActForSequenceClassification.from_pretrained(folder))
    assert f"its names begin with {prefix!r}" in line


@pytest.mark.parametrize("damage", ["missing", "unread", "shape", "int8"])
def test_python_and_the_command_line_give_the_same_error(damage: str, folder: Path) -> None:
    name = "classifier.weight"
    changes: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
        "missing": lambda weights: {key: weight for key, weight in weights.items() if key != name},
        "unread": lambda weights: weights | {"further": torch.ones(1)},
        "shape": lambda weights: weights | {name: torch.ones(2, 5)},
        "int8": lambda weights: weights | {name: weights[name].to(torch.int8)},
    }
    model_class = AlbertActForSequenceClassification
    config = model_class.config_class.from_pretrained(folder)
    rewrite(folder, changes[damage])
    line = catch_error_line(lambda: model_class.from_pretrained(folder))
    line = line.partition("; ignore_mismatched_sizes")[0]
    assert line.startswith(f"{folder}: ")
    assert (
        catch_error_line(lambda: load_with_weights("checkpoint", str(folder), model_class, config))
        == f"checkpoint={line}"
    )
    settings: Any = family("albert_act").settings(name="albert_act")
    assert catch_error_line(lambda: load_model(str(folder), model_class, settings, [])).startswith(
        f"checkpoint={folder}: "
    )


def test_scales_of_fp8_weights_are_refused(folder: Path) -> None:
    name = "albert.encoder.albert_layer.ffn.weight"
    scale = f"{name}_scale_inv"
    rewrite(folder, lambda all_: all_ | {name: all_[name].to(torch.float8_e4m3fn), scale: torch.ones(1)})
    assert f"{scale!r}" in catch_error_line(lambda: AlbertActForSequenceClassification.from_pretrained(folder))


def test_a_state_dict_is_checked(folder: Path) -> None:
    weights, config = load_file(folder / WEIGHTS), make_small_config()
    model_class = AlbertActForSequenceClassification
    assert torch.equal(
        model_class.from_pretrained(None, config=config, state_dict=dict(weights)).classifier.weight,
        weights["classifier.weight"],
    )
    del weights["classifier.weight"]
    line = catch_error_line(lambda: model_class.from_pretrained(None, config=config, state_dict=weights))
    assert line == "state_dict: its weights 'classifier.weight' are missing"


def test_a_subfolder_is_loaded_and_checked(folder: Path) -> None:
    model_class = AlbertActForSequenceClassification
    model = model_class.from_pretrained(folder.parent, subfolder="model")
    assert torch.equal(model.classifier.weight, load_file(folder / WEIGHTS)["classifier.weight"])
    rewrite(folder, lambda weights: weights | {"further": torch.ones(1)})
    assert "'further'" in catch_error_line(lambda: model_class.from_pretrained(folder.parent, subfolder="model"))


def test_a_folder_with_a_missing_shard_is_refused(folder: Path) -> None:
    model = AlbertActForSequenceClassification.from_pretrained(folder)
    model.save_pretrained(folder.parent / "parts", max_shard_size="20KB")
    first, *shards = sorted((folder.parent / "parts").glob("model-*.safetensors"))
    assert shards
    first.unlink()
    with pytest.raises(OSError, match=first.name):
        AlbertActForSequenceClassification.from_pretrained(folder.parent / "parts")
    assert first.name in catch_error_line(lambda: read_config("checkpoint", str(folder.parent / "parts")))


def test_tied_and_untied_embeddings_are_distinguished(tmp_path: Path) -> None:
    build_looped(tie_word_embeddings=True).save_pretrained(tmp_path)
    assert LoopedForCausalLM.from_pretrained(tmp_path).config.tie_word_embeddings
    configure(tmp_path, tie_word_embeddings=False)
    assert "'lm_head.weight' are missing" in catch_error_line(lambda: LoopedForCausalLM.from_pretrained(tmp_path))
    build_looped(tie_word_embeddings=False).save_pretrained(tmp_path)
    configure(tmp_path, tie_word_embeddings=True)
    assert "'lm_head.weight' and 'model.embed_tokens.weight' differ" in catch_error_line(
        lambda: LoopedForCausalLM.from_pretrained(tmp_path)
    )


@pytest.mark.parametrize(("core", "reason"), [(3, "missing"), (1, "it contains the weights 'model.core.1")])
def test_another_number_of_layers_is_refused(core: int, reason: str, tmp_path: Path) -> None:
    build_looped(core=2).save_pretrained(tmp_path)
    configure(tmp_path, core=core)
    assert reason in catch_error_line(lambda: LoopedForCausalLM.from_pretrained(tmp_path))


@pytest.mark.parametrize(
    ("model_class", "fields"),
    [
        (LoopedForCausalLM, {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}),
        (LoopedForCausalLM, {"partial_rotary_factor": 0.5}),
        (LoopedForCausalLM, {"attention_bias": True}),
        (LoopedForCausalLM, {"num_hidden_layers": 6}),
        (AlbertActForSequenceClassification, {"position_embedding_type": "relative_key"}),
        (AlbertActForSequenceClassification, {"is_decoder": True}),
    ],
)
def test_a_field_of_another_network_is_refused(model_class: Any, fields: Any, tmp_path: Path) -> None:
    model = build_looped() if model_class is LoopedForCausalLM else model_class(make_small_config())
    model.save_pretrained(tmp_path)
    configure(tmp_path, **fields)
    (name,) = fields
    assert catch_error_line(lambda: model_class.from_pretrained(tmp_path)).startswith(f"{name}=")


def test_irrelevant_fields_are_ignored(tmp_path: Path) -> None:
    AlbertActForSequenceClassification(make_small_config()).save_pretrained(tmp_path)
    configure(tmp_path, position_embedding_type="absolute", is_decoder=False, gap_size=0, note="mine")
    assert AlbertActForSequenceClassification.from_pretrained(tmp_path).config.hidden_size == SMALL["hidden_size"]


# ---- new weights


def test_a_new_head_is_reported_and_the_encoder_is_the_stored_one(tmp_path: Path, caplog: Any) -> None:
    torch.manual_seed(0)
    source = AlbertActForPreTraining(make_small_config())
    source.save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    (line,) = [record.getMessage() for record in caplog.records if "randomly initialised" in record.getMessage()]
    assert line == (
        f"{tmp_path}: randomly initialised, because the checkpoint lacks them: classifier.bias, classifier.weight"
    )
    assert torch.equal(model.albert.embeddings.word_embeddings.weight, source.albert.embeddings.word_embeddings.weight)


def test_a_missing_encoder_weight_is_refused(tmp_path: Path) -> None:
    AlbertActForPreTraining(make_small_config()).save_pretrained(tmp_path)
    name = "albert.pooler.bias"
    rewrite(tmp_path, lambda weights: {key: weight for key, weight in weights.items() if key != name})
    assert f"{name!r} are missing" in catch_error_line(
        lambda: AlbertActForSequenceClassification.from_pretrained(tmp_path)
    )


def test_a_class_with_a_smaller_head_ignores_the_rest(tmp_path: Path) -> None:
    AlbertActForPreTraining(make_small_config()).save_pretrained(tmp_path)
    assert type(AutoModelForMaskedLM.from_pretrained(tmp_path)) is AlbertActForMaskedLM
    assert type(AlbertActModel.from_pretrained(tmp_path)) is AlbertActModel


def test_another_number_of_classes_is_initialised_on_request(folder: Path, caplog: Any) -> None:
    model_class = AlbertActForSequenceClassification
    line = catch_error_line(lambda: model_class.from_pretrained(folder, num_labels=3))
    assert line.endswith("have the shape (2), not (3); ignore_mismatched_sizes=True initialises them randomly")
    with caplog.at_level(logging.WARNING):
        model = model_class.from_pretrained(folder, num_labels=3, ignore_mismatched_sizes=True)
    assert model.classifier.out_features == 3
    assert "classifier.bias, classifier.weight" in caplog.text


def test_a_subclass_is_strict_about_its_own_weights(tmp_path: Path) -> None:
    class Mine(AlbertActForSequenceClassification):
        def __init__(self, config: AlbertActConfig) -> None:
            super().__init__(config)
            self.further = torch.nn.Linear(2, 2)
            self.post_init()

    Mine(make_small_config()).save_pretrained(tmp_path)
    assert type(Mine.from_pretrained(tmp_path)) is Mine
    rewrite(tmp_path, lambda weights: {name: weight for name, weight in weights.items() if name != "further.bias"})
    assert "'further.bias' are missing" in catch_error_line(lambda: Mine.from_pretrained(tmp_path))


def test_an_unknown_model_type_is_refused_in_one_line(folder: Path) -> None:
    configure(folder, model_type="nosuch")
    for model_class in (adadepth.StockForSequenceClassification, adadepth.PonderAlbertForSequenceClassification):
        assert "contains a model of type nosuch" in catch_error_line(
            lambda cls=model_class: cls.from_pretrained(folder)
        )


# ---- generation_config.json


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"temperature": NaN}', "temperature=nan must be a number of at least 0"),
        ('{"temperature": "hot"}', "temperature='hot' must be a number of at least 0"),
        ('{"temperature": 0.0, "do_sample": true}', "temperature=0 with do_sample=true"),
        ('{"top_p": 7}', "top_p=7 must be a number from 0 to 1"),
        ('{"top_k": -7}', "top_k=-7 must be"),
        ('{"eos_token_id": [1, "x"]}', r"eos_token_id=\[1, 'x'\] must be an id or a list of ids"),
        ('{"max_new_tokens": "a"}', "max_new_tokens='a' must be"),
        ('{"encoder_repetition_penalty": Infinity}', "encoder_repetition_penalty=inf must be a finite number"),
        ("[1]", "must contain a JSON object, not list"),
        ("{", "is not JSON"),
    ],
)
def test_the_generation_settings_of_a_folder_are_checked(text: str, message: str, tmp_path: Path) -> None:
    build_looped().save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(CheckpointError, match=f"its generation_config.json:? {message}") as raised:
        LoopedForCausalLM.from_pretrained(tmp_path)
    assert "\n" not in str(raised.value)


def test_valid_generation_settings_are_loaded(tmp_path: Path) -> None:
    build_looped().save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6, "top_p": 0.9, "eos_token_id": [1, 2]}')
    config = LoopedForCausalLM.from_pretrained(tmp_path).generation_config
    assert (config.temperature, config.top_p, config.eos_token_id) == (0.6, 0.9, [1, 2])
