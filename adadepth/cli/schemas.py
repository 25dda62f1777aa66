"""Schemas that YAML files extend, for runs, data sets and model families, and checks of a user's YAML files."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from adadepth.config import DatasetConfig, ExperimentConfig, ModelConfig
from adadepth.config.kinds import list_dataset_schemas
from adadepth.config.modes import experiment_schema
from adadepth.errors import ConfigError
from adadepth.models.registry import families


def list_model_schemas() -> dict[str, type[ModelConfig]]:
    """Return the settings class of every model family by name."""
    return {name: family.settings for name, family in families().items()}


def list_group_schemas() -> dict[str, Mapping[str, type]]:
    """Return the schemas that the YAML files of each group extend, by group and name."""
    return {"model": list_model_schemas(), "dataset": list_dataset_schemas()}


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


_MAX_NODES = 100_000  # a shipped configuration has some 300
_MAX_DEPTH = 50
_MAX_BYTES = 2**20


def check_yaml(path: Path) -> None:
    """Raise an error for a YAML file with endless aliases, search folders, or class names that YAML misreads.

    Hydra expands aliases, so ten lines can expand beyond any memory. A search folder may be a package, which Hydra
    would import. YAML reads an unquoted class name such as `no` as False. Syntax errors are left to Hydra.

    Raises:
        ConfigError: If the file has one of these faults; the message names the file.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: must be a file")
    if path.stat().st_size > _MAX_BYTES:
        raise ConfigError(f"{path}: has more than {_MAX_BYTES >> 20} MiB")
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        count = 0 if root is None else _count_expanded_nodes(root, {}, 0)
    except (yaml.YAMLError, UnicodeDecodeError):
        return
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply") from error
    if "hydra" in (keys := _get_entries(root)) and "searchpath" in _get_entries(keys["hydra"]):
        raise ConfigError(f"{path}: hydra.searchpath: not supported; give the folder with --config-dir")
    if count > _MAX_NODES:
        raise ConfigError(f"{path}: its aliases expand to more than {_MAX_NODES} values")
    for node in _find_class_nodes(root):
        if isinstance(node, yaml.ScalarNode) and node.style is None and (other := _find_other_reading(node.value)):
            line = f"{path}, line {node.start_mark.line + 1}"
            raise ConfigError(f"{line}: the class {node.value} is {other} in YAML; write it in quotes: '{node.value}'")


def _find_class_nodes(node: yaml.Node | None) -> Iterator[yaml.Node]:
    """Yield the YAML nodes of class names: the entries of `labels` and the keys of `class_weights`."""
    for name, child in _get_entries(node).items():
        if name == "labels" and isinstance(child, yaml.SequenceNode):
            yield from child.value
        elif name == "class_weights" and isinstance(child, yaml.MappingNode):
            yield from (key for key, _ in child.value)
        else:
            yield from _find_class_nodes(child)


def _find_other_reading(text: str) -> str | None:
    """Return what YAML makes of an unquoted text, such as True for `yes`, or None if it stays text.

    For example, YAML reads `no` as False.
    """
    value = OmegaConf.to_container(OmegaConf.create(f"name: {text}"), resolve=False)
    other = str(value["name"]) if isinstance(value, dict) else text
    return None if other == text else other


def _get_entries(node: yaml.Node | None) -> dict[str, yaml.Node]:
    """Return the entries of a YAML mapping node by name, or an empty mapping for any other node."""
    return {key.value: value for key, value in node.value} if isinstance(node, yaml.MappingNode) else {}


def _count_expanded_nodes(node: yaml.Node, counts: dict[int, int], depth: int) -> int:
    """Return the number of YAML nodes after expanding aliases.

    An alias inside itself gives a number above the limit.
    """
    if id(node) in counts:
        return counts[id(node)]
    if depth > _MAX_DEPTH:
        raise RecursionError
    counts[id(node)] = _MAX_NODES + 1  # until it is counted: an alias inside this node
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        children = [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    counts[id(node)] = 1 + sum(_count_expanded_nodes(child, counts, depth + 1) for child in children)
    return counts[id(node)]
