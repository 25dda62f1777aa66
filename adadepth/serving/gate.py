"""What visitors may ask the server for: the page, its own parts, and answers; no files are taken or given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_CLOSED = (
    "/upload",
    "/file",
    "/proxy",
    "/component_server",
    "/process_recording",
    "/stream",
    "/monitoring",
    "/deep_link",
)
MOST_BYTES = 64 * 1024  # of a question


class Gate:
    """ASGI middleware: refuses the routes that take or give files, and questions that are too long."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        """Hand a request on, or answer it in a line."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = str(scope.get("path", "")).removeprefix("/gradio_api")
        if path.startswith(_CLOSED):
            await _refuse(send, 404, b"no files are taken or given here")
            return
        lengths = [value for name, value in scope.get("headers", ()) if name.lower() == b"content-length"]
        if lengths and (not lengths[0].isdigit() or int(lengths[0]) > MOST_BYTES):
            await _refuse(send, 413, b"the question is too long")
            return
        await self.app(scope, _bounded(receive), send)


def _bounded(receive: _Receive) -> _Receive:
    """Of a question that does not say its length no more is read than any may have."""
    seen = 0

    async def bounded() -> _Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        return {"type": "http.disconnect"} if seen > MOST_BYTES else message

    return bounded


async def _refuse(send: _Send, status: int, line: bytes) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(line)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": line})
