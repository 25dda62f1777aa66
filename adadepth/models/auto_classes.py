"""Lazy registration of model families with transformers' Auto classes, which keeps `import adadepth` fast.

Registration imports the families and torch, so it waits until a configuration or a tokenizer is first requested. Every
`from_pretrained` of an Auto class and every pipeline begins with such a request.
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

# Module of transformers -> its class, and the methods before which the families are registered.
_HOOKED = {
    "transformers.models.auto.configuration_auto": ("AutoConfig", ("from_pretrained", "for_model")),
    "transformers.models.auto.tokenization_auto": ("AutoTokenizer", ("from_pretrained",)),
}


def register_lazily() -> None:
    """Register model families just before an Auto class first loads a model, in either import order of the packages."""
    for name in _HOOKED:
        if name in sys.modules:
            _hook_methods(sys.modules[name])
    if missing := {name for name in _HOOKED if name not in sys.modules}:
        sys.meta_path.insert(0, _ImportHook(missing))


class _ImportHook(MetaPathFinder):
    """Import hook that wraps methods of the given modules as soon as they are imported."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self._names:
            return None
        self._names.remove(name)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_hook(module: ModuleType) -> None:
                execute(module)
                _hook_methods(module)

            spec.loader.exec_module = execute_and_hook  # type: ignore[method-assign]
        return spec


def _hook_methods(module: ModuleType) -> None:
    name, methods = _HOOKED[module.__name__]
    auto_class = getattr(module, name)
    for method in methods:
        setattr(auto_class, method, staticmethod(_register_before(getattr(auto_class, method))))


def _register_before(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method so that it registers all model families before it runs."""

    @wraps(method)
    def register_and_call(*args: Any, **options: Any) -> Any:
        from adadepth.models.auto import register_auto_classes

        register_auto_classes()
        return method(*args, **options)

    return register_and_call
