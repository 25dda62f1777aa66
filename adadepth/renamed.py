"""Support for the former names of packages.

Former names can still be imported in version 0.1, with a warning. The release after it removes them.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

RENAMED = {
    "adadepth.families": "adadepth.models",
    "adadepth.measure": "adadepth.metrics",
    "adadepth.settings": "adadepth.config",
    "adadepth.system": "adadepth.runtime",
}


def find_new_name(name: str) -> str | None:
    """Return the current name of a module from its former name, or None if the name is not a former one."""
    for old, new in RENAMED.items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return None


class _RenamedLoader(Loader):
    """Loader that registers the renamed module itself under its former name."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, so that the import system creates a placeholder module."""

    def exec_module(self, module: ModuleType) -> None:
        """Replace the placeholder with the renamed module, so that both names give the same classes."""
        new = find_new_name(module.__name__)
        assert new is not None
        sys.modules[module.__name__] = import_module(new)


class RenamedFinder(MetaPathFinder):
    """Import finder that resolves the former names of modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the import specification of a renamed module, and warn with its new path."""
        new = find_new_name(fullname)
        if new is None:
            return None
        warnings.warn(f"{fullname} is now {new}; the next release removes the old name", FutureWarning, stacklevel=2)
        return ModuleSpec(fullname, _RenamedLoader(), is_package=True)
