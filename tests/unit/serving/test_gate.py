"""What the server answers before gradio sees it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from adadepth.serving.gate import MOST_BYTES, Gate


def asked(path: str, headers: dict[str, str] | None = None, chunks: tuple[bytes, ...] = (b"",)) -> tuple[int, int]:
    """Status, and how many bytes the page behind the gate was given."""
    sent: list[Any] = []
    seen = 0

    async def page(scope: Any, receive: Any, send: Any) -> None:
        nonlocal seen
        while (message := await receive())["type"] == "http.request":
            seen += len(message["body"])
            if not message["more_body"]:
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})

    waiting = [
        {"type": "http.request", "body": chunk, "more_body": number + 1 < len(chunks)}
        for number, chunk in enumerate(chunks)
    ]

    async def receive() -> Any:
        return waiting.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "headers": [(k.encode(), v.encode()) for k, v in (headers or {}).items()]}
    asyncio.run(Gate(page)(scope, receive, send))
    return sent[0]["status"], seen


@pytest.mark.parametrize("path", ["/", "/config", "/gradio_api/queue/join", "/gradio_api/queue/data", "/assets/x.js"])
def test_the_page_and_its_parts_are_let_through(path: str) -> None:
    assert asked(path, {"content-length": "5"}, (b"12345",)) == (200, 5)


@pytest.mark.parametrize(
    "path", ["/gradio_api/upload", "/gradio_api/file=/etc/passwd", "/file=/etc/passwd", "/gradio_api/proxy=http://x"]
)
def test_no_files_are_taken_or_given(path: str) -> None:
    assert asked(path) == (404, 0)


def test_a_question_that_is_too_long_is_refused_whether_it_says_so_or_not() -> None:
    assert asked("/gradio_api/queue/join", {"content-length": str(MOST_BYTES + 1)}) == (413, 0)
    assert asked("/gradio_api/queue/join", {"content-length": "many"}) == (413, 0)
    assert asked("/gradio_api/queue/join", chunks=(b"x" * MOST_BYTES, b"y"))[1] == MOST_BYTES
