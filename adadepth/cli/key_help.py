"""Keys of an experiment with their values and meanings, in Hydra's `--config-name NAME --help`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from adadepth.cli.help import format_yaml_value
from adadepth.config.declaration import choices, format_help, get_field_specs

_RESOLVER = "adadepth_keys"  # of the template of Hydra's help
_INDENT = "  "


def register_key_help() -> None:
    """Register the resolver `${adadepth_keys:}`, which inserts the keys of an experiment into Hydra's help."""
    OmegaConf.register_new_resolver(
        _RESOLVER,
        lambda *, _root_: "\n".join(_annotate_keys(_root_, 0)).replace("$", "$$"),  # the text is a template
        replace=True,
    )


def _annotate_keys(node: DictConfig, depth: int) -> Iterator[str]:
    """Yield a composed configuration as YAML lines, with the help of every key as a comment."""
    schema = OmegaConf.get_type(node) or dict
    allowed = choices(schema)
    for name, spec in get_field_specs(schema).items():
        comment = f"  # {format_help(spec, allowed.get(name, ()))}"
        is_missing = OmegaConf.is_missing(node, name)
        value = "???" if is_missing else node._get_node(name)
        if isinstance(value, DictConfig) and get_field_specs(OmegaConf.get_type(value) or object):
            yield f"{_INDENT * depth}{name}:{comment}"
            yield from _annotate_keys(value, depth + 1)
        else:
            yield f"{_INDENT * depth}{name}: {value if is_missing else _format_node(node[name])}{comment}"


def _format_node(value: Any) -> str:
    return format_yaml_value(OmegaConf.to_container(value) if OmegaConf.is_config(value) else value)
