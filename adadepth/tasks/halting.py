"""The second stage of a model that ponders: a trained model stays as it is, its halting head alone goes on learning."""

from __future__ import annotations

from typing import Any

from adadepth.config import ExperimentConfig
from adadepth.errors import CheckpointError, ConfigError
from adadepth.families.folder import read_config
from adadepth.families.shared.ponder_objective import HaltingStage


def train_halting_alone(config: ExperimentConfig, model: Any) -> None:
    """Freeze everything but the halting head of a model that was built from `model.pretrained`.

    Raises:
        CheckpointError: If the weights are another family's, whose steps have never predicted.
        ConfigError: If the model has one step only, after which there is nothing to decide.
    """
    path = str(config.model.pretrained)
    found = read_config("model.pretrained", path).model_type
    if found != config.model.name:
        raise CheckpointError(f"model.pretrained={path}: holds {found}; halting.alone=true needs {config.model.name}")
    if model.max_updates < 2:
        raise ConfigError(f"halting.alone=true: model.pretrained={path} has one step, so there is nothing to decide")
    model.train_halting_alone(HaltingStage(config.halting.slope, config.halting.threshold))
