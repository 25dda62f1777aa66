"""Loading of plug-ins, which are objects that installed packages register as entry points.

Groups are `adadepth.families`, `adadepth.datasets`, `adadepth.modes`, `adadepth.sweepers`, `adadepth.halting_rules`,
`adadepth.halting_units`, `adadepth.step_losses`, `adadepth.exit_rules`, `adadepth.export_formats`, `adadepth.loggers`
and `adadepth.names`. A YAML file refers to a plug-in by its name, never to code. The folders of `contrib` are
registered by entry points of this package; entry points of a deleted folder are ignored.

A descriptor must not import torch. It refers to code that does by an importer: a function whose first line is a local
import, and which returns the imported object. Plug-ins may write `"module:name"` instead, which `replace_paths` turns
into an importer.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from adadepth.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parents[1]
_GROUPS = "adadepth."  # start of the names of all groups

_Imported = TypeVar("_Imported")
_Descriptor = TypeVar("_Descriptor")
Importer = Callable[[], _Imported]


def load_plugins(
    group: str, noun: str, taken: Collection[str], problem_with: Callable[[Any, str], str | None]
) -> dict[str, Any]:
    """Import the objects that plug-ins register in an entry-point group, by name in alphabetical order.

    Args:
        group: Group of entry points.
        noun: Word for such a descriptor in messages.
        taken: Names that are already in use.
        problem_with: Function that checks a descriptor and its name, and returns an error text or None.

    Raises:
        ConfigError: If a descriptor cannot be imported or is wrong, or its name is taken; the message names the
            package.
    """
    descriptors: dict[str, Any] = {}
    for entry in _list_entry_points(group):
        descriptors[entry.name] = _load_descriptor(entry, noun, {*taken, *descriptors}, problem_with)
    return descriptors


def register_class(
    registered: dict[str, Any],
    component: Any,
    noun: str,
    taken: Collection[str],
    problem_with: Callable[[Any, str], str | None],
) -> None:
    """Register a class of the running program under its name, in place of an earlier one that it registered.

    Args:
        registered: Registered classes by name, which gets the class.
        component: The class.
        noun: Word for such a class in messages.
        taken: Names of classes that the program did not register.
        problem_with: Function that checks a class and its name, and returns an error text or None.

    Raises:
        ConfigError: If the class is broken, or its name is taken.
    """
    name = getattr(component, "name", "")
    problem = problem_with(component, name)
    if name in taken:
        problem = f"{'an' if noun[0] in 'aeiou' else 'a'} {noun} of that name already exists"
    if problem is not None:
        raise ConfigError(f"{noun} {name!r}: {problem}")
    registered[name] = component


def list_plugin_names(group: str) -> list[str]:
    """Return the names of the plug-ins of an entry-point group in alphabetical order, without importing them."""
    return [entry.name for entry in _list_entry_points(group)]


def list_installed_plugins() -> dict[str, list[str]]:
    """Return the plug-ins of other packages as `group NAME`, by package, without importing them."""
    plugins: dict[str, list[str]] = {}
    for group in sorted(group for group in _read_entry_points(tuple(sys.path)).groups if group.startswith(_GROUPS)):
        for entry in _list_entry_points(group):
            if entry.module.partition(".")[0] != _PACKAGE.name:
                package = entry.dist.name if entry.dist is not None else entry.module
                plugins.setdefault(package, []).append(f"{group.removeprefix(_GROUPS).replace('_', ' ')} {entry.name}")
    return plugins


def list_plugin_importers(group: str) -> dict[str, Importer[Any]]:
    """Return a function that imports it for every plug-in of an entry-point group, by name."""
    return {entry.name: entry.load for entry in _list_entry_points(group)}


def list_plugin_files(group: str) -> list[Path]:
    """Return the source files of an entry-point group's plug-ins, where they have one.

    The packages of the modules are imported, the modules are not.
    """
    files = (_find_file(entry.module) for entry in _list_entry_points(group))
    return [file for file in files if file is not None]


def _find_file(module: str) -> Path | None:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # `load_plugins` reports it
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin)


def call_accepting(function: Callable[..., Any], /, *values: Any, **options: Any) -> Any:
    """Call a function with the values and those of the options that it accepts."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return function(*values, **options)
    return function(*values, **{name: value for name, value in options.items() if name in parameters})


def replace_paths(descriptor: _Descriptor, imported: Sequence[str], called: Sequence[str] = ()) -> _Descriptor:
    """Return a plug-in's descriptor with functions in place of the strings `"module:name"`.

    A field may hold one string, or a tuple or mapping of them. Other values stay.

    Args:
        descriptor: Dataclass.
        imported: Fields whose strings become importers.
        called: Fields whose strings become functions that import and call the object.
    """
    changes = {name: _replace_path(_load, getattr(descriptor, name)) for name in imported}
    changes |= {name: _replace_path(_load_and_call, getattr(descriptor, name)) for name in called}
    replaced: _Descriptor = dataclasses.replace(descriptor, **changes)  # type: ignore[type-var]
    return replaced


def find_wrong_path(values: Any) -> str | None:
    """Return the first string in nested tuples and mappings that is not `"module:name"`, or None."""
    return next((path for path in _list_paths(values) if path.count(":") != 1), None)


def _replace_path(function: Callable[..., Any], value: Any) -> Any:
    if isinstance(value, str):
        return partial(function, value)
    if isinstance(value, Mapping):
        return {name: _replace_path(function, member) for name, member in value.items()}
    return tuple(_replace_path(function, member) for member in value) if isinstance(value, tuple) else value


def _list_paths(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | Mapping):
        for member in value.values() if isinstance(value, Mapping) else value:
            yield from _list_paths(member)


def get_import_path(importer: Importer[Any]) -> tuple[str, str]:
    """Return the module and the name of the object that an importer imports, without importing it.

    The code of an importer names both: its body is `from MODULE import NAME` and `return NAME`.
    """
    if isinstance(importer, partial):
        module, _, name = importer.args[0].partition(":")
        return module, name
    function: Any = importer
    module, name = function.__code__.co_names
    return module, name


def _load(path: str) -> Any:
    """Import the object at the path `"module:name"`."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def _load_and_call(path: str, /, *values: Any, **options: Any) -> Any:
    return call_accepting(_load(path), *values, **options)


def _list_entry_points(group: str) -> list[EntryPoint]:
    """Return the entry points of a group, sorted by name.

    Entry points of folders that were deleted from this package are skipped.

    Raises:
        ConfigError: If an installed package names no object; the message names the package.
    """
    entries = _read_entry_points(tuple(sys.path)).select(group=group)
    for entry in entries:
        if EntryPoint.pattern.match(entry.value) is None:
            package = entry.dist.name if entry.dist is not None else "unknown"
            raise ConfigError(
                f"entry point {entry.name!r} of package {package} ({entry.value}): must be MODULE:NAME; mend or "
                "uninstall the package"
            )
    return sorted(filter(_has_module, entries), key=lambda entry: entry.name)


@lru_cache(maxsize=1)
def _read_entry_points(path: tuple[str, ...]) -> Any:  # of a class that differs between Python 3.11 and 3.12
    """Return the entry points of all packages in the folders of `sys.path`, which takes some 30 ms."""
    return entry_points()


def _has_module(entry: EntryPoint) -> bool:
    package, *parts = entry.module.split(".")
    path = _PACKAGE.joinpath(*parts)
    return package != _PACKAGE.name or path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def _load_descriptor(
    entry: EntryPoint, noun: str, taken: Collection[str], problem_with: Callable[[Any, str], str | None]
) -> Any:
    package = entry.dist.name if entry.dist is not None else entry.module
    prefix = f"{noun} {entry.name!r} of package {package} ({entry.value})"
    if entry.name in taken:
        raise ConfigError(f"{prefix}: a {noun} of that name already exists; uninstall one of them")
    try:
        descriptor = entry.load()
    except (Exception, SystemExit) as error:
        reason = next(iter(str(error).splitlines()), "")
        raise ConfigError(f"{prefix}: cannot be imported ({type(error).__name__}: {reason})") from error
    if problem := problem_with(descriptor, entry.name):
        raise ConfigError(f"{prefix}: {problem}")
    return descriptor
