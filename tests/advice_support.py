"""Advice in messages: the overrides and commands that a message suggests, parsed from its text.

A message is `key=value: the fault; the advice`. The advice is an override as one types it, `key=value` (in quotes of
the shell where it needs them), several joined by a space or by "and", alternatives by "or"; `set it to VALUE` and
`leave it out` are about the key that the message begins with.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from adadepth.cli.keys import list_keys
from tests.configs.support import GROUPS, compose_config
from tests.sources_support import PLUGINS, ROOT, SOURCES, list_nodes

KEYS = frozenset(list_keys()) | GROUPS

_ADVICE = re.compile(
    r"'(?P<quoted>[a-z_][\w./]*=[^']*)'"
    r"|(?<![\w.'\"/{(`+~])(?P<plain>[a-z_][\w.]*=(?:\[[^]]*\]|[^\s,;:)`]+(?:[:.,][^\s,;:)`]+)*))"
    r"|(?:set|leave) it (?:to|at) (?P<it>[^\s,;]+)"
    r"|leave it (?P<out>out)"
    r"|--config-name (?P<root>\w+)"
)


def parse_advice(line: str, config: DictConfig | None = None) -> list[str]:
    """Return the advice of a line of a message: one string per alternative, as a command line has it.

    Args:
        line: Line of a message.
        config: Composed configuration of the command; what it already sets is a fact, and no advice.
    """
    head, _, tail = line.partition(": ")
    own_key = re.split(r"[=:]", head)[0]
    alternatives: list[list[str]] = []
    end = -1
    for match in _ADVICE.finditer(tail):
        word = _format_override(match, own_key)
        if word is None or (config is not None and _holds(config, word)):
            continue
        if alternatives and tail[end : match.start()] in (" ", " and "):
            alternatives[-1].append(word)
        else:
            alternatives.append([word])
        end = match.end()
    return list(dict.fromkeys(shlex.join(words) for words in alternatives))


def _format_override(match: re.Match[str], own_key: str) -> str | None:
    if match["root"]:
        return f"--config-name={match['root']}"
    if match["out"]:
        return f"~{own_key}"
    word = match["quoted"] or match["plain"] or f"{own_key}={match['it']}"
    return word if word.partition("=")[0] in KEYS else None


def _holds(config: DictConfig, override: str) -> bool:
    """Return whether a configuration has a value, or an option of a group, already."""
    if override.startswith("~"):
        return False
    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException:  # an advice that cannot be typed
        return False
    key, value = parsed.key_or_group, parsed.value()
    if key in GROUPS:
        name = OmegaConf.select(config, f"{key}.name")
        return value in (config.hydra.runtime.choices.get(key), name)
    present = OmegaConf.select(config, key)
    present = OmegaConf.to_container(present) if OmegaConf.is_config(present) else present
    return bool(present == value or str(present) == str(value))


def follow(command: str, advice: str) -> tuple[str, list[str]]:
    """Return the root and overrides of a command after the overrides of an advice."""
    root, *overrides = shlex.split(command)
    for word in shlex.split(advice):
        key = word.partition("=")[0]
        if key == "--config-name":
            root = word.partition("=")[2]
            continue
        overrides = [
            override for override in overrides if not f"{override.partition('=')[0]}.".startswith(f"{key.lstrip('~')}.")
        ]
        overrides += [] if key.startswith("~") else [word]
    return root, overrides


def compose_command(command: str) -> DictConfig:
    root, *overrides = shlex.split(command)
    return compose_config(root, *overrides)


def read_next_commands(out: str) -> list[list[str]]:
    """Return the commands that a run prints at its end, as words: a shell joins lines that end with a backslash."""
    tail = out.rpartition("\nnext:\n")[2]
    return [shlex.split(line) for line in tail.replace("\\\n", "").splitlines()]


# ---- what messages of the package could advise


@cache
def list_templates() -> tuple[tuple[str, str], ...]:
    """Return every advising text of the package: its place, and the text with `{}` for values."""
    return tuple((path, text) for path, text, echo in list_texts() if _advises(echo))


@cache
def list_texts() -> tuple[tuple[str, str, str], ...]:
    """Return every text of the package: its place, itself, and itself without echoed settings."""
    return tuple(_iterate_package_texts())


def _iterate_package_texts() -> Iterator[tuple[str, str, str]]:
    for path in [*SOURCES, *PLUGINS]:
        for text, echo in _iterate_texts(list_nodes(path)):
            yield str(path.relative_to(ROOT)), text, echo


def _iterate_texts(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield every text but docstrings, with `{}` for values; then the same text without echoed settings."""
    inner: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            inner.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            inner.update(id(part) for part in ast.walk(node) if part is not node)
    for node in nodes:
        if id(node) in inner:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node.value
        elif isinstance(node, ast.JoinedStr):
            yield _join_parts(node, echoes=True), _join_parts(node, echoes=False)


def _join_parts(text: ast.JoinedStr, *, echoes: bool) -> str:
    written = ""
    for part in text.values:
        if isinstance(part, ast.Constant):
            written += str(part.value)
            continue
        assert isinstance(part, ast.FormattedValue)
        key = re.search(r"([\w.]+)=$", written)
        if not echoes and key and ast.unparse(part.value).split(".")[-1] in (key[1].split(".")[-1], "name"):
            written = written[: key.start()]  # `dataset.size={dataset.size}` says what is, not what to do
        written += "{}"
    return written


# Words before a setting that a message only states.
_FACT = r"(?:but|because|not|not with|than|divide|without|has only|of|on|is|in) $"


def _advises(text: str) -> bool:
    head, colon, tail = text.partition(": ")
    advice = tail if colon else head
    if re.search(r"(?:set|leave) it (?:to|at|out)\b", advice):
        return True
    if re.search(r"\b(?:pip install|hf (?:upload|auth)|wandb login|torchrun|--config-name) ", advice):
        return True
    for match in re.finditer(
        r"(?<![\w.{+~])(?P<key>[a-z_][\w.]*)=\S+(?P<needs> needs (?:it|the|a|\{)| leaves)?", advice
    ):
        is_fact = match["needs"] or re.search(_FACT, advice[: match.start()])
        if match["key"] in KEYS and not is_fact:
            return True
    return False


def compile_pattern(template: str) -> re.Pattern[str]:
    """Return a pattern of the messages that a template makes."""
    return re.compile(".*?".join(map(re.escape, template.replace("%s", "{}").split("{}"))))
