"""Sweepers that installed packages add, each known to Hydra as `hydra/sweeper=NAME`.

Hydra instantiates only sweepers of the namespace `hydra_plugins`, so each gets a subclass in this module.
"""

from __future__ import annotations

from dataclasses import field, is_dataclass, make_dataclass

from hydra.core.config_store import ConfigStore
from hydra.plugins.sweeper import Sweeper

from adadepth.settings.plugins import load_plugins

GROUP = "adadepth.sweepers"
_OWN = ("basic", "choice", "grid", "optuna")


def _find_problem(descriptor: object, name: str) -> str | None:
    """Say what keeps an object from being a sweeper."""
    if not isinstance(descriptor, type) or not issubclass(descriptor, Sweeper):
        return f"must be a subclass of hydra.plugins.sweeper.Sweeper, not {descriptor!r}"
    if not is_dataclass(getattr(descriptor, "settings", None)):
        return "its attribute `settings` must be a dataclass of its arguments"
    return None


def _add(name: str, sweeper: type[Sweeper]) -> None:
    """Make a sweeper known to Hydra, with the settings that a YAML file and the command line can give it."""
    known = type(sweeper.__name__, (sweeper,), {"__doc__": sweeper.__doc__})
    target = ("_target_", str, field(default=f"{__name__}.{known.__name__}"))
    node = make_dataclass(f"{known.__name__}Settings", [target], bases=(sweeper.settings,))  # type: ignore[attr-defined]
    for made in (known, node):  # Hydra looks for classes, and pickles of configurations for settings, by their module
        made.__module__, globals()[made.__name__] = __name__, made
    ConfigStore.instance().store(group="hydra/sweeper", name=name, node=node, provider="adadepth")


for _name, _sweeper in load_plugins(GROUP, "sweeper", _OWN, _find_problem).items():
    _add(_name, _sweeper)
