"""The schemas that YAML files extend, of every run, data set and family, and all the keys they have."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from adadepth.config import DatasetConfig, ExperimentConfig, ModelConfig
from adadepth.data_sets import dataset_schemas
from adadepth.explanations import register_resolver
from adadepth.families.registry import families


def model_schemas() -> dict[str, type[ModelConfig]]:
    """The settings of every family by its name."""
    return {name: family.settings for name, family in families().items()}


def group_schemas() -> dict[str, Mapping[str, type]]:
    """The schemas that YAML files of a group extend, by name."""
    return {"model": model_schemas(), "dataset": dataset_schemas()}


def register_schema() -> None:
    """Store the schemas under the names YAML files extend: ``schema`` at the root, others in their group.

    Raises:
        ConfigError: If what an installed package adds is broken.
    """
    register_resolver()
    # Hydra copies the store with every repository of YAML files, a hundred times for `--help`. Nobody changes the
    # copies, and what is loaded from the store is copied once more (docs/decisions/0016).
    ConfigStore.__deepcopy__ = lambda store, memo: store  # type: ignore[attr-defined]
    store = ConfigStore.instance()
    store.store(name="schema", node=ExperimentConfig)
    for group, schemas in group_schemas().items():
        for name, node in schemas.items():
            store.store(group=group, name=name, node=node)


def to_config(composed: DictConfig) -> ExperimentConfig:
    """Resolve a composed configuration into plain typed objects; raises OmegaConf's errors for missing values."""
    config = OmegaConf.to_object(composed)
    assert isinstance(config, ExperimentConfig), "the root configuration must extend the schema"
    return config


def known_keys() -> Iterator[str]:
    """Yield every public key once, e.g. ``trainer.learning_rate``, of all families of models and kinds of data."""
    yield from dict.fromkeys(key for key, _ in declared_keys())


def declared_keys(schema: type = ExperimentConfig, prefix: str = "") -> Iterator[tuple[str, type]]:
    """Yield every public key with the dataclass that declares it; several may."""
    kinds: dict[Any, Any] = {ModelConfig: model_schemas(), DatasetConfig: dataset_schemas()}
    for field in dataclasses.fields(schema):
        key = prefix + field.name
        yield key, schema
        for node in kinds[field.type].values() if field.type in kinds else [field.type]:
            if isinstance(node, type) and dataclasses.is_dataclass(node):
                yield from declared_keys(node, f"{key}.")
