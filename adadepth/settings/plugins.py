"""What installed packages add to adadepth: a descriptor each, which an entry point of a group names.

Groups are `adadepth.families`, `adadepth.datasets`, `adadepth.modes`, `adadepth.sweepers`, `adadepth.halting_rules`,
`adadepth.exit_rules`, `adadepth.loggers` and `adadepth.names`. A YAML only ever names what a package offers; it never
names code. The folders of `contrib` join by entry points of this package, and a folder that has been deleted offers
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from adadepth.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parents[1]


def installed(
    group: str, noun: str, taken: Collection[str], problem_with: Callable[[Any, str], str | None]
) -> dict[str, Any]:
    """What the entry points of a group name, by their names, in alphabetical order.

    Args:
        group: Of entry points.
        noun: What they offer, for messages.
        taken: Names of what is known already.
        problem_with: From a descriptor and its name to what is wrong with it, or to None.

    Raises:
        ConfigError: If a descriptor cannot be imported or is wrong, or its name is taken; names the package.
    """
    found: dict[str, Any] = {}
    for entry in _entries(group):
        found[entry.name] = _descriptor(entry, noun, {*taken, *found}, problem_with)
    return found


def installed_names(group: str) -> list[str]:
    """Return the names of a group in alphabetical order; nothing is imported."""
    return [entry.name for entry in _entries(group)]


def installed_places(group: str) -> dict[str, str]:
    """Return the `"module:name"` of every entry point of a group by its name; nothing is imported."""
    return {entry.name: entry.value for entry in _entries(group)}


def load(place: str) -> Any:
    """Import what `"module:name"` says; errors of the import are raised as they are."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _entries(group: str) -> list[EntryPoint]:
    """Return the entry points of a group by name, without those of folders that are deleted from this package."""
    return sorted(filter(_is_there, entry_points(group=group)), key=lambda entry: entry.name)


def _is_there(entry: EntryPoint) -> bool:
    package, *parts = entry.module.split(".")
    place = _PACKAGE.joinpath(*parts)
    return package != _PACKAGE.name or place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def _descriptor(
    entry: EntryPoint, noun: str, taken: Collection[str], problem_with: Callable[[Any, str], str | None]
) -> Any:
    """The descriptor that another package offers, checked as far as that costs nothing."""
    package = entry.dist.name if entry.dist is not None else entry.module
    about = f"{noun} {entry.name!r} of the package {package} ({entry.value})"
    if entry.name in taken:
        raise ConfigError(f"{about}: there is a {noun} of that name already; uninstall one of them")
    try:
        descriptor = entry.load()
    except (Exception, SystemExit) as error:
        reason = next(iter(str(error).splitlines()), "")
        raise ConfigError(f"{about}: cannot be imported ({type(error).__name__}: {reason})") from error
    if problem := problem_with(descriptor, entry.name):
        raise ConfigError(f"{about}: {problem}")
    return descriptor
