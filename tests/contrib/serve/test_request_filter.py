"""Requests that the server answers before they reach gradio."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from adadepth.contrib.serve.request_filter import MAX_REQUEST_BYTES, AllowedHosts, RequestFilter, is_loopback

LOCAL = "127.0.0.1:7860"


def send_request(
    path: str,
    headers: dict[str, str] | None = None,
    chunks: tuple[bytes, ...] = (b"",),
    names: AllowedHosts | None = None,
    error: Exception | None = None,
) -> tuple[int, int]:
    """Return the status, and the number of bytes that reached the page behind the filter."""
    sent: list[Any] = []
    seen = 0

    async def page(scope: Any, receive: Any, send: Any) -> None:
        nonlocal seen
        while (message := await receive())["type"] == "http.request":
            seen += len(message["body"])
            if not message["more_body"]:
                break
        if error is not None:
            raise error
        await send({"type": "http.response.start", "status": 200, "headers": []})

    waiting = [
        {"type": "http.request", "body": chunk, "more_body": number + 1 < len(chunks)}
        for number, chunk in enumerate(chunks)
    ]

    async def receive() -> Any:
        return waiting.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    all_headers = {"Host": LOCAL} | (headers or {})
    scope = {"type": "http", "path": path, "headers": [(k.encode(), v.encode()) for k, v in all_headers.items()]}
    asyncio.run(RequestFilter(page, names or AllowedHosts("127.0.0.1"))(scope, receive, send))
    return (sent[0]["status"] if sent else 0), seen


@pytest.mark.parametrize("path", ["/", "/config", "/gradio_api/queue/join", "/gradio_api/queue/data", "/assets/x.js"])
def test_the_page_and_its_parts_pass(path: str) -> None:
    assert send_request(path, {"content-length": "5"}, (b"12345",)) == (200, 5)


@pytest.mark.parametrize(
    "path", ["/gradio_api/upload", "/gradio_api/file=/etc/passwd", "/file=/etc/passwd", "/gradio_api/proxy=http://x"]
)
def test_file_requests_are_refused(path: str) -> None:
    assert send_request(path) == (404, 0)


def test_too_long_a_request_is_refused_with_and_without_a_length() -> None:
    assert send_request("/gradio_api/queue/join", {"content-length": str(MAX_REQUEST_BYTES + 1)}) == (413, 0)
    assert send_request("/gradio_api/queue/join", {"content-length": "many"}) == (413, 0)
    assert send_request("/gradio_api/queue/join", chunks=(b"x" * MAX_REQUEST_BYTES, b"y")) == (413, MAX_REQUEST_BYTES)


@pytest.mark.parametrize("host", [LOCAL, "localhost:7860", "LOCALHOST.", "127.8.8.8", "[::1]:7860"])
def test_only_names_of_this_machine_are_accepted(host: str) -> None:
    assert send_request("/config", {"Host": host})[0] == 200
    assert send_request("/config", {"Host": host, "Origin": f"http://{host}"})[0] == 200


FOREIGN = (
    "evil.example", "evil.example:7860", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example@localhost",
    "localhost@evil.example", "203.0.113.1", "0.0.0.0:7860", "", ":7860", "[::1", "[1]", "localhost:x", "\x00",
)  # fmt: skip


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize("path", ["/", "/config", "/gradio_api/queue/join", "/assets/x.js", "/gradio_api/upload"])
def test_a_foreign_name_for_this_machine_is_refused(host: str, path: str) -> None:
    assert send_request(path, {"Host": host}) == (403, 0)
    assert send_request(path, {"X-Forwarded-Host": host or "evil.example"}) == (403, 0)


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "", "http://127.0.0.1:8888", "http://localhost:7860", "https://127.0.0.1", "x"],
)
def test_another_page_is_refused(origin: str) -> None:
    assert send_request("/gradio_api/queue/join", {"Origin": origin}) == (403, 0)


def test_a_public_page_accepts_addresses_and_its_own_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpu7.lab.example")
    names = AllowedHosts("0.0.0.0", ["Page.Example"])
    hosts = ["203.0.113.1:7860", "[fe80::1]:7860", "gpu7.lab.example", "gpu7", "localhost:7860", "page.example"]
    assert all(names.has_host(host) for host in hosts)
    assert not any(names.has_host(host) for host in ("evil.example", "x.page.example", "gpu7.lab.example.evil.example"))
    assert names.has_origin("https://page.example", "127.0.0.1:7860"), "of a proxy, which asks under another name"
    assert names.has_origin("http://203.0.113.1:7860", "203.0.113.1:7860")
    assert names.has_origin("https://gpu7", "gpu7")
    assert not names.has_origin("http://203.0.113.2:7860", "203.0.113.1:7860")
    assert not names.has_origin("http://evil.example", "203.0.113.1:7860")


def test_the_listening_address_is_accepted() -> None:
    names = AllowedHosts("page.example")
    assert names.has_host("page.example:7860")
    assert not names.has_host("evil.example")
    assert (
        list(map(is_loopback, ["127.0.0.1", "::1", "localhost", "0.0.0.0", "page.example", ""]))
        == [True] * 3 + [False] * 3
    )


def test_a_websocket_is_closed_before_it_is_open() -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(
        RequestFilter(None, AllowedHosts("127.0.0.1"))({"type": "websocket", "path": "/", "headers": []}, receive, send)
    )
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_a_failure_of_the_page_is_a_one_line_error(capsys: pytest.CaptureFixture[str]) -> None:
    send_request("/gradio_api/queue/join", error=KeyError("x\ny"))
    assert capsys.readouterr().out.splitlines() == [r"request failed: /gradio_api/queue/join: KeyError: 'x\ny'"]
