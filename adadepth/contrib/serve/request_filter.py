"""What visitors may ask the server for, and under which name: the page, its own parts, and answers; no files."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from adadepth.errors import format_error
from adadepth.system.console import say

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_CLOSED_PATHS = (
    "/upload",
    "/file",
    "/proxy",
    "/component_server",
    "/process_recording",
    "/stream",
    "/monitoring",
    "/deep_link",
)
MAX_REQUEST_BYTES = 64 * 1024  # of a question
_TOO_LONG = 413, "the question is too long"
_PORTS = {"http": 80, "https": 443}
_POLICY_VIOLATION = 1008  # of a websocket


class AllowedHosts:
    """The names under which a page may be asked for.

    A site elsewhere can make its own name lead to this machine (DNS rebinding), and a browser then takes the page for a
    part of that site. An address of numbers cannot be made to lead elsewhere.

    Args:
        host: What the server listens at.
        names: Further ones, such as that of a proxy.
    """

    def __init__(self, host: str, names: Iterable[str] = ()) -> None:
        self._extra_hosts = {name.lower() for name in names}
        self._is_local = is_loopback(host)
        self._hosts = {"localhost", host.lower().rstrip("."), *self._extra_hosts}
        if not self._is_local:
            machine = socket.gethostname().lower()
            self._hosts |= {machine, machine.partition(".")[0]}

    def has_host(self, host: str) -> bool:
        """Return whether a `Host` header, with or without a port, is one of them."""
        name = _parse_url(f"//{host}")[0]
        return name in self._hosts or is_loopback(name) or (not self._is_local and _parse_address(name) is not None)

    def has_origin(self, origin: str, host: str) -> bool:
        """Return whether an `Origin` header is that of the page which the `Host` header belongs to, or a proxy's."""
        scheme = urlsplit(origin).scheme if "//" in origin else ""
        name, port = _parse_url(origin)
        if name in self._extra_hosts:
            return True
        expected, expected_port = _parse_url(f"//{host}")
        return bool(name) and (name, port or _PORTS.get(scheme)) == (expected, expected_port or _PORTS.get(scheme))


def is_loopback(host: str) -> bool:
    """Return whether an address or a name is one that this machine alone reaches."""
    address = _parse_address(host)
    return address.is_loopback if address is not None else host.lower().rstrip(".") == "localhost"


def list_space_hosts() -> list[str]:
    """Return the names under which a space of the hub is reached."""
    return [name for name in os.environ.get("SPACE_HOST", "").split(",") if name]


def _parse_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _parse_url(url: str) -> tuple[str, int | None]:
    """Return the name, in small letters, and the port of a URL; an empty name where it is none."""
    try:
        parts = urlsplit(url)
        name = "" if "@" in parts.netloc else (parts.hostname or "")
        return name.rstrip("."), parts.port
    except ValueError:
        return "", None


class RequestFilter:
    """ASGI middleware around all others: refuses foreign names, routes for files, and questions that are too long.

    Args:
        app: What is behind it.
        names: Under which it may be asked for.
    """

    def __init__(self, app: Any, names: AllowedHosts) -> None:
        self.app, self.names = app, names

    async def __call__(self, scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        """Hand a request on, or answer it in a line; what fails behind is one line of the console."""
        if scope["type"] == "websocket":  # the page has none
            await receive()
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if (refusal := self._find_refusal(scope)) is not None:
            await _send_refusal(send, *refusal)
            return
        question = _LimitedRequest(receive, send)
        try:
            await self.app(scope, question.receive, question.send)
        except Exception as error:  # what is behind has answered 500, unless nobody reads the answer
            if not question.is_too_long:
                say(f"refused {scope.get('path', ''):.80}: {format_error(error)}")
        if question.is_too_long and not question.is_answered:
            await _send_refusal(send, *_TOO_LONG)

    def _find_refusal(self, scope: MutableMapping[str, Any]) -> tuple[int, str] | None:
        """Return the status and the line with which a request is refused; None: it is not."""
        headers: dict[str, list[str]] = {}
        for name, value in scope.get("headers", ()):
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        forwarded = [name.strip() for value in headers.get("x-forwarded-host", []) for name in value.split(",")]
        hosts = [*headers.get("host", []), *forwarded]
        if not headers.get("host") or not all(map(self.names.has_host, hosts)):
            return 403, "the page is not known under this name; serve.names=[NAME] adds one"
        if not all(self.names.has_origin(origin, hosts[0]) for origin in headers.get("origin", [])):
            return 403, "the page answers no other page; serve.names=[NAME] adds the name of a proxy"
        path = str(scope.get("path", "")).removeprefix("/gradio_api")
        if path.startswith(_CLOSED_PATHS):
            return 404, "no files are taken or given here"
        lengths = headers.get("content-length", [])
        if any(not length.isdigit() or int(length) > MAX_REQUEST_BYTES for length in lengths):
            return _TOO_LONG
        return None


class _LimitedRequest:
    """A request of which no more is read than any may have, whether it says its length or not."""

    def __init__(self, receive: _Receive, send: _Send) -> None:
        self._receive, self._send, self._bytes = receive, send, 0
        self.is_answered = False

    @property
    def is_too_long(self) -> bool:
        return self._bytes > MAX_REQUEST_BYTES

    async def receive(self) -> _Message:
        """Return the next part; of one that is too long only that nobody asks any more."""
        message = await self._receive()
        self._bytes += len(message.get("body", b""))
        return {"type": "http.disconnect"} if self.is_too_long else message

    async def send(self, message: _Message) -> None:
        """Pass on a part of the answer, but none to a question that was cut."""
        if self.is_too_long and not self.is_answered:
            return
        self.is_answered = True
        await self._send(message)


async def _send_refusal(send: _Send, status: int, text: str) -> None:
    line = text.encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(line)).encode()),
        (b"x-content-type-options", b"nosniff"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": line})
