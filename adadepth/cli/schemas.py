"""Schemas in Hydra's store, which YAML files extend, and the conversion of a composed configuration."""

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from adadepth.cli.keys import list_group_schemas
from adadepth.config import ExperimentConfig
from adadepth.config.modes import experiment_schema


def register_schema() -> None:
    """Register all schemas in Hydra under the names that YAML files extend.

    The root is ``schema``; all others are in their group.

    Raises:
        ConfigError: If an extension from an installed package is broken.
    """
    # Hydra copies the store with every repository of YAML files, a hundred times for `--help`. Nobody changes the
    # copies, and what is loaded from the store is copied once more (docs/decisions/0016).
    ConfigStore.__deepcopy__ = lambda store, memo: store  # type: ignore[attr-defined]
    _store("schema", experiment_schema())
    for group, schemas in list_group_schemas().items():
        for name, node in schemas.items():
            _store(name, node, group)


def _store(name: str, schema: type, group: str | None = None) -> None:
    """Add a schema to Hydra's config store unless it is there already."""
    store = ConfigStore.instance()
    stored = (store.repo.get(group, {}) if group else store.repo).get(f"{name}.yaml")
    if stored is None or OmegaConf.get_type(stored.node) is not schema:
        store.store(name=name, node=schema, group=group)


def to_config(composed: DictConfig) -> ExperimentConfig:
    """Convert a configuration composed by Hydra to an instance of its dataclass.

    OmegaConf raises its errors if values are missing.
    """
    config = OmegaConf.to_object(composed)
    assert isinstance(config, ExperimentConfig), "the root configuration must extend the schema"
    return config
