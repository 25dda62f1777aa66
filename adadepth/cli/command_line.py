"""Preprocessing of the command line for Hydra: overrides, quotes, and the choice of the configuration."""

import ast
import re
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from adadepth.cli.config_files import (
    list_config_folders,
    list_configs,
    list_published_configs,
    parse_config_name,
    raise_option_error,
)
from adadepth.config.overrides import escape_references, quote_text
from adadepth.errors import ConfigError, nearest
from adadepth.runs.directory import read_record
from adadepth.runtime.demos import DEMO_PREFIX, resolve_demo

# Hydra's flags that take a value after an equals sign.
_HYDRA_FLAGS = frozenset(
    {"--cfg", "--package", "--shell-completion", "--config-path", "--config-name", "--config-dir", "--info"}
)
_FLAGS = _HYDRA_FLAGS | {"--help", "--hydra-help", "--version", "--run", "--multirun", "--resolve"}


def arguments(words: list[str]) -> list[str]:
    """Return the command line with the overrides moved to its end, where Hydra expects them.

    ``--key=value``, which the agent of a W&B sweep writes, is also an override. If a run directory is given, the
    configuration of that run is used.

    Raises:
        ConfigError: If there is no ``--config-name``. Hydra would run an empty configuration instead. Also if an option
            is unknown, has no value, or has one that is not allowed.
    """
    # Python represents invalid bytes of the command line as surrogates.
    if unreadable := [word for word in words if re.search("[\ud800-\udfff]", word)]:
        raise ConfigError(f"{unreadable[0]!r}: not in UTF-8")
    if any(len(word) > 3 and "--experimental-rerun".startswith(word.partition("=")[0]) for word in words):
        raise ConfigError(
            "--experimental-rerun: not supported, because it runs arbitrary code from the file; repeat the command"
        )
    words = [word.removeprefix("--") if _is_dashed_override(word) else word for word in words]
    overrides = [word for word in words if is_override(word)]
    options = [word for word in words if word not in overrides]
    if any(override.lstrip("+~").startswith("hydra.searchpath") for override in overrides):
        raise ConfigError("hydra.searchpath: not supported; give the folder with --config-dir")
    overrides = [quote_non_ascii(from_python(quote_text_override(override))) for override in overrides]
    flags = {option.split("=")[0] for option in options}
    if not flags & {"--config-name", "-cn"} and (name := _find_config_of_run(overrides)):
        options = ["--config-name", name, *options]
    elif not flags & {"--config-name", "-cn", "--hydra-help", "--shell-completion", "-sc"}:
        if any(_names_latest(override) for override in overrides):
            raise ConfigError(
                "latest: means the newest run of a configuration; give the configuration with --config-name"
            )
        raise ConfigError(_format_missing_config(options))
    words = options + [expand_preset(override, parse_config_name(options)) for override in overrides]
    parser = get_args_parser()
    parser.error = _raise_option_error  # type: ignore[method-assign]  # Hydra would print its usage and exit
    parser.parse_args(words)
    return words


def _raise_option_error(message: str) -> NoReturn:
    _, is_unknown, unknown = message.partition("unrecognized arguments: ")
    if not is_unknown:
        raise_option_error(message)
    raise ConfigError(_format_unknown_option(unknown.split()[0]))


def _format_unknown_option(option: str) -> str:
    return f"{option}: unknown option{nearest(option, _FLAGS)}"


def expand_preset(override: str, config_name: str | None) -> str:
    """Replace `preset=paper` by the overrides of the experiment's published run, also among the values of a sweep.

    Hydra cannot choose an option by the name of the configuration, so the group `preset/paper` has one option per
    configuration.

    Returns:
        `preset=paper/act_tiny` for act_tiny; any other override is returned unchanged.

    Raises:
        ConfigError: If the configuration is known and has no published run.
    """
    key, _, value = override.partition("=")
    presets = [preset.strip() for preset in value.split(",")]
    if key != "preset" or "paper" not in presets or config_name not in list_configs(list_config_folders()):
        return override
    if config_name not in (published := list_published_configs(list_config_folders())):
        raise ConfigError(f"preset=paper: {config_name} has no published run; only {', '.join(published)} have one")
    return "preset=" + ",".join(f"paper/{config_name}" if preset == "paper" else preset for preset in presets)


def is_override(word: str) -> bool:
    """Return whether a word of the command line is an override, such as ``key=value`` or ``~key``."""
    return not word.startswith("-") and ("=" in word or word.startswith("~"))


def _format_missing_config(options: list[str]) -> str:
    """Return the error message for a command that names no configuration.

    If a word looks like a misspelt option or a configuration, the message suggests it.
    """
    configs = list_configs(list_config_folders())
    for option in (option.partition("=")[0] for option in options):
        if option in configs:
            return f"{option}: to choose a configuration, write --config-name {option}"
        if option.startswith("--") and option not in _FLAGS and not "--config-name".startswith(option):
            return _format_unknown_option(option)
    return f"--config-name is missing; known configurations: {', '.join(configs)}"


def _is_dashed_override(word: str) -> bool:
    flag, equals, _ = word.partition("=")
    return flag.startswith("--") and bool(equals) and flag not in _HYDRA_FLAGS


def _find_config_of_run(overrides: list[str]) -> str | None:
    """Return the configuration name of the run that a command resumes or reports, or of its demo, or None.

    A resumed or reported run provides its own settings. If its configuration no longer exists, any other one can be
    used.

    Raises:
        CheckpointError: If there is no such demo.
    """
    for key, _, value in (override.partition("=") for override in overrides):
        if key == "checkpoint" and (demo := _find_demo(value)) is not None:
            return str(read_record(demo)["config_name"])
        if key == "runs" and "latest" not in value:
            return "act_tiny"
        if key in ("resume", "run") and value != "latest":
            name = read_record(Path(_parse_text(value))).get("config_name")
            return name if name in list_configs(list_config_folders()) else "act_tiny"
    return None


def _find_demo(value: str) -> Path | None:
    """Return the run directory of the first demo that `checkpoint` names, or None."""
    names = (name for name in _split_list(value) if name.startswith(DEMO_PREFIX))
    return next((resolve_demo("checkpoint", name) for name in names), None)


def _split_list(value: str) -> list[str]:
    """Return the items of a list as written on the command line, or the single value."""
    return re.split(r"[][,'\" ]+", value)


def _parse_text(value: str) -> str:
    """Parse the value of an override as Hydra does, and return it without quotes."""
    try:
        return str(OverridesParser.create().parse_override(f"a={value}").value())
    except HydraException:  # Hydra reports it once it has a configuration
        return value


def _names_latest(override: str) -> bool:
    key, _, value = override.partition("=")
    return key in ("resume", "run", "runs", "checkpoint", "rival_of") and "latest" in _split_list(value)


def quote_text_override(override: str) -> str:
    """Quote the value of `text=...`, so that Hydra does not interpret commas, quotes and colons in it.

    Lists are not quoted.
    """
    key, _, value = override.partition("=")
    if key != "text" or value.startswith("[") or value in ("", "null"):
        return override
    return f"text={escape_references(quote_text(value))}"


def quote_non_ascii(override: str) -> str:
    """Quote values with non-ASCII letters, such as `name=ü`, which Hydra accepts only in quotes.

    Lists and the values of a sweep are quoted item by item. Values that contain quotes, braces or functions are not
    changed.
    """
    key, _, value = override.partition("=")
    if value.isascii() or re.search(r"[\"'\\{}()]", value):
        return override
    return f"{key}=" + re.sub(r"[^][,]*[^][,\x00-\x7f][^][,]*", lambda text: f'"{text[0].strip(" ")}"', value)


# ---- overrides in Python syntax, as agents of W&B sweeps write them


_CLASS_NAMES = "dataset.labels"  # whose entries are texts, whatever they look like
_PLAIN_LIST = re.compile(r"\[([^][{}()\"'\\]+)\]")
_KEY_MARKS = re.compile(r"([\\()\[\]{}:=, \t])")


def from_python(override: str) -> str:
    """Convert an override with a Python value (`None`, list or mapping) to Hydra's syntax.

    Class names are quoted, so that `dataset.labels=[false,true]` and `[1.0,2.0]` stay texts.
    """
    key, equals, value = override.partition("=")
    if key.lstrip("+") == _CLASS_NAMES and (entries := _PLAIN_LIST.fullmatch(value)):
        return f"{key}=[" + ",".join(f'"{name.strip()}"' for name in entries[1].split(",")) + "]"
    if value != "None" and value[:1] not in ("{", "["):
        return override
    try:
        literal = ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return override
    return f"{key}{equals}{_format_value(literal)}" if _needs_conversion(literal) else override


def _needs_conversion(value: Any) -> bool:
    """Return whether Hydra would reject a Python value, or parse it to something else."""
    if isinstance(value, list):
        return any(map(_needs_conversion, value))
    return value is None or isinstance(value, dict)


def _format_value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return "[" + ",".join(map(_format_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_format_key(name)}: {_format_value(entry)}" for name, entry in value.items()) + "}"
    return quote_text(value) if isinstance(value, str) else str(value)


def _format_key(name: Any) -> str:
    return _KEY_MARKS.sub(r"\\\1", name) if isinstance(name, str) else _format_value(name)
