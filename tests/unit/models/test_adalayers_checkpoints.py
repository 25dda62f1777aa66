"""Checkpoints of heads without their bases, and their reconstruction."""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from adadepth import (
    AdaLayersConfig,
    AdaLayersForSequenceClassification,
    AdaLayersForTokenClassification,
    convert_reference_state_dict,
)
from adadepth.errors import CheckpointError, ConfigError
from tests.marks_support import keep_one_quick, mark_mostly_slow
from tests.unit.models.adalayers_support import BASES, HEAD, VARIANTS, draw_texts, save_base, set_scores

QUICK = ("adalayers", "scalar mix", "fine-tuning")


def read_weight_names(folder):
    with safe_open(folder / "model.safetensors", "pt") as file:
        return set(file.keys())


@pytest.mark.parametrize(
    ("auto", "model_class"),
    keep_one_quick(
        8,
        [
            (AutoModelForSequenceClassification, AdaLayersForSequenceClassification),
            (AutoModelForTokenClassification, AdaLayersForTokenClassification),
        ],
    ),
)
@pytest.mark.parametrize("variant", mark_mostly_slow(VARIANTS, lambda name: name in QUICK))
def test_a_loaded_head_finds_its_base(variant, auto, model_class, tmp_path):
    base = save_base("bert", tmp_path / "base")
    model = model_class.from_base(base, **(HEAD | VARIANTS[variant]), num_labels=3)
    if model.config.learns_distribution:
        set_scores(model, [1.0, 0.9, 1.1, 0.8, 1.2])
    if model.config.freeze_base_model is False:
        with torch.no_grad():  # as if trained
            next(model.model.parameters()).add_(0.1)
    model.save_pretrained(tmp_path / "head")
    assert (tmp_path / "head" / "config.json").read_text().count(base) == 1, "only base_model names the folder"
    has_base = any(name.startswith("model.") for name in read_weight_names(tmp_path / "head"))
    assert has_base is not model.config.freeze_base_model
    loaded = auto.from_pretrained(tmp_path / "head")
    assert type(loaded) is model_class
    assert not loaded.training
    with torch.no_grad():
        torch.testing.assert_close(loaded(**draw_texts()).logits, model(**draw_texts()).logits)
    eager = model_class.from_pretrained(tmp_path / "head", config=loaded.config, attn_implementation="eager")
    assert eager.model.config._attn_implementation == "eager"
    with torch.no_grad():
        torch.testing.assert_close(eager(**draw_texts()).logits, model(**draw_texts()).logits, atol=1e-5, rtol=0)
    assert {n for n, w in loaded.named_parameters() if w.requires_grad} == {
        n for n, w in model.named_parameters() if w.requires_grad
    }


def test_states_of_a_trained_base_have_another_cache_key(tmp_path):
    """Check that `base_hash` stays that of the pretrained base, whose cached states differ."""
    model_class, base = AdaLayersForSequenceClassification, save_base("bert", tmp_path / "base")
    pretrained = model_class.from_base(base, **HEAD, num_labels=3)
    trained = model_class.from_base(base, **(HEAD | {"freeze_base_model": False}), num_labels=3)
    with torch.no_grad():
        next(trained.model.parameters()).add_(0.1)
    trained.save_pretrained(tmp_path / "trained")
    pretrained.save_pretrained(tmp_path / "pretrained", save_base=True)
    keys = [model_class.from_pretrained(tmp_path / name).states_key for name in ("pretrained", "trained")]
    assert keys[0] == pretrained.states_key != keys[1]


@pytest.mark.slow
def test_a_frozen_base_is_saved_on_request_or_without_another_copy(tmp_path):
    base = save_base("t5", tmp_path / "base")
    model = AdaLayersForSequenceClassification.from_base(base, **HEAD)
    with_base = AdaLayersForSequenceClassification.from_base(base, **HEAD, save_base=True)
    unnamed = AdaLayersForSequenceClassification(AdaLayersConfig(base_config=BASES["t5"], **HEAD)).eval()
    for number, (one, options) in enumerate([(model, {"save_base": True}), (with_base, {}), (unnamed, {})]):
        folder = tmp_path / str(number)
        one.save_pretrained(folder, **options)
        loaded = AdaLayersForSequenceClassification.from_pretrained(folder)
        assert loaded.config.base_saved
        with torch.no_grad():
            torch.testing.assert_close(loaded(**draw_texts()).logits, one(**draw_texts()).logits)
        loaded.save_pretrained(tmp_path / "again")
        assert read_weight_names(tmp_path / "again") == read_weight_names(folder) == set(one.state_dict())
    model.save_pretrained(tmp_path / "alone")
    assert read_weight_names(tmp_path / "alone") == {
        name for name in model.state_dict() if not name.startswith("model.")
    }


def test_a_changed_base_of_the_same_name_is_refused(tmp_path):
    base = save_base("bert", tmp_path / "base")
    AdaLayersForSequenceClassification.from_base(base, **HEAD).save_pretrained(tmp_path / "head")
    save_base("bert", tmp_path / "base", seed=1)
    with pytest.raises(CheckpointError, match=r"base_model=.*: its weights differ from those that .* was") as error:
        AdaLayersForSequenceClassification.from_pretrained(tmp_path / "head")
    assert "\n" not in str(error.value)


def test_a_moved_base_is_accepted(tmp_path):
    base = save_base("bert", tmp_path / "base")
    model = AdaLayersForSequenceClassification.from_base(base, **HEAD)
    model.save_pretrained(tmp_path / "head")
    (tmp_path / "base").rename(tmp_path / "moved")
    with pytest.raises(CheckpointError, match="base_model="):
        AdaLayersForSequenceClassification.from_pretrained(tmp_path / "head")
    loaded = AdaLayersForSequenceClassification.from_pretrained(
        tmp_path / "head", base_model=str(tmp_path / "moved"), dtype=torch.bfloat16, output_loading_info=True
    )[0]
    assert {weight.dtype for weight in loaded.parameters()} == {torch.bfloat16}
    with torch.no_grad():
        logits, expected = loaded(**draw_texts()).logits.float(), model(**draw_texts()).logits
    torch.testing.assert_close(logits, expected, atol=0.05, rtol=0.1)


def test_wrong_bases_and_fields_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="base_model=/nowhere"):
        AdaLayersForSequenceClassification.from_base("/nowhere/at/all", **HEAD)
    with pytest.raises(ConfigError, match=r"project_dims: .* \(did you mean 'project_dim'\?\)"):
        AdaLayersForSequenceClassification.from_base(save_base("bert", tmp_path), project_dims=3)


def test_the_trainers_checkpoint_state_loads_without_complaint(tmp_path):
    """Check that the model lists the missing names that the trainer compares."""
    model = AdaLayersForSequenceClassification.from_base(save_base("bert", tmp_path), **HEAD)
    for _ in range(2):
        head_weights = {name: weight for name, weight in model.state_dict().items() if not name.startswith("model.")}
        report = model.load_state_dict(head_weights, strict=False)
        assert set(report.missing_keys) == set(model._keys_to_ignore_on_save)
        set_scores(model, [5.0, 5.0, 0.0, 0.0, 0.0])
        model.truncate(0.01)


@pytest.mark.parametrize("kind", keep_one_quick(2, ["bert", "bart"]))
def test_the_base_of_an_original_checkpoint_becomes_an_encoder(kind, tmp_path):
    from transformers import AutoModel

    model = AdaLayersForSequenceClassification.from_base(save_base(kind, tmp_path), **HEAD)
    original = {f"model.{name}": weight for name, weight in AutoModel.from_pretrained(tmp_path).state_dict().items()}
    original |= {name: weight for name, weight in model.state_dict().items() if not name.startswith("model.")}
    original["distribution"] = original["distribution"].unsqueeze(1)
    converted = convert_reference_state_dict("adalayers", original)
    model.load_state_dict(converted)
    assert converted["distribution"].shape == (5,)
