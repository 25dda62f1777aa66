"""Keys of a configuration, with the classes that declare them. Needs neither Hydra nor OmegaConf, so help is fast."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from adadepth.config import DatasetConfig, ModelConfig
from adadepth.config.kinds import list_dataset_schemas
from adadepth.config.modes import experiment_schema
from adadepth.models.registry import families


def list_model_schemas() -> dict[str, type[ModelConfig]]:
    """Return the settings class of every model family by name."""
    return {name: family.settings for name, family in families().items()}


def list_group_schemas() -> dict[str, Mapping[str, type]]:
    """Return the schemas that the YAML files of each group extend, by group and name."""
    return {"model": list_model_schemas(), "dataset": list_dataset_schemas()}


def list_keys() -> Iterator[str]:
    """Yield every public key of all model families and dataset types once, e.g. ``trainer.learning_rate``."""
    yield from dict.fromkeys(key for key, _ in list_declared_keys())


def list_declared_keys() -> Iterator[tuple[str, type]]:
    """Yield every public key with the dataclass that declares it, once per dataclass."""
    yield from _declared_keys(experiment_schema(), "")


def _declared_keys(schema: type, prefix: str) -> Iterator[tuple[str, type]]:
    kinds: dict[Any, Any] = {ModelConfig: list_model_schemas(), DatasetConfig: list_dataset_schemas()}
    for field in dataclasses.fields(schema):
        key = prefix + field.name
        yield key, schema
        for node in kinds[field.type].values() if field.type in kinds else [field.type]:
            if isinstance(node, type) and dataclasses.is_dataclass(node):
                yield from _declared_keys(node, f"{key}.")
