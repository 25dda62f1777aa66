"""`mode=estimate` of every shipped configuration, against real models, and refused batches."""

from __future__ import annotations

import dataclasses
import inspect
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AlbertConfig, BartConfig, BertConfig, LlamaConfig, RobertaConfig

from adadepth import AlbertActConfig
from adadepth.config import ExperimentConfig
from adadepth.contrib.estimate.estimate import (
    estimate_training,
    find_rows_in_one_process,
    print_estimate,
    run_fake_step,
)
from adadepth.contrib.estimate.training_spec import build_training_spec
from adadepth.errors import ConfigError
from adadepth.training.optimization import build_optimizer
from tests.configs.support import NEEDS, ROOTS, configured
from tests.marks_support import mark_mostly_slow

# As published, so that neither weights nor a network are needed.
PUBLISHED = {
    "albert/albert-base-v2": AlbertConfig(
        hidden_size=768, num_attention_heads=12, intermediate_size=3072, vocab_size=30000
    ),
    "asi/albert-act-base": AlbertActConfig(vocab_size=30000),
    "FacebookAI/roberta-large": RobertaConfig(
        vocab_size=50265, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
        max_position_embeddings=514, type_vocab_size=1,
    ),
    "facebook/bart-large-cnn": BartConfig(),
    "google-bert/bert-base-uncased": BertConfig(),
    "HuggingFaceTB/SmolLM2-135M": LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True,
    ),
    "sentence-transformers/all-MiniLM-L6-v2": BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    ),
}  # fmt: skip
FEW_UPDATES = ("model.num_hidden_layers=3", "budget.target=2")
KEYS = ("pretrained", "base_model")
TRAINED = [root for root in ROOTS if root != "conll_tagger"]  # which is an evaluation
QUICK = {"ponder_parity"}


@cache
def save_published(name: str, base: Path) -> Path:
    PUBLISHED[name].save_pretrained(base / name)
    return base / name


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub")


def configure_estimate(root: str, hub: Path, *overrides: str) -> ExperimentConfig:
    """Return the configuration of a root that reads configurations of pretrained models from local folders."""
    needs = NEEDS["dataset", "table"] if root in ("finetune", "adalayers") else []
    config = configured(root, "mode=estimate", *needs, *overrides)
    settings: Any = config.model
    folders = {
        key: str(save_published(hub_name, hub))
        for key in KEYS
        if (hub_name := getattr(settings, key, None)) in PUBLISHED
    }
    return dataclasses.replace(config, model=dataclasses.replace(settings, **folders))


@pytest.mark.parametrize("root", mark_mostly_slow(TRAINED, lambda root: root in QUICK))
def test_every_shipped_training_is_estimated(root: str, hub: Path) -> None:
    config = configure_estimate(root, hub)
    estimate = estimate_training(config)
    memory = estimate["memory"]
    assert estimate["parameters"] >= estimate["trained"] > 0
    assert memory["weights"] >= 4 * estimate["parameters"]
    assert memory["optimizer"] > 0
    assert memory["activations"] > 0
    assert memory["total"] == sum(value for name, value in memory.items() if name != "total")
    assert estimate["macs_per_token"] > 0
    peak = {"bf16": 989.4e12, "auto": 989.4e12, "fp32": 66.9e12}[str(config.trainer.precision)]
    assert estimate["tokens_per_second"] == pytest.approx(0.4 * peak / estimate["operations_per_token"])


@pytest.mark.slow
@pytest.mark.parametrize("model", ["ouro_1_4b", "ouro_2_6b"])
def test_published_looped_models_are_estimated(model: str, hub: Path) -> None:
    rows = "trainer.per_device_train_batch_size=1"
    estimate = estimate_training(configure_estimate("loop_wikitext2", hub, f"model={model}", rows))
    billions = {"ouro_1_4b": 1.43, "ouro_2_6b": 2.67}[model]
    assert estimate["parameters"] == pytest.approx(billions * 1e9, rel=0.01)
    assert estimate["memory"]["weights"] == pytest.approx(4 * estimate["parameters"], rel=1e-3)


@pytest.mark.parametrize("root", [pytest.param("act_wikitext2", marks=pytest.mark.slow), "loop_tiny"])
def test_weights_and_optimizer_are_those_of_the_real_model(root: str, hub: Path) -> None:
    config = configure_estimate(root, hub)
    estimate, spec = estimate_training(config), build_training_spec(config)
    model = spec.build()
    assert estimate["parameters"] == sum(tensor.numel() for tensor in model.parameters())
    assert estimate["memory"]["weights"] == sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    optimizer = build_optimizer(model, config.trainer)
    read = inspect.signature(model.forward).parameters
    model(**{name: value for name, value in spec.batch(1).items() if name in read}).loss.backward()
    optimizer.step()
    state = sum(value.nbytes for one in optimizer.state.values() for value in one.values() if torch.is_tensor(value))
    assert estimate["memory"]["optimizer"] == pytest.approx(state, rel=0.01)


@pytest.mark.slow
def test_a_routed_training_is_estimated_with_every_token_in_every_part(hub: Path) -> None:
    """Check all selections of keys and values, because choices have no values in an estimate."""
    estimates = [
        estimate_training(configure_estimate("mor_tiny", hub, f"model.keys_and_values={which}"))
        for which in ("all", "selected")
    ]
    assert all(estimate["memory"]["activations"] > 0 and estimate["macs_per_token"] > 0 for estimate in estimates)


@pytest.mark.slow
def test_recomputed_activations_take_no_memory(hub: Path) -> None:
    stored = estimate_training(configure_estimate("loop_tiny", hub))["memory"]
    again = estimate_training(configure_estimate("loop_tiny", hub, "trainer.gradient_checkpointing=true"))["memory"]
    assert again["activations"] < 0.7 * stored["activations"]
    assert again["weights"] == stored["weights"]


def test_a_batch_beyond_memory_is_refused_with_one_that_fits(
    hub: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configure_estimate("act_wikitext2", hub, *FEW_UPDATES)
    spec, rows = build_training_spec(config), config.trainer.per_device_train_batch_size
    limit = run_fake_step(config, spec, rows // 2).memory.total
    assert rows == 16
    monkeypatch.setattr("adadepth.contrib.estimate.estimate.get_memory_bytes", lambda device: limit)
    with pytest.raises(
        ConfigError,
        match=r"size=16: needs .* GB, more than the .* GB of H100; trainer.per_device_train_batch_size=8 fits$",
    ):
        print_estimate(config)
    assert "multiply-accumulates per token" in capsys.readouterr().out
    assert find_rows_in_one_process(config, 1, "bf16") is None


@pytest.mark.slow
def test_several_devices_share_memory_and_are_faster(hub: Path) -> None:
    one = estimate_training(configure_estimate("act_wikitext2", hub, *FEW_UPDATES))
    four = estimate_training(
        configure_estimate("act_wikitext2", hub, *FEW_UPDATES, "trainer.fsdp=true", "estimate.devices=4")
    )
    assert four["memory"]["optimizer"] == one["memory"]["optimizer"] / 4
    assert four["memory"]["activations"] == one["memory"]["activations"]
    assert four["tokens_per_second"] == pytest.approx(4 * one["tokens_per_second"])
    assert four["tokens"] == 4 * one["tokens"]


@pytest.mark.parametrize(("overrides", "line"), [
    (["estimate.share=0.5"], "estimate: only used with mode=estimate, but mode=train"),
    (["mode=estimate", "estimate.device=H10"], "estimate.device=H10: must be a number of TFLOPS or one of"),
    (["mode=estimate", "trainer.fsdp=true"], "trainer.fsdp=true: shards over several devices"),
    (["mode=estimate", "estimate.devices=0"], "estimate.devices=0: must be at least 1"),
], ids=str)  # fmt: skip
def test_unused_and_unknown_settings_are_refused(overrides: list[str], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        configured("act_tiny", *overrides)


def test_a_vocabulary_that_depends_on_a_text_must_be_given(hub: Path) -> None:
    config = configure_estimate("par_tiny", hub, "tokenizer.vocab_size=null")
    with pytest.raises(ConfigError, match=r"^estimate\.words: set the vocabulary size"):
        estimate_training(config)
