"""One-line messages for errors of Hydra and OmegaConf, with the allowed values and the nearest match.

They are built from Hydra's exceptions after composition has failed. A check before composition would wrongly refuse the
keys of a group option that the same command line selects.
"""

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from adadepth.cli.config_files import list_configs
from adadepth.cli.keys import list_group_schemas, list_keys
from adadepth.config.declaration import format_value, get_field_specs
from adadepth.errors import UserError, nearest

_MAX_LINE = 2000  # characters; a line that lists all configurations has half of that


def format_config_error(error: Exception, folders: Callable[[], Sequence[Path]]) -> str:
    """Format an error that Hydra raised while composing a configuration as one line, or a `UserError` as one or more.

    Args:
        error: Error to format.
        folders: Function that returns the folders of YAML files. It is called only if names must be listed, because it
            fails if an installed package is broken.
    """
    if isinstance(error, UserError):
        return "\n".join(map(_shorten_line, str(error).splitlines()))
    if isinstance(error, MissingConfigException):
        return _format_missing_config(error, folders())
    if isinstance(error, OverrideParseException):
        hint = _suggest_quotes(error.override or "") or _format_grammar_error(error)
        return f"cannot read the override {error.override!r}{hint}"
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark) is not None:
        return f"{mark.name}, line {mark.line + 1}: {error.problem}"
    if match := re.match("Ambiguous value for argument '(.*)'", str(error)):
        return f"{match[1]}: several values are a sweep and need -m{_suggest_quotes(match[1])}"
    cause = _find_omegaconf_error(error)
    if cause is None:
        return _format_unknown_override(error) or _format_other_error(error)
    prefix = _format_origin(error)
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        return prefix + _format_unknown_key(cause.full_key or _extract_quoted(str(error)), cause.object_type)
    if isinstance(cause, MissingMandatoryValue):
        return f"{prefix}{cause.full_key}: a value is missing"
    return prefix + _format_wrong_value(cause)


def _suggest_quotes(override: str) -> str:
    """Return a hint on how to quote the value of an override for Hydra and the shell, or an empty text."""
    key, _, value = override.partition("=")
    quoted = _quote_mapping(value) if value[:1] == "{" and value[-1:] == "}" else _quote_values(value)
    if quoted is None or not key:
        return ""
    try:
        OverridesParser.create().parse_override(f"{key}={quoted}")
    except HydraException:
        return ""
    return f"; put quotes around a text with such characters: '{key}={quoted}'"


def _quote_values(value: str) -> str | None:
    """Return an override's value with quotes around its items, or None if quotes would not make it valid."""
    is_list = value.startswith("[") and value.endswith("]")
    texts = [text.strip() for text in value[1:-1].split(",")] if is_list else [value]
    if not all(texts) or (value[:1] == "[" and not is_list) or re.search(r"[\"'\\{}\0-\x1f\x7f]|^~", value):
        return None
    quoted = ",".join(f'"{text}"' for text in texts)
    return f"[{quoted}]" if is_list else quoted


def _quote_mapping(value: str) -> str | None:
    """Return an override's mapping with quotes around texts such as file names, or None if it contains lists."""
    entries = [entry.partition(":") for entry in re.split(r",(?=[^,:{}\[\]]+:)", value[1:-1])]
    has_lists = any(text.strip().startswith("[") for _, _, text in entries)
    if has_lists or not all(name.strip() and text.strip() for name, _, text in entries) or re.search(".'|.{", value):
        return None
    quoted = [f'{name.strip()}: "{text.strip().strip(chr(34))}"' for name, _, text in entries]
    return f"{{{', '.join(quoted)}}}"


def _format_grammar_error(error: OverrideParseException) -> str:
    """Format a syntax error in an override as one line, without the name of Hydra's exception."""
    if (error.override or "").partition("=")[2].startswith("~"):
        return ": ~ is not expanded here; write $HOME"
    if (line := _get_first_line(error)).startswith("LexerNoViableAltException"):
        return ": it has unmatched quotes, or characters that need quotes"
    return f": {line}"


def _format_missing_config(error: MissingConfigException, folders: Sequence[Path]) -> str:
    missing = error.missing_cfg_file or ""
    if error.options is None and "/" not in missing:
        names = list_configs(folders)
        return f"unknown configuration {missing!r}{nearest(missing, names)}; known: {', '.join(names)}"
    group, _, option = missing.rpartition("/")
    files = {path.stem for folder in folders for path in (folder / group).glob("*.yaml")}
    schemas = {"schema", *list_group_schemas().get(group, ())} - files  # what files extend, without values of their own
    names = sorted({*(error.options or ()), *(["paper"] if group == "preset" else [])} - schemas)
    return f"{group}={option}: unknown option{nearest(option, names)}; known: {', '.join(names)}"


def _format_unknown_override(error: Exception) -> str | None:
    """Format Hydra's error for an override of an unknown key or group, or return None for other errors."""
    match = re.search(r"Could not (override|append|delete)[^']*'([^']+)'", str(error))
    if match is None:
        return None
    if match[1] == "append" and match[2] in list_keys():
        return f"{match[2]}: this key already exists; remove the +"
    return _format_unknown_key(match[2])


def _format_unknown_key(key: str, schema: Any = None) -> str:
    """Format the error message for an override of a key that the chosen configuration lacks.

    The line states if another data set or model family has the key.

    Args:
        key: Dotted key.
        schema: Dataclass that lacks the key. If it is None (unknown), the keys of all data sets and model families are
            searched.
    """
    keys = sorted(set(list_keys()))
    parent, _, leaf = key.rpartition(".")
    siblings = [name for name in keys if name.rpartition(".")[0] == parent]
    if fields := get_field_specs(schema):
        siblings = sorted(f"{parent}.{name}" if parent else name for name in fields)
    if key in keys:
        return f"{key}: this {parent or 'configuration'} has no such key; other options of the group have it"
    leaves = [name for name in keys if name.rpartition(".")[2] == leaf]
    matches = get_close_matches(key, siblings, 2, 0.75) or leaves[:2] or get_close_matches(key, keys, 1)
    hint = f" (did you mean {' or '.join(map(repr, matches))}?)" if matches else ""
    if parent == "hydra.launcher":
        return f"{key}: the selected launcher has no such key; select another one, e.g. hydra/launcher=joblib"
    if not siblings:
        return f"{key}: unknown key{hint}"
    allowed = ", ".join(name.rpartition(".")[2] for name in siblings)
    return f"{key}: unknown key{hint}; known{f' in {parent}' if parent else ''}: {allowed}"


def _format_wrong_value(error: OmegaConfBaseException) -> str:
    message = format_value(_get_first_line(error.msg or str(error)))
    message = message[:1].lower() + message[1:]
    choice = re.fullmatch(r"invalid value '(.*)', expected one of \[(.*)\]", message)
    hint = nearest(choice[1], choice[2].split(", ")) if choice else ""
    return f"{error.full_key}: {message}{hint}" if error.full_key else message


def _format_other_error(error: Exception) -> str:
    """Format any other configuration error as its first line, after the key of the setting if known."""
    line, key = format_value(_get_first_line(error)), re.search(r"full_key: (\S+)", str(error))
    return f"{key[1]}: {line}" if key else line


def _find_omegaconf_error(error: BaseException | None) -> OmegaConfBaseException | None:
    """Return OmegaConf's error among an error and its causes, or None."""
    while error is not None:
        if isinstance(error, OmegaConfBaseException):
            return error
        error = error.__cause__ or error.__context__
    return None


def _shorten_line(line: str) -> str:
    """Cut the middle out of a very long error message, such as one that lists thousands of values."""
    return line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE // 2]} ... {line[-_MAX_LINE // 4 :]}"


def _format_origin(error: Exception) -> str:
    """Format where a wrong setting comes from: a YAML file, an override, or an empty text if unknown."""
    if match := re.match(r"In '([^']+)'", str(error)):
        return f"in {match[1]}.yaml: "
    match = re.match(r"Error merging override ([^=]+)=", str(error))
    cause = _find_omegaconf_error(error)
    return f"{match[1]}: " if match and cause is not None and not cause.full_key else ""


def _extract_quoted(text: str) -> str:
    match = re.search(r"'([^']+)'", text)
    return match[1] if match else text


def _get_first_line(error: Any) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
