"""Folders in the format of LayerSkip's checkpoints, plain Llamas, loaded from Python and the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from adadepth import EarlyExitConfig, EarlyExitForCausalLM, Pipeline, self_speculation, tasks
from adadepth.contrib.serve.answers import compute_answer
from adadepth.contrib.serve.knobs import Setting
from adadepth.contrib.serve.serve import load_served_checkpoint
from adadepth.errors import CheckpointError, ConfigError
from adadepth.models.build import build_language_model
from tests.configs.support import configured
from tests.unit.data.tokenizers_support import tokenizer
from tests.unit.models.early_exit.early_exit_support import IDS, check_close
from tests.unit.models.early_exit.layerskip_support import LAYERS, write_layerskip


@pytest.fixture(scope="module")
def checkpoint_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small Llama 3.2 with tied embeddings, its tokenizer, and a text file next to it."""
    folder: Path = tmp_path_factory.mktemp("layerskip") / "published"
    write_layerskip(folder)
    (folder.parent / "text.txt").write_text("\n\n".join(["don't stop the naive cat: 12 of 345 cats don't"] * 60))
    return folder


@torch.no_grad()
def test_an_exit_equals_a_llama_with_fewer_layers(checkpoint_dir: Path) -> None:
    model = EarlyExitForCausalLM.from_pretrained(checkpoint_dir)
    assert model.config.exits == [1, 2, 3, 4, 5]
    assert (model.config.exit_heads, model.config.exit_rule) == ("shared", None)
    output = model(IDS, run_all_steps=True)
    for layer in range(1, LAYERS + 1):
        llama = LlamaForCausalLM.from_pretrained(checkpoint_dir, num_hidden_layers=layer)
        check_close(model(IDS, exit_rule=f"fixed:{layer}").logits, llama(IDS).logits)
        check_close(output.step_logits[:, :, layer - 1], llama(IDS).logits)
    check_close(model(IDS).logits, llama(IDS).logits)


@torch.no_grad()
def test_loading_takes_exit_layers_and_a_rule(checkpoint_dir: Path) -> None:
    model = EarlyExitForCausalLM.from_pretrained(
        checkpoint_dir, exit_layers=[2, 4], exit_rule="fixed:1", dtype="bfloat16"
    )
    assert model.config.exits == [2, 4, 5]
    assert model.dtype == torch.bfloat16
    model = EarlyExitForCausalLM.from_pretrained(checkpoint_dir, exit_layers=[2, 4], exit_rule="fixed:1")
    check_close(model(IDS).logits, LlamaForCausalLM.from_pretrained(checkpoint_dir, num_hidden_layers=2)(IDS).logits)
    with pytest.raises(ConfigError, match=r"exit_layers=\[6\]: must be numbers of layers, from 1 to 5"):
        EarlyExitForCausalLM.from_pretrained(checkpoint_dir, exit_layers=[6])


@pytest.mark.slow
def test_drafts_change_no_token(checkpoint_dir: Path) -> None:
    model = EarlyExitForCausalLM.from_pretrained(checkpoint_dir)
    assert model.generation_config.eos_token_id == model.config.eos_token_id
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 1}
    full = LlamaForCausalLM.from_pretrained(checkpoint_dir).generate(IDS[:1], **options).tolist()
    assert model.generate(IDS[:1], **options).tolist() == full
    assert model.generate(IDS[:1], assistant_early_exit=2, **options).tolist() == full
    for rule in ("fixed:2", "margin:0.2"):
        drafted = model.generate(IDS[:1], custom_generate=self_speculation, draft_rule=rule, **options)
        assert drafted.tolist() == full


def test_a_saved_model_is_ours_and_a_written_one_a_llama(checkpoint_dir: Path, tmp_path: Path) -> None:
    model = EarlyExitForCausalLM.from_pretrained(checkpoint_dir)
    model.save_pretrained(tmp_path / "ours")
    model.save_pretrained(tmp_path / "written", layout="llama")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["model_type"] == "early_exit"
    weights, expected = (load_file(folder / "model.safetensors") for folder in (tmp_path / "written", checkpoint_dir))
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weight, expected[name]) for name, weight in weights.items())
    with torch.no_grad():
        for folder in (tmp_path / "ours", tmp_path / "written"):
            assert torch.equal(EarlyExitForCausalLM.from_pretrained(folder)(IDS).logits, model(IDS).logits)


def test_auto_classes_still_give_a_llama(checkpoint_dir: Path) -> None:
    assert type(AutoConfig.from_pretrained(checkpoint_dir)) is LlamaConfig
    assert type(AutoModelForCausalLM.from_pretrained(checkpoint_dir)) is LlamaForCausalLM
    config = EarlyExitConfig.from_pretrained(checkpoint_dir)
    assert (config.base, config.num_hidden_layers) == ("llama", LAYERS)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("model.layers.1.mlp.up_proj.weight", "up_proj.weight' are missing"),
        (None, "contains the weights 'extra', whic"),
    ],
)
def test_incompatible_weights_are_refused_in_one_line(
    name: str | None, problem: str, checkpoint_dir: Path, tmp_path: Path
) -> None:
    weights = load_file(checkpoint_dir / "model.safetensors")
    if name is None:
        weights["extra"] = torch.zeros(3)
    else:
        del weights[name]
    (tmp_path / "config.json").write_bytes((checkpoint_dir / "config.json").read_bytes())
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=problem) as raised:
        EarlyExitForCausalLM.from_pretrained(tmp_path)
    assert "\n" not in str(raised.value)


# ---- from the command line


def test_predictions_equal_the_pipeline(checkpoint_dir: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("adadepth.tasks.predict.list_overridden_model_settings", lambda: ["exit_rule", "exit_layers"])
    settings = ("model.exit_rule=margin:0.1", "model.exit_layers=[2,4]", "new_tokens=3", "text=a cat")
    tasks.run(
        configured("exit_tiny", "mode=predict", f"checkpoint={checkpoint_dir}", f"output_dir={tmp_path}", *settings)
    )
    (texts,) = tmp_path.glob("*/*/texts.json")
    (text,) = json.loads(texts.read_text(encoding="utf-8"))["texts"]
    assert type(Pipeline.from_pretrained(checkpoint_dir).model) is EarlyExitForCausalLM
    model = EarlyExitForCausalLM.from_pretrained(checkpoint_dir, exit_layers=[2, 4], exit_rule="margin:0.1")
    (expected,) = Pipeline(model, AutoTokenizer.from_pretrained(checkpoint_dir), new_tokens=3)(["a cat"])
    assert [token["updates"] for token in text["tokens"]] == [token.updates for token in expected.tokens]
    assert text["score"] == pytest.approx(expected.score)


def test_settings_of_the_network_cannot_be_changed(checkpoint_dir: Path, monkeypatch: Any) -> None:
    for setting, message in (
        ("hidden_size=64", r"model\.hidden_size=64: the checkpoint was trained with 32"),
        ("exit_layers=[9]", r"model\.exit_layers=\[9\]: must be numbers of layers"),
        ("exit_heads=norm", r"its weights 'exits\.0\.norm\.weight' and 3 more are missing"),
    ):
        name = setting.partition("=")[0]
        monkeypatch.setattr("adadepth.tasks.predict.list_overridden_model_settings", lambda name=name: [name])
        command = ("mode=predict", f"checkpoint={checkpoint_dir}", f"model.{setting}", "text=a cat")
        with pytest.raises((ConfigError, CheckpointError), match=message):
            tasks.run(configured("exit_tiny", *command))


@pytest.mark.slow
def test_another_family_is_refused_in_one_line(checkpoint_dir: Path) -> None:
    with pytest.raises(CheckpointError, match="type llama, not looped; add model=early_exit_mini"):
        tasks.run(configured("loop_tiny", "mode=predict", f"checkpoint={checkpoint_dir}", "text=a cat"))


def test_an_evaluation_compares_exit_rules(checkpoint_dir: Path, tmp_path: Path) -> None:
    tasks.run(configured(
        "exit_tiny", "mode=evaluate", f"checkpoint={checkpoint_dir}", "dataset=causal_text",
        f"dataset.path={checkpoint_dir.parent}/text.txt", f"output_dir={tmp_path}", "logger=none",
        "exit_rules=[fixed:2]", "trainer.disable_tqdm=true",
    ))  # fmt: skip
    record = json.loads(next(tmp_path.glob("*/*/run.json")).read_text(encoding="utf-8"))
    assert record["final_metrics"]["halting/all/mean"] == LAYERS


def test_the_page_serves_the_checkpoint(checkpoint_dir: Path) -> None:
    served = load_served_checkpoint(configured("exit_tiny", "mode=serve", f"checkpoint={checkpoint_dir}"))
    answer = compute_answer(served, "a cat", Setting())
    (expected,) = served.pipeline(["a cat"])
    assert answer.result["texts"][0]["score"] == pytest.approx(expected.score)


@pytest.mark.slow
def test_the_documented_training_command_is_valid() -> None:
    commands = (Path(__file__).parents[4] / "docs" / "early_exit.md").read_text(encoding="utf-8").splitlines()
    (command,) = (line for line in commands if "model=published_layerskip" in line and line.startswith("python"))
    name, *overrides = command.partition("#")[0].split()[3:]
    model = configured(name, *overrides).model
    assert model.pretrained == "facebook/layerskip-llama3.2-1B"
    assert (model.exit_layers, model.exit_heads, model.trains) == (None, "shared", "all")


@pytest.mark.slow
def test_training_starts_from_the_checkpoint(checkpoint_dir: Path) -> None:
    settings = configured("exit_tiny", "model=published_layerskip", f"model.pretrained={checkpoint_dir}").model
    model = build_language_model(settings, len(tokenizer("roberta"))).eval()
    assert (model.config.exit_weights, model.config.layer_dropout) == ("layerskip", 0.2)
    with torch.no_grad():
        check_close(model(IDS).logits, LlamaForCausalLM.from_pretrained(checkpoint_dir)(IDS).logits)
