"""Choice of the network port of the web demo."""

from __future__ import annotations

import socket

from adadepth.errors import ConfigError


def find_free_port(host: str, port: int) -> int:
    """Return the requested network port if it is free, or any free port for 0.

    Raises:
        ConfigError: If the port is taken, or the address does not belong to this machine.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    except UnicodeError as error:
        raise ConfigError(f"serve.host={host}: unknown host name") from error
    except OSError as error:
        key = f"serve.host={host}" if isinstance(error, socket.gaierror) else f"serve.host={host} serve.port={port}"
        raise ConfigError(f"{key}: cannot be opened ({error.strerror}); serve.port=0 uses any free port") from error
