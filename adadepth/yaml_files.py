"""Whether a user's YAML file can be read at all: what it says, written out, must have an end."""

from pathlib import Path

import yaml

from adadepth.errors import ConfigError

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
