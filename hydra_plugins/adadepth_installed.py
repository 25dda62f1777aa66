"""Sweepers of installed packages, registered with Hydra as `hydra/sweeper=NAME`.

Hydra instantiates only sweepers of the namespace `hydra_plugins`, so every installed sweeper gets a subclass here.
"""

from __future__ import annotations

from dataclasses import field, is_dataclass, make_dataclass

from hydra.core.config_store import ConfigStore
from hydra.plugins.sweeper import Sweeper

from adadepth.config.plugins import load_plugins

GROUP = "adadepth.sweepers"
_RESERVED_NAMES = ("basic", "choice", "grid", "optuna")


def _find_problem(descriptor: object, name: str) -> str | None:
    """Return why an object is not a valid sweeper, or None if it is valid."""
    if not isinstance(descriptor, type) or not issubclass(descriptor, Sweeper):
        return f"must be a subclass of hydra.plugins.sweeper.Sweeper, not {descriptor!r}"
    if not is_dataclass(getattr(descriptor, "settings", None)):
        return "its attribute `settings` must be a dataclass of its arguments"
    return None


def _register(name: str, sweeper: type[Sweeper]) -> None:
    """Register a sweeper and its settings with Hydra."""
    subclass = type(sweeper.__name__, (sweeper,), {"__doc__": sweeper.__doc__})
    target = ("_target_", str, field(default=f"{__name__}.{subclass.__name__}"))
    node = make_dataclass(f"{subclass.__name__}Settings", [target], bases=(sweeper.settings,))  # type: ignore[attr-defined]
    for cls in (subclass, node):  # Hydra looks for classes, and pickles of configurations for settings, by their module
        cls.__module__, globals()[cls.__name__] = __name__, cls
    ConfigStore.instance().store(group="hydra/sweeper", name=name, node=node, provider="adadepth")


for _name, _sweeper in load_plugins(GROUP, "sweeper", _RESERVED_NAMES, _find_problem).items():
    _register(_name, _sweeper)
