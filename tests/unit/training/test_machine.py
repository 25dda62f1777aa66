"""Settings of the trainer that this machine cannot fulfil: one line each, before anything is prepared."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from adadepth.errors import ConfigError
from adadepth.training import arguments
from adadepth.training.arguments import describe_precision, training_arguments
from tests.configs.support import configured

SHARDED = ["trainer.fsdp=true"]


@pytest.mark.parametrize(("overrides", "message"), [
    (SHARDED, r"^trainer.fsdp=true: shards over .* there is only one; start it with torchrun, or set it to false$"),
    (["trainer.deepspeed={stage: 1}"], r"^trainer.deepspeed: the package deepspeed is missing; install it with"),
    (["trainer.fsdp_config=gone.json"], r"^trainer.fsdp_config=gone.json: cannot be read \(No such file"),
    (["trainer.fsdp_config=list.json"], r"^trainer.fsdp_config=list.json: must hold a mapping$"),
    (["trainer.fsdp_config=cut.json"], r"^trainer.fsdp_config=cut.json: not JSON \("),
    (["trainer.ddp_backend=glo"], r"^trainer.ddp_backend=glo: must be one of gloo, .* \(did you mean 'gloo'\?\)$"),
    (["trainer.ddp_backend=gloo"], r"^trainer.ddp_backend=gloo: only used with several processes"),
    (["runtime.compile=true", "trainer.torch_compile_mode=fast"], r"^trainer.torch_compile_mode=fast: must be one of"),
    (["runtime.compile=true", "trainer.torch_compile_backend=inducto"],
     r"^trainer.torch_compile_backend=inducto: must be one of .*inductor.* \(did you mean 'inductor'\?\)$"),
])  # fmt: skip
def test_settings_that_this_machine_cannot_fulfil_are_one_line_errors(
    overrides: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    Path("list.json").write_text("[]")
    Path("cut.json").write_text("{")
    with pytest.raises(ConfigError, match=message) as error:
        training_arguments(configured("act_tiny", *overrides))
    assert "\n" not in str(error.value)
    assert {path.name for path in tmp_path.iterdir()} == {"list.json", "cut.json"}


def test_backends_known_to_torch_and_accelerate_are_allowed() -> None:
    compiled = ["runtime.compile=true", "trainer.torch_compile_backend=aot_eager", "trainer.torch_compile_mode=default"]
    assert training_arguments(configured("act_tiny", *compiled)).torch_compile_backend == "aot_eager"


def test_sharding_needs_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "is_distributed", lambda: True)
    arguments.check_machine(configured("act_tiny", *SHARDED))


def test_only_the_second_version_of_fsdp_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "is_distributed", lambda: True)
    with pytest.raises(ConfigError, match=r"^trainer.fsdp_config: version must be 2"):
        training_arguments(configured("act_tiny", *SHARDED, "trainer.fsdp_config={version: 1}"))


@pytest.mark.parametrize(("overrides", "devices", "described"), [
    ([], [False, False], "fp32 (no CUDA device)"),
    (["trainer.use_cpu=true"], [True, True], "fp32 (the run must use the CPU)"),
    ([], [True, True], "bf16 (the device supports it)"),
    ([], [True, False], "fp16 (the device does not support bf16)"),
    (["trainer.precision=bf16"], [False, False], "bf16"),
])  # fmt: skip
def test_the_choice_of_precision_has_a_reason(
    overrides: list[str], devices: list[bool], described: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_available, has_bf16 = devices
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_available)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bf16)
    assert describe_precision(configured("act_tiny", *overrides).trainer) == described
