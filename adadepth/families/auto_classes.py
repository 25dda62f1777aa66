"""`import adadepth` is enough for the Auto classes of transformers to know the families, and costs nothing.

Registering the families means importing them, and torch. So it waits for the first question after a configuration or a
tokenizer, with which every `from_pretrained` of an Auto class and every pipeline begins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

# Module of transformers -> its class, and the methods that ask.
_ASKED = {
    "transformers.models.auto.configuration_auto": ("AutoConfig", ("from_pretrained", "for_model")),
    "transformers.models.auto.tokenization_auto": ("AutoTokenizer", ("from_pretrained",)),
}


def register_when_asked() -> None:
    """Register the families when an Auto class is asked for a model, whichever of the packages is imported first."""
    for name in _ASKED:
        if name in sys.modules:
            _prepare(sys.modules[name])
    if missing := {name for name in _ASKED if name not in sys.modules}:
        sys.meta_path.insert(0, _WhenImported(missing))


class _WhenImported(MetaPathFinder):
    """Prepares modules when they are imported; finding them it leaves to the others."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self._names:
            return None
        self._names.remove(name)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_prepare(module: ModuleType) -> None:
                execute(module)
                _prepare(module)

            spec.loader.exec_module = execute_and_prepare  # type: ignore[method-assign]
        return spec


def _prepare(module: ModuleType) -> None:
    name, methods = _ASKED[module.__name__]
    asked = getattr(module, name)
    for method in methods:
        setattr(asked, method, staticmethod(_registering(getattr(asked, method))))


def _registering(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same method, before which the families are registered."""

    @wraps(method)
    def registering(*args: Any, **options: Any) -> Any:
        from adadepth.families.auto import register_auto_classes

        register_auto_classes()
        return method(*args, **options)

    return registering
