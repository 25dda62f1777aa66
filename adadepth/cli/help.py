"""Texts of `adadepth --help`, `--help TOPIC`, `--config-name NAME --help` and `--version`."""

from __future__ import annotations

import dataclasses
import platform
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any

from adadepth import __version__
from adadepth.cli.config_files import list_config_folders, list_published_configs, parse_options
from adadepth.cli.keys import list_declared_keys, list_group_schemas
from adadepth.config.declaration import MISSING, choices, format_help, get_field_specs
from adadepth.config.modes import modes
from adadepth.config.plugins import list_installed_plugins
from adadepth.errors import ConfigError, nearest

_WIDTH = 112
_USAGE = """\
adadepth: transformers whose depth is not fixed.

  adadepth mode=evaluate checkpoint=demo:hops             evaluate a bundled model, without training
  adadepth --config-name act_tiny                         train, evaluate, write a report
  adadepth --config-name act_tiny model=albert_act_mini trainer.max_steps=50
  adadepth --config-name act_tiny mode=evaluate checkpoint=latest
  adadepth --config-name act_tiny -m budget.target=3,5 seed=0,1
  adadepth --config-dir FOLDER --config-name NAME         with your own YAML files in addition

`python -m adadepth` is the same, and so is `python adadepth/run.py` in a clone.
"""
_MORE_HELP = """\
Further help:

  adadepth --help GROUP                   options and keys of a group
  adadepth --help KEY                     meaning and range of a key: --help trainer.learning_rate
  adadepth --config-name NAME --help      every key of an experiment with its value
  adadepth --version                      versions of adadepth, torch and transformers
  adadepth --hydra-help                   Hydra's own options: --cfg job, --multirun, ...
"""


def get_help_text(words: list[str]) -> str | None:
    """Return the text for ``--help [GROUP|EXPERIMENT|KEY]`` or ``--version``.

    The result is None if a configuration is named, or if neither option is given.
    """
    options, rest = parse_options(words)
    if options.version:
        return format_versions()
    if options.help and "=" not in options.help:
        return describe_topic(options.help, list_config_folders())
    is_usage = not rest and not options.help and options.config_name is None and (options.help == "" or not words)
    return format_usage(list_config_folders()) if is_usage else None


def format_usage(folders: Sequence[Path]) -> str:
    """Return the usage text: how to run, one line per mode and per experiment, and the groups with their options."""
    experiments = _format_table({name: _read_comment(path) for name, path in _find_files(folders).items()})
    groups = "\n".join(
        textwrap.fill(f"  {group}: {', '.join(_describe_options(group, folders))}", _WIDTH, subsequent_indent="    ")
        for group in _find_groups(folders)
    )
    mode_table = _format_table({name: mode.help for name, mode in modes().items()})
    plugins = "\n".join(
        textwrap.fill(f"  {package}: {', '.join(names)}", _WIDTH, subsequent_indent="    ")
        for package, names in sorted(list_installed_plugins().items())
    )
    plugin_list = f"Plug-ins of installed packages (docs/plugins.md):\n\n{plugins}\n\n" if plugins else ""
    return (
        f"{_USAGE}\nModes (mode=NAME):\n\n{mode_table}\n\nExperiments (--config-name):\n\n{experiments}\n\n"
        f"Groups (group=option):\n\n{groups}\n\n{plugin_list}{_MORE_HELP}"
    )


def format_versions() -> str:
    """Return the versions of adadepth and of the packages that influence its results."""
    packages = (f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "hydra-core"))
    return f"adadepth {__version__}\n{', '.join(packages)}, Python {platform.python_version()}\n"


def describe_topic(name: str, folders: Sequence[Path]) -> str:
    """Return the help text of a configuration group, an experiment or a key.

    Raises:
        ConfigError: If nothing has that name.
    """
    groups, experiments = _find_groups(folders), _find_files(folders)
    keys: dict[str, type] = {}  # with the first class that declares the key
    for key, owner in list_declared_keys():
        keys.setdefault(key, owner)
    parts = []
    if name in groups:
        parts.append(f"Options ({name}=OPTION):\n\n{_format_table(_describe_options(name, folders))}")
    elif name in keys:
        parts.append("\n".join(_describe_key(name)))
    if name in experiments:
        parts.append(f"{name}\n{_fill_paragraph(_read_comment(experiments[name]))}")
    if subkeys := {key: _format_help_line(owner, key) for key, owner in keys.items() if key.startswith(f"{name}.")}:
        parts.append(f"Keys:\n\n{_format_table(subkeys)}")
    if not parts:
        leaves = [key for key in keys if key.rpartition(".")[2] == name]
        topics = [*groups, *experiments, *keys]
        hint = f" (did you mean {' or '.join(map(repr, leaves[:2]))}?)" if leaves else nearest(name, topics)
        raise ConfigError(f"--help {name}: no such group, experiment or key{hint}; --help lists them")
    return "\n\n".join(parts) + "\n"


def _find_files(folders: Sequence[Path], group: str = "") -> dict[str, Path]:
    """Return the YAML files of a configuration group by name, or those of the experiments if `group` is empty.

    If several folders have a file of the same name, the first folder wins, as in Hydra.
    """
    files = {path.stem: path for folder in reversed(folders) for path in (folder / group).glob("*.yaml")}
    return dict(sorted(files.items()))


def _find_groups(folders: Sequence[Path]) -> list[str]:
    """Return the configuration groups, without the group `hydra` for Hydra's own settings."""
    groups = {path.parent.name for folder in folders for path in folder.glob("*/*.yaml")}
    return sorted((groups | set(list_group_schemas())) - {"hydra"})


def _describe_options(group: str, folders: Sequence[Path]) -> dict[str, str]:
    """Return the help of every option of a configuration group, by option name."""
    schemas = list_group_schemas().get(group, {})
    first_lines = {name: (schema.__doc__ or "").partition("\n")[0] for name, schema in schemas.items()}
    files = {name: _read_comment(path) for name, path in _find_files(folders, group).items()}
    if group == "preset":
        files["paper"] = f"All settings of the published run, for {', '.join(list_published_configs(folders))}."
    return dict(sorted({**first_lines, **files}.items()))


def _format_table(texts: Mapping[str, str]) -> str:
    """Format a table of names and texts, with one line per name and the shortened first sentence of its text."""
    width = max(map(len, texts), default=0)
    lines = (
        f"  {name:<{width}}  {textwrap.shorten(_split_sentence(text), _WIDTH, placeholder=' ...')}".rstrip()
        for name, text in texts.items()
    )
    return "\n".join(lines)


def _read_comment(file: Path) -> str:
    """Return the comment at the top of a YAML file, without comment signs."""
    words = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            words.append(line.lstrip("# "))
    return " ".join(words)


def _split_sentence(text: str) -> str:
    """Return the first sentence of a text.

    It ends at a full stop that a capital letter follows, so that `et al. 2019` does not end it.
    """
    return re.split(r"(?<=[.?!]) (?=[A-Z])", text, maxsplit=1)[0]


def _fill_paragraph(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def _describe_key(name: str) -> Iterator[str]:
    """Yield the help of a key. Model families and dataset types that declare it identically share one text."""
    yield name
    classes: dict[tuple[str, str], list[str]] = {}
    field = name.rpartition(".")[2]
    for owner in dict.fromkeys(owner for key, owner in list_declared_keys() if key == name):
        sentences = " ".join(filter(None, (f"{_format_help_line(owner, name)}.", get_field_specs(owner)[field].more)))
        classes.setdefault((sentences, _format_default(owner, field)), []).append(owner.__name__)
    for (sentences, default), owners in classes.items():
        owner_names = f" ({', '.join(owners)})" if len(classes) > 1 else ""
        yield _fill_paragraph(sentences)
        if default:
            yield f"  default: {default}{owner_names}"


def _format_help_line(owner: type, key: str) -> str:
    field = key.rpartition(".")[2]
    return format_help(get_field_specs(owner)[field], choices(owner).get(field, ()))


def _format_default(owner: type, name: str) -> str:
    """Return the default of a setting as YAML, or an empty text if it is a group of settings or has no default."""
    field = next(field for field in dataclasses.fields(owner) if field.name == name)
    factory = field.default_factory
    value = field.default if factory is dataclasses.MISSING else factory()
    return "" if value == MISSING or dataclasses.is_dataclass(value) else format_yaml_value(value)


def format_yaml_value(value: Any) -> str:
    """Format a value as it is written on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        value = [str(item) if isinstance(item, StrEnum) else item for item in value]
    return str(value)
