"""A stand-in for the Hugging Face hub on this machine: it creates repositories, takes commits, and stores the files."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import transformers.utils.hub
from huggingface_hub import constants

TOKEN = "hf_of_a_test"


class Hub(ThreadingHTTPServer):
    """Server that stores uploaded files by repository and path, and the requests for repositories."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.created: list[dict[str, Any]] = []
        self.refuses = False

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        if self.path == "/":
            return self._answer({})
        return self._answer({"error": "no such file"}, 404, {"X-Error-Code": "EntryNotFound"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer({"error": "Invalid username or password."}, 401)
        endpoint = self.path.removeprefix("/api/")
        if endpoint == "repos/create":
            return self._create(json.loads(body))
        if endpoint == "validate-yaml":
            return self._answer({"errors": [], "warnings": []})
        repository = "/".join(endpoint.split("/")[1:3])
        if self.server.refuses:
            return self._answer({"error": "the disk is full"}, 400)
        if "/preupload/" in endpoint:
            files = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                     for file in json.loads(body)["files"]]  # fmt: skip
            return self._answer({"files": files})
        assert "/commit/" in endpoint, self.path
        return self._commit(repository, [json.loads(line) for line in body.splitlines()])

    def _create(self, request: dict[str, Any]) -> None:
        self.server.created.append(request)
        repository = f"{request.get('organization') or 'someone'}/{request['name']}"
        self.server.files.setdefault(repository, {})
        self._answer({"url": f"{self.server.address}/{repository}", "name": repository})

    def _commit(self, repository: str, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            if line["key"] == "file":
                value = line["value"]
                self.server.files[repository][value["path"]] = base64.b64decode(value["content"])
        url = f"{self.server.address}/{repository}/commit/{'0' * 40}"
        self._answer({"commitUrl": url, "commitOid": "0" * 40, "hookOutput": ""})

    def _answer(self, content: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def log_message(self, *args: Any) -> None: ...


@contextmanager
def serve_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Let the hub's library use a stand-in, logged in."""
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    template = f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)  # cached with the address of an earlier server
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
