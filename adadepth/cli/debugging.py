"""Runs of seconds, `debug=default`: settings that declare a value for it take it, unless the command line gave one."""

import dataclasses
from collections.abc import Set
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from adadepth.settings import ExperimentConfig, Mode, Task
from adadepth.settings.declaration import declared


def shrunk(config: ExperimentConfig, given: Set[str]) -> ExperimentConfig:
    """The same experiment at sizes that take seconds and learn nothing.

    A pretrained model keeps its sizes, and what is searched keeps its settings where nothing is searched.

    Args:
        config: The experiment.
        given: Keys that keep the value they have.
    """
    groups = ["dataset", "trainer"]
    if config.model.pretrained is None and config.mode is Mode.train:
        groups.append("model")
    if config.tokenizer.path is None:
        groups.append("tokenizer")
    if config.task is Task.architecture_search:
        groups.append("search")
    root = {
        name: about.debug for name, about in declared(ExperimentConfig).items() if about.shrinks and name not in given
    }
    return dataclasses.replace(config, **root, **{name: _small(name, getattr(config, name), given) for name in groups})


def _small(group: str, settings: Any, given: Set[str]) -> Any:
    values = {}
    for name, about in declared(type(settings)).items():
        value = getattr(settings, name)
        is_open = about.shape and not value  # of a shape that something else decides, or that is not there
        if about.shrinks and f"{group}.{name}" not in given and not is_open:
            values[name] = min(value, about.debug) if about.shape and isinstance(value, int) else about.debug
    return dataclasses.replace(settings, **values)


def given_keys(composed: DictConfig) -> frozenset[str]:
    """Keys that the command line set, from Hydra's own record of it."""
    if "hydra" in composed:
        overrides = composed.hydra.overrides.task
    elif HydraConfig.initialized():
        overrides = HydraConfig.get().overrides.task
    else:
        overrides = []
    return frozenset(str(override).split("=")[0].lstrip("+") for override in overrides)
