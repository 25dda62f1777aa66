"""What `--help` prints: every key of a configuration with its value, what it means and what is allowed."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from omegaconf import DictConfig, OmegaConf

from adadepth.settings.declaration import choices, declared, in_words

RESOLVER = "adadepth_keys"
_INDENT = "  "


def explained(config: DictConfig) -> str:
    """A composed configuration as YAML in which every key has its line of help as a comment."""
    return "\n".join(_lines(config, 0))


def register_resolver() -> None:
    """Let the text of Hydra's help ask for the keys, as `${adadepth_keys:}`."""
    OmegaConf.register_new_resolver(
        RESOLVER,
        lambda *, _root_: explained(_root_).replace("$", "$$"),  # the text is a template
        replace=True,
    )


def _lines(node: DictConfig, depth: int) -> Iterator[str]:
    schema = OmegaConf.get_type(node) or dict
    about, allowed = declared(schema), choices(schema)
    for name, each in about.items():
        words = f"  # {in_words(each, allowed.get(name, ()))}"
        missing = OmegaConf.is_missing(node, name)
        value = "???" if missing else node._get_node(name)
        if isinstance(value, DictConfig) and declared(OmegaConf.get_type(value) or object):
            yield f"{_INDENT * depth}{name}:{words}"
            yield from _lines(value, depth + 1)
        else:
            yield f"{_INDENT * depth}{name}: {value if missing else inline(node[name])}{words}"


def inline(value: Any) -> str:
    """A value as one would write it on the command line."""
    plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    if plain is None or isinstance(plain, bool):
        return {None: "null", True: "true", False: "false"}[plain]
    return str(
        [str(each) if isinstance(each, StrEnum) else each for each in plain] if isinstance(plain, list) else plain
    )
