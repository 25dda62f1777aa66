"""Models and batches beyond the memory: refused with their parts, at no noticeable cost."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from adadepth import AlbertActForPreTraining, tasks
from adadepth.errors import ConfigError
from adadepth.models import memory_check
from adadepth.models.build import build_pretraining_model
from tests.configs.support import configured
from tests.models_support import make_small_config


def test_the_counted_parts_equal_those_of_the_model() -> None:
    model = AlbertActForPreTraining(make_small_config())
    count = sum(parameter.numel() for parameter in model.parameters())
    needed = memory_check.compute_training_bytes(AlbertActForPreTraining, make_small_config())
    assert needed == {"weights": 4 * count, "gradients": 4 * count, "optimizer": 8 * count}


@pytest.mark.parametrize("width", [10**11, 2**62])
def test_a_model_beyond_memory_is_refused_in_one_line(width: int) -> None:
    settings = dataclasses.replace(configured("act_tiny").model, intermediate_size=width)
    with pytest.raises(
        ConfigError, match=r"^model: training needs [\d,.]+ GiB \(weights .*, but [\d,.]+ GiB are available; "
    ) as error:
        build_pretraining_model(settings, 1000)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_model_that_fits_is_built_as_without_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = configured("act_tiny").model
    torch.manual_seed(3)
    expected = build_pretraining_model(settings, 300).state_dict()
    exact = memory_check.compute_training_bytes(AlbertActForPreTraining, build_pretraining_model(settings, 300).config)
    assert exact is not None
    monkeypatch.setattr(memory_check, "total_memory", lambda: sum(exact.values()))
    torch.manual_seed(3)
    weights = build_pretraining_model(settings, 300).state_dict()
    assert all(torch.equal(weights[name], value) for name, value in expected.items())
    monkeypatch.setattr(memory_check, "total_memory", lambda: sum(exact.values()) - 1)
    with pytest.raises(ConfigError, match="model: training needs"):
        build_pretraining_model(settings, 300)


def test_a_batch_beyond_memory_is_refused_with_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = AlbertActForPreTraining(make_small_config())
    options = {"width": 4, "processes": 2, "recomputed": False}
    least, parts = memory_check.compute_least_bytes(model, [30] * 9000, **options)
    states, inner = (2 * 4 * 9000 * 30 * features for features in (32, 64))
    assert (parts["states"], parts["feed-forward"]) == (states, inner)
    assert least == parts["weights"] + parts["optimizer"] + states + inner
    monkeypatch.setattr(memory_check, "total_memory", lambda: least)
    memory_check.check_batch(model, [30] * 9000, **options)
    monkeypatch.setattr(memory_check, "total_memory", lambda: least - 1)
    line = r"^trainer\.per_device_train_batch_size: 9000 rows with 270,000 tokens need at least 0\.2 GiB \(weights "
    with pytest.raises(ConfigError, match=line) as error:
        memory_check.check_batch(model, [30] * 9000, **options)
    assert "\n" not in str(error.value)
    next(model.parameters()).requires_grad_(False)  # with frozen weights, the stored activations are unknown
    memory_check.check_batch(model, [30] * 9000, **options)


def test_attention_counts_where_it_is_stored() -> None:
    model = AlbertActForPreTraining._from_config(make_small_config(), attn_implementation="eager")
    assert model.least_activations([3, 5], recomputed=True)["attention"] == 4 * (3**2 + 5**2)


@pytest.mark.slow
def test_a_run_with_a_batch_beyond_memory_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = ("debug=default", "dataset.max_documents=12", "trainer.per_device_train_batch_size=64")
    monkeypatch.setattr(memory_check, "total_memory", lambda: 500_000)  # the model takes 390,000
    with pytest.raises(ConfigError, match=r"^trainer\.per_device_train_batch_size: \d+ rows"):
        tasks.run(configured("act_tiny", *overrides, "model.intermediate_size=32", f"output_dir={tmp_path}"))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_run_with_puzzles_beyond_memory_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_check, "total_memory", lambda: 100_000_000)  # 1.6 GB are stored for the backward pass
    monkeypatch.setattr("adadepth.tasks.checks.total_memory", lambda: 100_000_000)
    overrides = ("dataset.size=4", "dataset.train_examples=4000", "trainer.per_device_train_batch_size=2000")
    with pytest.raises(
        ConfigError, match=r"^trainer\.per_device_train_batch_size: 2000 rows with 32,000 tokens.*_size=\d+ fits$"
    ):
        tasks.run(configured("trm_tiny", *overrides, "dataset.max_evaluation_examples=8", f"output_dir={tmp_path}"))
    assert not list(tmp_path.iterdir())


def test_a_model_without_checkpointing_refuses_the_setting(tmp_path: Path) -> None:
    overrides = ("debug=default", "trainer.gradient_checkpointing=true", f"output_dir={tmp_path}")
    with pytest.raises(
        ConfigError,
        match=r"^trainer\.gradient_checkpointing=true: model=ponder_rnn does "
        r"not support recomputation",
    ):
        tasks.run(configured("ponder_parity", *overrides))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("case", ["par 32 256 sdpa", "albert 32 256 eager", "act 32 128 sdpa"])
def test_an_update_needs_at_least_the_counted_memory(case: str) -> None:
    script = Path(__file__).with_name("peak_memory.py")
    ran = subprocess.run([sys.executable, str(script), *case.split()], capture_output=True, text=True, check=True)
    least, peak = map(int, ran.stdout.split())
    assert 20_000_000 < least < peak
