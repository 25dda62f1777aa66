"""Filter of HTTP requests to the web demo: checks host names, blocks file routes, and limits the request size."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from adadepth.errors import format_error
from adadepth.runtime.console import say

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
MAX_REQUEST_BYTES = 64 * 1024
_TOO_LONG = 413, "the request is too long"
_PORTS = {"http": 80, "https": 443}
_POLICY_VIOLATION = 1008  # close code of a websocket


class AllowedHosts:
    """Host names at which the web demo accepts requests.

    Another site can point its own host name at this machine (DNS rebinding). A browser then treats the page as a part
    of that site. A numeric address cannot be redirected in this way.

    Args:
        host: Address that the server listens on.
        names: Additional host names, such as the name of a proxy.
    """

    def __init__(self, host: str, names: Iterable[str] = ()) -> None:
        self._extra_hosts = {name.lower() for name in names}
        self._is_local = is_loopback(host)
        self._hosts = {"localhost", host.lower().rstrip("."), *self._extra_hosts}
        if not self._is_local:
            machine = socket.gethostname().lower()
            self._hosts |= {machine, machine.partition(".")[0]}

    def has_host(self, host: str) -> bool:
        """Return whether the `Host` header of a request, with or without port, is allowed."""
        name = _parse_url(f"//{host}")[0]
        return name in self._hosts or is_loopback(name) or (not self._is_local and _parse_address(name) is not None)

    def has_origin(self, origin: str, host: str) -> bool:
        """Return whether an `Origin` header is allowed: it matches the `Host` header or names a configured proxy."""
        scheme = urlsplit(origin).scheme if "//" in origin else ""
        name, port = _parse_url(origin)
        if name in self._extra_hosts:
            return True
        expected, expected_port = _parse_url(f"//{host}")
        return bool(name) and (name, port or _PORTS.get(scheme)) == (expected, expected_port or _PORTS.get(scheme))


def is_loopback(host: str) -> bool:
    """Return whether an address or host name is reachable only from this machine."""
    address = _parse_address(host)
    return address.is_loopback if address is not None else host.lower().rstrip(".") == "localhost"


def list_space_hosts() -> list[str]:
    """Return the host names of the web demo in a Hugging Face space, or an empty list outside one."""
    return [name for name in os.environ.get("SPACE_HOST", "").split(",") if name]


def _parse_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _parse_url(url: str) -> tuple[str, int | None]:
    """Return the lower-case host name and the port of a URL. The name is empty if the URL is invalid."""
    try:
        parts = urlsplit(url)
        name = "" if "@" in parts.netloc else (parts.hostname or "")
        return name.rstrip("."), parts.port
    except ValueError:
        return "", None


class RequestFilter:
    """ASGI middleware that rejects requests with unknown host names, file routes or too much data.

    Args:
        app: ASGI application behind the filter.
        names: Allowed host names.
    """

    def __init__(self, app: Any, names: AllowedHosts) -> None:
        self.app, self.names = app, names

    async def __call__(self, scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        """Pass a request on to the application, or reject it.

        An error of the application is printed on one line of the console.
        """
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
        request = _LimitedRequest(receive, send)
        try:
            await self.app(scope, request.receive, request.send)
        except Exception as error:  # the application has answered 500, unless the client has gone
            if not request.is_too_long:
                say(f"request failed: {scope.get('path', ''):.80}: {format_error(error)}")
        if request.is_too_long and not request.is_answered:
            await _send_refusal(send, *_TOO_LONG)

    def _find_refusal(self, scope: MutableMapping[str, Any]) -> tuple[int, str] | None:
        """Return the HTTP status and message with which a request is rejected, or None if it is allowed."""
        headers: dict[str, list[str]] = {}
        for name, value in scope.get("headers", ()):
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        forwarded = [name.strip() for value in headers.get("x-forwarded-host", []) for name in value.split(",")]
        hosts = [*headers.get("host", []), *forwarded]
        if not headers.get("host") or not all(map(self.names.has_host, hosts)):
            return 403, "unknown host name of the page; add it with serve.names=[NAME]"
        if not all(self.names.has_origin(origin, hosts[0]) for origin in headers.get("origin", [])):
            return 403, "requests from other pages are refused; add the name of a proxy with serve.names=[NAME]"
        path = str(scope.get("path", "")).removeprefix("/gradio_api")
        if path.startswith(_CLOSED_PATHS):
            return 404, "files cannot be uploaded or downloaded here"
        lengths = headers.get("content-length", [])
        if any(not length.isdigit() or int(length) > MAX_REQUEST_BYTES for length in lengths):
            return _TOO_LONG
        return None


class _LimitedRequest:
    """HTTP request that stops reading at a size limit, even if the request does not declare its length."""

    def __init__(self, receive: _Receive, send: _Send) -> None:
        self._receive, self._send, self._bytes = receive, send, 0
        self.is_answered = False

    @property
    def is_too_long(self) -> bool:
        return self._bytes > MAX_REQUEST_BYTES

    async def receive(self) -> _Message:
        """Return the next message of the request, or a disconnect once the request exceeds the size limit."""
        message = await self._receive()
        self._bytes += len(message.get("body", b""))
        return {"type": "http.disconnect"} if self.is_too_long else message

    async def send(self, message: _Message) -> None:
        """Send a part of the response, unless the request exceeded the size limit before the response began."""
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
