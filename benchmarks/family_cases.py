"""Training steps of every family, as their configurations define them: model, micro-batch and inputs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from hydra import compose, initialize_config_module
from torch import Tensor

from adadepth.cli.schemas import register_schema
from adadepth.cli.validation import build_config
from adadepth.contrib.estimate.estimate import compute_carried_inputs, prepare_for_training
from adadepth.contrib.estimate.training_spec import TrainingSpec, build_training_spec
from adadepth.data.batches import IGNORE

WORDS = ("input_ids", "labels", "targets")
NO_HALTING_BIAS = -20.0  # bias of halting units, so that no token halts


def build_case_config(case: str) -> Any:
    """Build the configuration of a case, `CONFIGURATION override ...`, in float32 as on a CPU."""
    register_schema()
    root, *overrides = case.split()
    with initialize_config_module("configs", version_base="1.3"):
        return build_config(compose(root, overrides=["mode=estimate", "trainer.precision=fp32", *overrides]))


def build_case_model(config: Any, subject: TrainingSpec) -> Any:
    """Build the model in training mode, with halting biases that let every token reach the maximum depth."""
    model = subject.build()
    prepare_for_training(config, model)
    for name, weight in model.named_parameters():
        if (".act." in name or "halt" in name) and name.endswith("bias"):
            weight.data.fill_(NO_HALTING_BIAS)
    return model


def draw_words(config: Any, batch: Mapping[str, Tensor], pieces: int | None, seed: int) -> dict[str, Tensor]:
    """Replace the repeated placeholder word of a batch by random ones; generated data stay unchanged."""
    if hasattr(config.dataset, "train_examples") or pieces is None:
        return dict(batch)
    ids = torch.randint(5, pieces, batch["input_ids"].shape, generator=torch.Generator().manual_seed(seed))
    alike = {name: batch[name] for name in WORDS if name in batch and batch[name].shape == ids.shape}
    return {**batch, **{name: ids.where(words != IGNORE, words) for name, words in alike.items() if words.any()}}


def select_inputs(config: Any, model: Any, batch: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the model's inputs from a micro-batch, with the state carried over from the previous step."""
    read = inspect.signature(model.forward).parameters
    inputs = {name: value for name, value in batch.items() if name in read}
    return inputs | compute_carried_inputs(config, model, inputs)


def build_case(case: str, seed: int = 0) -> tuple[Any, dict[str, Any]]:
    """Build the randomly initialised model of a case on the CPU, and the inputs of one step."""
    config = build_case_config(case)
    subject = build_training_spec(config)
    torch.manual_seed(seed)
    model = build_case_model(config, subject)
    batch = subject.batch(config.trainer.per_device_train_batch_size)
    return model, select_inputs(config, model, draw_words(config, batch, model.vocabulary_size, seed))


def move(value: Any, device: torch.device) -> Any:
    """Move tensors, and containers of tensors, to a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: move(item, device) for name, item in value.items()}
    return value


def disable_dropout(model: torch.nn.Module) -> None:
    """Disable dropout, since devices draw different numbers."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for holder in (module, getattr(module, "config", None)):
            fields = vars(holder) if holder is not None else {}
            for name in [name for name, value in fields.items() if "dropout" in name and isinstance(value, float)]:
                setattr(holder, name, 0.0)
