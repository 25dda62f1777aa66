"""One line for each way a composition can fail, with what is allowed and the nearest match.

The hints are worked out after Hydra has failed, from what its exceptions carry: a check beforehand would refuse keys
of a group that the same command line is about to switch.
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

from adadepth.cli.composition import known_keys
from adadepth.errors import UserError, nearest
from adadepth.settings.declaration import declared, shown

_LONGEST_LINE = 2000  # a line that lists all configurations has half of that


def explain(error: Exception, folders: Callable[[], Sequence[Path]]) -> str:
    """Say in one line (a collected error: one line each) what a person gave wrongly.

    `folders` are those of YAML files, asked for only where names are listed: a broken package has none to tell.
    """
    if isinstance(error, UserError):
        return "\n".join(map(_of_some_length, str(error).splitlines()))
    if isinstance(error, MissingConfigException):
        return _missing_config(error, folders())
    if isinstance(error, OverrideParseException):
        return f"cannot read the override {error.override!r}{_quoting(error.override or '') or _grammars(error)}"
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark) is not None:
        return f"{mark.name}, line {mark.line + 1}: {error.problem}"
    if match := re.match("Ambiguous value for argument '(.*)'", str(error)):
        return f"{match[1]}: several values are a sweep and need -m{_quoting(match[1])}"
    cause = _omegaconf_cause(error)
    if cause is None:
        return _unknown_override(error) or _with_key(error)
    place = _place(error)
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        return place + _unknown_key(cause.full_key or _quoted(str(error)), cause.object_type)
    if isinstance(cause, MissingMandatoryValue):
        return f"{place}{cause.full_key}: a value is missing"
    return place + _wrong_value(cause)


def _quoting(override: str) -> str:
    """How to write an override whose value needs quotes of Hydra's own, within those of the shell; or nothing."""
    key, _, value = override.partition("=")
    if value.startswith("{") and value.endswith("}"):
        return _quoting_of_mapping(key, value)
    is_list = value.startswith("[") and value.endswith("]")
    texts = [text.strip() for text in value[1:-1].split(",")] if is_list else [value]
    if not key or not all(texts) or (value[:1] == "[" and not is_list) or re.search(r"[\"'\\{}\0-\x1f\x7f]|^~", value):
        return ""  # no quotes would help
    quoted = ",".join(f'"{text}"' for text in texts)
    written = f"{key}=[{quoted}]" if is_list else f"{key}={quoted}"
    try:
        OverridesParser.create().parse_override(written)
    except HydraException:
        return ""
    return f"; a text with such marks has quotes around it: '{written}'"


def _quoting_of_mapping(key: str, value: str) -> str:
    """How to write a mapping whose values need quotes, such as names of files with brackets; or nothing."""
    entries = [entry.partition(":") for entry in re.split(r",(?=[^,:{}\[\]]+:)", value[1:-1])]
    has_lists = any(text.strip().startswith("[") for _, _, text in entries)
    if has_lists or not all(name.strip() and text.strip() for name, _, text in entries) or re.search(".'|.{", value):
        return ""
    quoted = [f'{name.strip()}: "{text.strip().strip(chr(34))}"' for name, _, text in entries]
    written = f"{key}={{{', '.join(quoted)}}}"
    try:
        OverridesParser.create().parse_override(written)
    except HydraException:
        return ""
    return f"; a text with such marks has quotes around it: '{written}'"


def _grammars(error: OverrideParseException) -> str:
    """What the grammar of overrides says is wrong, without the name of its exception."""
    if (error.override or "").partition("=")[2].startswith("~"):
        return ": ~ is the home of nobody here; write it out, as $HOME"
    if (line := _first_line(error)).startswith("LexerNoViableAltException"):
        return ": it has quotes without an end or characters that only quoted texts may have"
    return f": {line}"


def known_configs(folders: Sequence[Path]) -> list[str]:
    """Return the names ``--config-name`` takes: of the YAML files in these folders."""
    return sorted({path.stem for folder in folders for path in folder.glob("*.yaml")})


def published_configs(folders: Sequence[Path]) -> list[str]:
    """Return the configurations that ``preset=paper`` turns into a published run: each has a file of its name."""
    return sorted({path.stem for folder in folders for path in folder.glob("preset/paper/*.yaml")})


def _missing_config(error: MissingConfigException, folders: Sequence[Path]) -> str:
    missing = error.missing_cfg_file or ""
    if error.options is None and "/" not in missing:
        names = known_configs(folders)
        return f"unknown configuration {missing!r}{nearest(missing, names)}; known: {', '.join(names)}"
    group, _, option = missing.rpartition("/")
    names = sorted({*(error.options or ()), *(["paper"] if group == "preset" else [])} - {"schema"})
    return f"{group}={option}: unknown option{nearest(option, names)}; known: {', '.join(names)}"


def _unknown_override(error: Exception) -> str | None:
    """Hydra's own complaint about a key that is neither in the configuration nor a group."""
    match = re.search(r"Could not (override|append|delete)[^']*'([^']+)'", str(error))
    if match is None:
        return None
    if match[1] == "append" and match[2] in known_keys():
        return f"{match[2]}: there is such a key already; leave out the +"
    return _unknown_key(match[2])


def _unknown_key(key: str, schema: Any = None) -> str:
    """Say that a key is not in this configuration; it may well be one of another data set or family.

    `schema` is the dataclass without it, where that is known: of one data set or family, and not of all.
    """
    keys = sorted(set(known_keys()))
    parent, _, leaf = key.rpartition(".")
    siblings = [name for name in keys if name.rpartition(".")[0] == parent]
    if own := declared(schema):
        siblings = sorted(f"{parent}.{name}" if parent else name for name in own)
    if key in keys:
        return f"{key}: this {parent or 'configuration'} has no such key; others have"
    leaves = [name for name in keys if name.rpartition(".")[2] == leaf]
    matches = get_close_matches(key, siblings, 2, 0.75) or leaves[:2] or get_close_matches(key, keys, 1)
    hint = f" (did you mean {' or '.join(map(repr, matches))}?)" if matches else ""
    if not siblings:
        return f"{key}: unknown key{hint}"
    allowed = ", ".join(name.rpartition(".")[2] for name in siblings)
    return f"{key}: unknown key{hint}; known{f' in {parent}' if parent else ''}: {allowed}"


def _wrong_value(error: OmegaConfBaseException) -> str:
    message = shown(_first_line(error.msg or str(error)))
    message = message[:1].lower() + message[1:]
    choice = re.fullmatch(r"invalid value '(.*)', expected one of \[(.*)\]", message)
    hint = nearest(choice[1], choice[2].split(", ")) if choice else ""
    return f"{error.full_key}: {message}{hint}" if error.full_key else message


def _with_key(error: Exception) -> str:
    """The first line of any other error, after the setting that it is about where OmegaConf added that."""
    line, key = shown(_first_line(error)), re.search(r"full_key: (\S+)", str(error))
    return f"{key[1]}: {line}" if key else line


def _omegaconf_cause(error: BaseException | None) -> OmegaConfBaseException | None:
    while error is not None:
        if isinstance(error, OmegaConfBaseException):
            return error
        error = error.__cause__ or error.__context__
    return None


def _of_some_length(line: str) -> str:
    """A line without its middle, if a list of thousands is in it."""
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE // 2]} ... {line[-_LONGEST_LINE // 4 :]}"


def _place(error: Exception) -> str:
    """The YAML file a composition failed in, where Hydra names one; or the override, where the error names no key."""
    if match := re.match(r"In '([^']+)'", str(error)):
        return f"in {match[1]}.yaml: "
    match = re.match(r"Error merging override ([^=]+)=", str(error))
    cause = _omegaconf_cause(error)
    return f"{match[1]}: " if match and cause is not None and not cause.full_key else ""


def _quoted(text: str) -> str:
    match = re.search(r"'([^']+)'", text)
    return match[1] if match else text


def _first_line(error: Any) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
