"""The schemas that YAML files extend, of every run, data set and family, and all the keys they have."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from adadepth.cli.explanations import register_resolver
from adadepth.errors import ConfigError
from adadepth.families.registry import families
from adadepth.settings import DatasetConfig, ExperimentConfig, ModelConfig
from adadepth.settings.kinds import dataset_schemas
from adadepth.settings.modes import experiment_schema


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
    _store("schema", experiment_schema())
    for group, schemas in group_schemas().items():
        for name, node in schemas.items():
            _store(name, node, group)


def _store(name: str, schema: type, group: str | None = None) -> None:
    """Store a schema unless it is there already: of some thirty, a further command of a process need not make one."""
    store = ConfigStore.instance()
    there = store.repo.get(group, {}) if group else store.repo
    known = there.get(f"{name}.yaml")
    if known is None or OmegaConf.get_type(known.node) is not schema:
        store.store(name=name, node=schema, group=group)


def to_config(composed: DictConfig) -> ExperimentConfig:
    """Resolve a composed configuration into plain typed objects; raises OmegaConf's errors for missing values."""
    config = OmegaConf.to_object(composed)
    assert isinstance(config, ExperimentConfig), "the root configuration must extend the schema"
    return config


def known_keys() -> Iterator[str]:
    """Yield every public key once, e.g. ``trainer.learning_rate``, of all families of models and kinds of data."""
    yield from dict.fromkeys(key for key, _ in declared_keys())


def declared_keys() -> Iterator[tuple[str, type]]:
    """Yield every public key with the dataclass that declares it; several may."""
    yield from _declared_keys(experiment_schema(), "")


def _declared_keys(schema: type, prefix: str) -> Iterator[tuple[str, type]]:
    kinds: dict[Any, Any] = {ModelConfig: model_schemas(), DatasetConfig: dataset_schemas()}
    for field in dataclasses.fields(schema):
        key = prefix + field.name
        yield key, schema
        for node in kinds[field.type].values() if field.type in kinds else [field.type]:
            if isinstance(node, type) and dataclasses.is_dataclass(node):
                yield from _declared_keys(node, f"{key}.")


_MOST_NODES = 100_000  # a shipped configuration has some 300
_DEEPEST = 50
_MOST_BYTES = 2**20


def check_yaml(path: Path) -> None:
    """Refuse a file whose aliases would be written out without end, or that has further folders searched.

    Hydra writes aliases out, so that ten lines can become more than any memory holds; a
    folder it searches may be a package, which is imported for that. What is no YAML it says itself.

    Raises:
        ConfigError: Naming the file.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: must be a file")
    if path.stat().st_size > _MOST_BYTES:
        raise ConfigError(f"{path}: has more than {_MOST_BYTES >> 20} MiB")
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        count = 0 if root is None else _written_out(root, {}, 0)
    except (yaml.YAMLError, UnicodeDecodeError):
        return
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply") from error
    if "hydra" in (keys := _entries(root)) and "searchpath" in _entries(keys["hydra"]):
        raise ConfigError(f"{path}: hydra.searchpath: say the folder with --config-dir")
    if count > _MOST_NODES:
        raise ConfigError(f"{path}: its aliases, written out, are more than {_MOST_NODES} values")
    for node in _class_nodes(root):
        if isinstance(node, yaml.ScalarNode) and node.style is None and (other := _read_otherwise(node.value)):
            place = f"{path}, line {node.start_mark.line + 1}"
            raise ConfigError(f"{place}: the class {node.value} is {other} in YAML; write it in quotes: '{node.value}'")


def _class_nodes(node: yaml.Node | None) -> Iterator[yaml.Node]:
    """Yield what stands for the name of a class: entries of `labels`, and keys of `class_weights`."""
    for name, child in _entries(node).items():
        if name == "labels" and isinstance(child, yaml.SequenceNode):
            yield from child.value
        elif name == "class_weights" and isinstance(child, yaml.MappingNode):
            yield from (key for key, _ in child.value)
        else:
            yield from _class_nodes(child)


def _read_otherwise(text: str) -> str | None:
    """Return what a text without quotes is in YAML where that is written otherwise, such as False for `no`."""
    value = OmegaConf.to_container(OmegaConf.create(f"name: {text}"), resolve=False)
    other = str(value["name"]) if isinstance(value, dict) else text
    return None if other == text else other


def _entries(node: yaml.Node | None) -> dict[str, yaml.Node]:
    """What a mapping has by name; anything else has nothing."""
    return {key.value: value for key, value in node.value} if isinstance(node, yaml.MappingNode) else {}


def _written_out(node: yaml.Node, known: dict[int, int], depth: int) -> int:
    """How many nodes there are when every alias is replaced by what it stands for; one inside itself has no end."""
    if id(node) in known:
        return known[id(node)]
    if depth > _DEEPEST:
        raise RecursionError
    known[id(node)] = _MOST_NODES + 1  # until it is counted: an alias of what it stands in
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        children = [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    known[id(node)] = 1 + sum(_written_out(child, known, depth + 1) for child in children)
    return known[id(node)]
