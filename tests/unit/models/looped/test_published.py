"""Folders of published Ouro and Huginn models, loaded by name: results of the equations and of their own code."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from adadepth import LoopedConfig, LoopedForCausalLM, LoopedForSequenceClassification, Pipeline
from adadepth.errors import CheckpointError, ConfigError
from adadepth.models.build import build_language_model
from adadepth.models.folder import read_config
from adadepth.prediction.models import resolve_model_class
from tests.configs.support import configured
from tests.marks_support import keep_one_quick
from tests.unit.data.tokenizers_support import tokenizer
from tests.unit.models.looped import published_code
from tests.unit.models.looped.plain_looped import run_plain_huginn, run_plain_ouro
from tests.unit.models.looped.published_support import (
    HUGINN,
    OURO,
    PIECES,
    STEPS,
    draw_huginn_weights,
    draw_ouro_weights,
    write_folder,
)

LENGTH = 9
IDS = torch.randint(0, PIECES, (2, LENGTH), generator=torch.Generator().manual_seed(1))
STATE = torch.randn(2, LENGTH, 40, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def ouro(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "ouro", OURO | {"model_type": "ouro"}, draw_ouro_weights())


@pytest.fixture
def huginn(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "huginn", HUGINN | {"model_type": "huginn_raven"}, draw_huginn_weights())


# ---- against the equations


def test_ouro_equals_its_equations(ouro: Path) -> None:
    model = LoopedForCausalLM.from_pretrained(ouro)
    with torch.no_grad():
        output = model(IDS, run_all_steps=True, output_hidden_states=True)
    assert output.hidden_states is not None
    head = draw_ouro_weights()["lm_head.weight"].double()
    for row, ids in enumerate(IDS):
        states, gates = run_plain_ouro(OURO, draw_ouro_weights(), ids)
        for step in range(STEPS):
            check_close(output.hidden_states[step + 1][row], states[step])
            check_close(output.halting_logits[row, :, step], gates[step])
            check_close(output.step_logits[row, :, step], states[step] @ head.T)
        check_close(output.logits[row], states[-1] @ head.T)


@torch.no_grad()
def test_the_threshold_of_ouro_is_a_quantile(ouro: Path) -> None:
    model = LoopedForCausalLM.from_pretrained(ouro)
    gates = [run_plain_ouro(OURO, draw_ouro_weights(), ids)[1] for ids in IDS]
    for threshold in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0):
        output = model(IDS, exit_rule=f"quantile:{threshold}")
        for row, token in itertools.product(range(len(IDS)), range(LENGTH)):
            remaining, step = 1.0, 0
            while step < STEPS:
                remaining *= 1 - torch.sigmoid(gates[row][step][token]).item()
                step += 1
                if 1 - remaining > threshold:
                    break
            assert output.exit_steps[row, token] == step, threshold


def test_a_threshold_below_one_exits_at_equality_as_published(ouro: Path) -> None:
    """Check gates of one half, whose sum reaches one half with the first loop without rounding."""
    stored = json.loads((ouro / "config.json").read_text())
    config = LoopedConfig.from_dict({**stored, "early_exit_threshold": 0.5})
    assert config.exit_rule == "quantile:0.5:1"
    model = LoopedForCausalLM.from_pretrained(ouro)
    torch.nn.init.zeros_(model.model.gate.weight)
    torch.nn.init.zeros_(model.model.gate.bias)
    with torch.no_grad():
        assert (model(IDS, exit_rule=config.exit_rule).exit_steps == 1).all()
        assert (model(IDS, exit_rule="quantile:0.5").exit_steps == 2).all()


def test_a_threshold_of_one_is_the_last_loop_even_with_certain_gates(ouro: Path) -> None:
    model = LoopedForCausalLM.from_pretrained(ouro)
    torch.nn.init.constant_(model.model.gate.bias, 60.0)  # a float32 sum of probabilities is one after a loop
    with torch.no_grad():
        assert (model(IDS, exit_rule="quantile:1").exit_steps == STEPS).all()
        assert (model(IDS).exit_steps == STEPS).all()  # the threshold of the folder is the default


@pytest.mark.parametrize("loops", keep_one_quick(3, [1, 2, 4, 7]))
def test_huginn_equals_its_equations(huginn: Path, loops: int) -> None:
    model = LoopedForCausalLM.from_pretrained(huginn).double()  # seven loops lose a digit in float32
    with torch.no_grad():
        output = model(IDS, num_loops=loops, initial_state=STATE)
    for row, ids in enumerate(IDS):
        check_close(output.logits[row], run_plain_huginn(HUGINN, draw_huginn_weights(), ids, STATE[row], loops))


def check_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), atol=1e-5, rtol=1e-5)


# ---- against the published code


@published_code.require_files("modeling_ouro.py")
def test_ouro_equals_the_published_code(tmp_path: Path) -> None:
    published = published_code.build_ouro(**OURO)
    ours = LoopedForCausalLM.from_pretrained(
        write_folder(tmp_path / "a", OURO | {"model_type": "ouro"}, published.state_dict())
    )
    with torch.no_grad():
        _, states, gates = published.model(IDS)
        output = ours(IDS, run_all_steps=True, output_hidden_states=True)
        for step in range(STEPS):
            check_close(output.hidden_states[step + 1], states[step])
            check_close(output.halting_logits[..., step], gates[step].squeeze(-1))
            check_close(output.step_logits[:, :, step], published(IDS, exit_at_step=step).logits)
            check_close(ours(IDS, exit_rule=f"fixed:{step + 1}").logits, published(IDS, exit_at_step=step).logits)
        exits = set()
        for threshold in (0.2, 0.4, 0.6, 0.8, 0.95, 1.0):
            output = ours(IDS, exit_rule=f"quantile:{threshold}")
            exits |= set(output.exit_steps.flatten().tolist())
            check_close(output.logits, published(IDS, exit_threshold=threshold).logits)
        assert exits == {1, 2, 3, 4}  # the results differ here
        mask = torch.ones_like(IDS)
        mask[0, :3] = 0
        padded = ours(IDS, attention_mask=mask).logits, published(IDS, attention_mask=mask).logits
        check_close(*(logits[mask.bool()] for logits in padded))


@published_code.require_files("raven_modeling_minimal.py", "raven_config_minimal.py")
@pytest.mark.parametrize("loops", [1, 2, 4, 7])
def test_huginn_equals_the_published_code(tmp_path: Path, loops: int) -> None:
    fields = {
        name: value for name, value in HUGINN.items() if name not in ("num_attention_heads", "num_key_value_heads")
    }
    published = published_code.build_huginn(n_heads=5, **fields)
    weights = {name: weight for name, weight in published.state_dict().items() if name != "lm_head.weight"}
    ours = LoopedForCausalLM.from_pretrained(
        write_folder(tmp_path / "a", HUGINN | {"model_type": "huginn_raven"}, weights)
    )
    with torch.no_grad():
        expected = published(IDS, input_states=STATE, num_steps=torch.tensor([loops])).logits
        check_close(ours(IDS, initial_state=STATE, num_loops=loops).logits, expected)
        step_logits = ours(IDS, initial_state=STATE, num_loops=loops, run_all_steps=True).step_logits
        for step in range(1, loops + 1):
            expected = published(IDS, input_states=STATE, num_steps=torch.tensor([step])).logits
            check_close(step_logits[:, :, step - 1], expected)


# ---- folders


@pytest.mark.parametrize("kind", ["ouro", "huginn"])
def test_a_saved_model_is_in_our_format(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    model = LoopedForCausalLM.from_pretrained(request.getfixturevalue(kind))
    model.save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["model_type"] == "looped"
    loaded = LoopedForCausalLM.from_pretrained(tmp_path / "saved")
    state = STATE if kind == "huginn" else None
    with torch.no_grad():
        assert torch.equal(loaded(IDS, initial_state=state).logits, model(IDS, initial_state=state).logits)
    assert loaded.config.exit_rule == model.config.exit_rule


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling="),
        ({"layer_types": ["sliding_attention"] * 3}, "layer_types has 'sliding_attention'"),
        ({"use_sliding_window": True}, "use_sliding_window=True"),
    ],
)
def test_an_ouro_with_other_arithmetic_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = write_folder(tmp_path / "a", OURO | {"model_type": "ouro"} | changes, draw_ouro_weights())
    with pytest.raises(CheckpointError, match=message) as raised:
        LoopedForCausalLM.from_pretrained(folder)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("changes", [{"injection_type": "add"}, {"state_init": "zero"}, {"n_layers_in_coda": 0}])
def test_a_huginn_with_other_arithmetic_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = write_folder(tmp_path / "a", HUGINN | {"model_type": "huginn_raven"} | changes, draw_huginn_weights())
    with pytest.raises(CheckpointError, match=f"{next(iter(changes))}="):
        LoopedForCausalLM.from_pretrained(folder)


def test_a_folder_without_weights_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(OURO | {"model_type": "ouro"}))
    with pytest.raises(CheckpointError, match=r"contains neither model\.safetensors nor pytorch_model\.bin"):
        LoopedForCausalLM.from_pretrained(tmp_path)


def test_weights_in_several_pickles_are_loaded(tmp_path: Path, ouro: Path) -> None:
    weights = draw_ouro_weights()
    names = sorted(weights)
    (tmp_path / "config.json").write_text(json.dumps(OURO | {"model_type": "ouro"}))
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        torch.save({name: weights[name] for name in part}, tmp_path / f"pytorch_model-0000{number}-of-00002.bin")
    with torch.no_grad():
        logits, expected = (LoopedForCausalLM.from_pretrained(path)(IDS).logits for path in (tmp_path, ouro))
    assert torch.equal(logits, expected)


def test_a_forced_step_of_ouro_is_a_fixed_loop() -> None:
    config = LoopedConfig.from_dict({**OURO, "model_type": "ouro", "early_exit_step": 1})
    assert config.exit_rule == "fixed:2"  # theirs counts from 0, ours from 1


PUBLISHED_CLASSES = {
    "ouro": {
        "architectures": ["OuroForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "modeling_ouro.OuroForCausalLM"},
    },
    "huginn": {"architectures": ["RavenForCausalLM"], "auto_map": {"AutoConfig": "raven_config_minimal.RavenConfig"}},
}


@pytest.fixture(params=keep_one_quick(2, PUBLISHED_CLASSES))
def checkpoint_dir(request: pytest.FixtureRequest) -> Path:
    """Return a folder as published: it names its own classes, whose code is missing."""
    folder: Path = request.getfixturevalue(request.param)
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(described | PUBLISHED_CLASSES[request.param]))
    (folder / "generation_config.json").write_text('{"eos_token_id": 7, "temperature": 0.7}')
    return folder


def test_auto_classes_load_published_folders_without_their_code(checkpoint_dir: Path) -> None:
    expected = LoopedForCausalLM.from_pretrained(checkpoint_dir)
    assert type(AutoConfig.from_pretrained(checkpoint_dir)) is LoopedConfig
    model = AutoModelForCausalLM.from_pretrained(checkpoint_dir)
    assert type(model) is LoopedForCausalLM
    assert model.name_or_path == str(checkpoint_dir)
    assert model.generation_config.eos_token_id == 7
    state = STATE if expected.config.start == "drawn" else None
    with torch.no_grad():
        assert torch.equal(model(IDS, initial_state=state).logits, expected(IDS, initial_state=state).logits)


def test_only_another_head_on_a_published_model_is_new(checkpoint_dir: Path, caplog: Any) -> None:
    source = LoopedForCausalLM.from_pretrained(checkpoint_dir)
    with caplog.at_level(logging.WARNING):
        model = LoopedForSequenceClassification.from_pretrained(checkpoint_dir, num_labels=3)
    assert f"{checkpoint_dir}: randomly initialised, because the checkpoint lacks them: score.weight" in caplog.text
    weights = source.model.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in model.model.state_dict().items())


def test_a_published_folder_predicts_texts(checkpoint_dir: Path) -> None:
    words = tokenizer("bert")
    words.eos_token = "[SEP]"
    words.save_pretrained(checkpoint_dir)
    pipeline = Pipeline.from_pretrained(checkpoint_dir)
    LoopedForCausalLM.from_pretrained(checkpoint_dir).save_pretrained(checkpoint_dir.parent / "ours")
    words.save_pretrained(checkpoint_dir.parent / "ours")
    assert type(pipeline.model) is LoopedForCausalLM
    assert pipeline(["a cat"]) == Pipeline.from_pretrained(checkpoint_dir.parent / "ours")(["a cat"])
    config = read_config("checkpoint", str(checkpoint_dir))
    assert resolve_model_class("checkpoint", str(checkpoint_dir), config) is LoopedForCausalLM


@pytest.mark.parametrize("name", ["transformer.core_block.1.norm_1.weight", "lm_head.weight", "freqs_cis"])
def test_a_missing_published_weight_is_refused_unless_it_is_derived(name: str, tmp_path: Path) -> None:
    weights = draw_huginn_weights()
    weights.pop(name, None)  # the head is tied, and the table of positions follows from the configuration
    folder = write_folder(tmp_path / "a", HUGINN | {"model_type": "huginn_raven"}, weights)
    if name in ("lm_head.weight", "freqs_cis"):
        LoopedForCausalLM.from_pretrained(folder)
        return
    with pytest.raises(
        CheckpointError, match=rf"{folder}: its weights 'model.core.1.attention_norm.weight' are missing"
    ):
        LoopedForCausalLM.from_pretrained(folder)


def test_training_starts_from_a_published_model(ouro: Path) -> None:
    sizes = [f"model.{name}={OURO[name]}" for name in ("hidden_size", "num_attention_heads", "intermediate_size")]
    overrides = ["model=ouro_1_4b", f"model.pretrained={ouro}", f"model.core={OURO['num_hidden_layers']}", *sizes]
    settings = configured("loop_tiny", *overrides, f"model.vocab_size={OURO['vocab_size']}", "model.num_loops=2").model
    model = build_language_model(settings, OURO["vocab_size"])
    published = LoopedForCausalLM.from_pretrained(ouro, num_loops=2)
    with torch.no_grad():
        assert torch.equal(model.eval()(IDS).logits, published(IDS).logits)
    assert (model.config.model_type, model.config.num_loops) == ("looped", 2)
    with pytest.raises(ConfigError, match=r"model\.core=9, but the pretrained model has \d+$"):
        build_language_model(dataclasses.replace(settings, core=9), OURO["vocab_size"])


@pytest.mark.parametrize(("pieces", "is_warned"), [(300, True), (30_000, False)])
def test_a_published_vocabulary_for_a_small_tokenizer_gives_a_warning(
    pieces: int, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = ("hidden_size=64", "core=1", "num_attention_heads=2", "intermediate_size=64")
    config = configured("loop_tiny", "model=ouro_1_4b", *(f"model.{size}" for size in sizes))
    assert build_language_model(config.model, pieces).config.vocab_size == 49152
    warning = f"model.vocab_size=49152: the tokenizer has only {pieces} tokens; model.vocab_size=null takes its size"
    assert (warning in caplog.text) == is_warned
