"""Isolation of the suite: nothing outside this machine can be reached, and caches are scratch directories."""

from __future__ import annotations

import os
import re
import socket
import urllib.request
from pathlib import Path

import pytest

from tests.sources_support import ROOT, get_module_name, list_imports, read_source

TESTS = ROOT / "tests"


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1", "example.org"])
@pytest.mark.parametrize("method", ["connect", "connect_ex"])
def test_outside_addresses_are_refused(address: str, method: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as client, pytest.raises(RuntimeError, match="without a network"):
        getattr(client, method)((address, 80))


def test_a_library_cannot_look_a_name_up() -> None:
    with pytest.raises(RuntimeError, match="without a network"):
        urllib.request.urlopen("http://example.org")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_this_machine_can_be_reached(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection((host, server.getsockname()[1]), timeout=5) as client:
            client.sendall(b"x")
        connection, _ = server.accept()
        with connection:
            assert connection.recv(1) == b"x"


@pytest.mark.parametrize("variable", ["ADADEPTH_CACHE", "HF_HOME"])
def test_caches_are_scratch(variable: str) -> None:
    assert not Path(os.environ[variable]).is_relative_to(Path.home() / ".cache")
    assert "adadepth-tests-" in os.environ[variable]


def test_no_test_module_is_imported() -> None:
    """Require that shared helpers lie in support modules: a test can be moved, split or dropped by itself."""
    private = {get_module_name(path) for path in TESTS.rglob("test_*.py")}
    private |= {f"{name.rpartition('.')[0]}.conftest" for name in private}
    assert len(private) > 200
    for path in TESTS.rglob("*.py"):
        if re.search(r"(?<!def )(?<!/)\b(?:test_\w+|conftest)\b", read_source(path)):
            names = {name for name, _ in list_imports(path)}
            assert not private & (names | {name.rpartition(".")[0] for name in names}), path
