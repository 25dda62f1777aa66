"""Broken connections to the hub: one-line errors, and no incomplete file in the cache."""

from __future__ import annotations

import os
import socketserver
import threading
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import transformers.utils.hub
from huggingface_hub import constants

from adadepth.data.text.hub import digest_hub_entry, load_hub_tables
from adadepth.data.text.tokenizer import load_tokenizer
from adadepth.errors import DataError
from adadepth.runtime import hub_access as connection

_FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_FILE = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nETag: \"e\"\r\nX-Repo-Commit: " + b"0" * 40
    + b"\r\nConnection: close\r\n\r\n"
)  # fmt: skip


class _Hub(socketserver.ThreadingTCPServer):
    daemon_threads = True
    behaviour = "breaks off"


class _Handler(socketserver.StreamRequestHandler):
    server: _Hub

    def handle(self) -> None:
        method, path, _ = self.rfile.readline().decode().split(" ")
        while self.rfile.readline().strip():
            pass
        behaviour = self.server.behaviour
        if behaviour == "says something else":
            self.wfile.write(b"220 mail ready\r\n")
        elif behaviour == "says nothing":
            threading.Event().wait(1.0)
        elif path == "/":
            self.wfile.write(_FINE)
        elif behaviour == "breaks off later":
            self.wfile.write(_FILE + (b"{" * 100 if method == "GET" else b""))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[_Hub]:
    with _Hub(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "DEFAULT_ETAG_TIMEOUT", 0.3)
        monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.3)
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)
        monkeypatch.setattr(connection, "_TIMEOUT_S", 0.3)
        yield server
        server.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "behaviour"),
    [
        *product(["tokenizer", "table", "digest"], ["breaks off", "says something else", "says nothing"]),
        ("table", "breaks off later"),
        ("digest", "breaks off later"),
        ("tokenizer", "breaks off later"),  # its library tries for ten seconds
    ],
)
def test_a_failing_hub_is_a_one_line_error(hub: _Hub, behaviour: str, kind: str, tmp_path: Path) -> None:
    hub.behaviour = behaviour
    entry: dict[str, Any] = {"path": "someone/something"}
    with pytest.raises(DataError, match=r"someone/something") as caught:
        {
            "tokenizer": lambda: load_tokenizer("someone/something"),
            "table": lambda: load_hub_tables(entry),
            "digest": lambda: digest_hub_entry(entry),
        }[kind]()
    assert "\n" not in str(caught.value)
    files = [Path(folder, name) for folder, _, names in os.walk(tmp_path / "hub") for name in names]
    assert not [file for file in files if "snapshots" in file.parts], "nothing that a later run would take for whole"
