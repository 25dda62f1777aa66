"""Settings of `mode=serve`, the web demo."""

from __future__ import annotations

import re
from dataclasses import dataclass

from adadepth.config import ExperimentConfig
from adadepth.config.declaration import Allowed, between, setting
from adadepth.config.modes import get_mode_settings


def _is_host(value: str) -> bool:
    """Return whether a text is a valid host name or address."""
    try:
        return bool(value.encode("idna")) and not set(value) & set(" /\\@?#[]")
    except UnicodeError:
        return False


_HOST = Allowed(_is_host, "a name or an address of this machine, such as localhost or 127.0.0.1")


HOST_NAMES = Allowed(
    lambda names: all(re.fullmatch(r"[\w.-]+", name) for name in names), "a list of names without scheme and port"
)


@dataclass
class ServeConfig:
    """Settings of `mode=serve`: address, port and host names of the web demo."""

    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0: accessible from other machines", _HOST)
    port: int = setting(7860, "port to listen on; 0: any free port", between(0, 65535))
    names: list[str] = setting([], "additional host names of the page, such as the name of a proxy", HOST_NAMES)


def get_serve_settings(config: ExperimentConfig) -> ServeConfig:
    """Return the settings of `mode=serve` from the configuration of an experiment."""
    settings: ServeConfig = get_mode_settings(config, "serve")
    return settings
