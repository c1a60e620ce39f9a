"""A few GET pages over HTTP/1.1: metrics and health on a port, answers for the CLI on a socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping

from runtimeproxy.listener import Listener

_HEAD_BYTES = 8192
_LIMIT_S = 5.0
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
Page = Callable[[], tuple[int, str, bytes]]
"""Status, content type and body."""
_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


def json_page(answer: Callable[[], object]) -> Page:
    return lambda: (200, JSON, json.dumps(answer()).encode())


class PageServer:
    """Serves ``pages`` by path, one request a connection."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._listener: Listener | None = None

    async def listen_tcp(self, host: str, port: int) -> None:
        """Raises OSError."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_HEAD_BYTES)

    async def listen_on(self, listener: Listener) -> None:
        """On a unix socket of our own, which is root's alone."""
        self._listener = listener
        self._server = await asyncio.start_server(
            self._serve, sock=listener.socket, limit=_HEAD_BYTES
        )

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A client that goes or sends no request is none of our faults.
        faults = (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
        with contextlib.suppress(*faults), contextlib.closing(writer):
            async with asyncio.timeout(_LIMIT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()

    def _answer(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or words[0] not in ("GET", "HEAD"):
            return _response(405, TEXT, b"only GET\n", head_only=False)
        page = self._pages.get(words[1].partition("?")[0])
        code, kind, body = page() if page else (404, TEXT, b"no such page\n")
        return _response(code, kind, body, head_only=words[0] == "HEAD")


def _response(code: int, kind: str, body: bytes, *, head_only: bool) -> bytes:
    head = (
        f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if head_only else body)
