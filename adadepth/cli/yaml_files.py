"""Checks of a user's YAML files before Hydra reads them."""

from collections.abc import Iterator
from pathlib import Path

import yaml
from omegaconf import OmegaConf

from adadepth.errors import ConfigError

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
