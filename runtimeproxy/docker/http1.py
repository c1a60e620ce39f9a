"""HTTP/1.1 as a relay needs it: heads are read, bodies are passed on piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

MAX_HEAD_BYTES = 65_536
_PIECE_BYTES = 65_536


class HttpError(Exception):
    """What came is no HTTP, or too long."""


@dataclass(frozen=True, slots=True)
class Head:
    """A start line and headers, as they came."""

    line: str
    headers: tuple[tuple[str, str], ...]
    raw: bytes

    def get(self, name: str) -> str:
        """The first value of a header, or empty."""
        return next((value for key, value in self.headers if key.lower() == name), "")

    def has(self, name: str, word: str) -> bool:
        """Whether a header has ``word`` among its comma separated ones."""
        words = self.get(name).lower().split(",")
        return word in (each.strip() for each in words)

    @property
    def method(self) -> str:
        return self.line.partition(" ")[0]

    @property
    def target(self) -> str:
        return self.line.split(" ")[1]

    @property
    def status(self) -> int:
        return int(self.line.split(" ")[1])

    def with_length(self, length: int) -> bytes:
        """The head of the same message with a body of ``length`` bytes."""
        kept = [
            (key, value)
            for key, value in self.headers
            if key.lower() not in ("content-length", "transfer-encoding")
        ]
        lines = [f"{key}: {value}" for key, value in (*kept, ("Content-Length", str(length)))]
        return "\r\n".join([self.line, *lines, "", ""]).encode("latin-1")


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """The next head; None where the other side has closed. Raises HttpError."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise HttpError("a head that is cut short") from error
        return None
    except asyncio.LimitOverrunError as error:
        raise HttpError(f"a head of more than {MAX_HEAD_BYTES} bytes") from error
    line, *rest = raw[:-4].decode("latin-1").split("\r\n")
    headers = []
    for each in rest:
        key, colon, value = each.partition(":")
        if not colon:
            raise HttpError(f"no header: {each[:80]!r}")
        headers.append((key, value.strip()))
    if line.count(" ") < 1:
        raise HttpError(f"no start line: {line[:80]!r}")
    return Head(line, tuple(headers), raw)


@dataclass(frozen=True, slots=True)
class Framing:
    """How a body ends: after ``length`` bytes, with its last chunk, or (None) with the stream."""

    length: int | None
    chunked: bool = False


def request_framing(head: Head) -> Framing:
    """A request without either header has no body."""
    if head.has("transfer-encoding", "chunked"):
        return Framing(None, chunked=True)
    return Framing(_length(head) or 0)


def response_framing(head: Head, method: str) -> Framing:
    if method == "HEAD" or head.status in (204, 304) or head.status < 200:
        return Framing(0)
    if head.has("transfer-encoding", "chunked"):
        return Framing(None, chunked=True)
    return Framing(_length(head))


def _length(head: Head) -> int | None:
    text = head.get("content-length")
    if not text:
        return None
    if not text.isdigit():
        raise HttpError(f"no length: {text[:40]!r}")
    return int(text)


async def pieces(reader: asyncio.StreamReader, framing: Framing) -> AsyncIterator[bytes]:
    """The body as it goes over the wire, chunk sizes and all. Raises HttpError."""
    try:
        if framing.chunked:
            async for piece in _chunks(reader):
                yield piece
            return
        left = framing.length
        while left is None or left > 0:
            piece = await reader.read(_PIECE_BYTES if left is None else min(left, _PIECE_BYTES))
            if not piece:
                if left:
                    raise HttpError("a body that is cut short")
                return
            if left is not None:
                left -= len(piece)
            yield piece
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise HttpError("a body that is cut short") from error


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        line = await reader.readuntil(b"\r\n")
        yield line
        size = _chunk_size(line)
        if size == 0:
            break
        left = size + 2
        while left > 0:
            piece = await reader.read(min(left, _PIECE_BYTES))
            if not piece:
                raise HttpError("a chunk that is cut short")
            left -= len(piece)
            yield piece
    while True:  # trailers, up to the empty line
        line = await reader.readuntil(b"\r\n")
        yield line
        if line == b"\r\n":
            return


def _chunk_size(line: bytes) -> int:
    text = line.partition(b";")[0].strip()
    try:
        size = int(text, 16)
    except ValueError:
        size = -1
    if size < 0 or not text.isalnum():
        raise HttpError(f"no size of a chunk: {line[:40]!r}")
    return size


async def whole_body(reader: asyncio.StreamReader, framing: Framing, limit: int) -> bytes:
    """The content of a body without chunk sizes. Raises HttpError above ``limit`` bytes."""
    if not framing.chunked:
        if (framing.length or 0) > limit:
            raise HttpError(f"a body of more than {limit} bytes")
        return b"".join([piece async for piece in pieces(reader, framing)])
    body = bytearray()
    try:
        while size := _chunk_size(await reader.readuntil(b"\r\n")):
            if len(body) + size > limit:
                raise HttpError(f"a body of more than {limit} bytes")
            body += (await reader.readexactly(size + 2))[:-2]
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise HttpError("a body that is cut short") from error
    return bytes(body)
