"""Connections of Docker's clients: requests one after the other, each to dockerd and back."""

from __future__ import annotations

import asyncio
import contextlib
import json

import structlog

from runtimeproxy.docker.http1 import (
    MAX_HEAD_BYTES,
    Framing,
    Head,
    HttpError,
    pieces,
    read_head,
    request_framing,
    response_framing,
    whole_body,
)
from runtimeproxy.docker.interceptions import Changed, Interceptor, wants_body
from runtimeproxy.relay.endpoint import Endpoint, Unreachable
from runtimeproxy.wire.status import StatusError

_MAX_BODY_BYTES = 4 << 20  # of a create or an update
_MAX_KEPT_BYTES = 1 << 16  # of the answer to one
_RAW_STREAMS = ("application/vnd.docker.raw-stream", "application/vnd.docker.multiplexed-stream")
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class DockerRelay:
    """Each client's connection has one to dockerd."""

    def __init__(self, dockerd: Endpoint, interceptor: Interceptor) -> None:
        self._dockerd = dockerd
        self._interceptor = interceptor
        self.busy = 0
        """Requests under way."""
        # Readers are known only to the task that reads: without this both may be taken for garbage.
        self._serving: set[asyncio.Task[None] | None] = set()
        self._log = structlog.get_logger().bind(part="docker")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client's connection, to its end."""
        task = asyncio.current_task()
        self._serving.add(task)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._serving.discard, task)
            stack.callback(writer.close)
            try:
                await self._serve(stack, (reader, writer))
            except (HttpError, OSError) as error:
                self._log.debug("a connection ended", why=str(error))

    async def _serve(self, stack: contextlib.AsyncExitStack, client: Streams) -> None:
        dockerd: Streams | None = None
        while (head := await read_head(client[0])) is not None:
            self.busy += 1
            try:
                changed, body = await self._before(head, client[0])
                if dockerd is None or dockerd[0].at_eof():
                    dockerd = await self._connect()
                    stack.callback(dockerd[1].close)
                if not await _exchange(head, changed, body, client, dockerd):
                    return
            except StatusError as error:
                await _answer(client[1], 500, error.details)
                return
            except Unreachable as error:
                await _answer(client[1], 503, str(error))
                return
            finally:
                self.busy -= 1

    async def _before(
        self, head: Head, reader: asyncio.StreamReader
    ) -> tuple[Changed, bytes | None]:
        """What interception makes of the request, and its body where that was read."""
        words = head.line.split(" ")
        if len(words) != 3:
            raise HttpError(f"no request: {head.line[:80]!r}")
        body = None
        if wants_body(head.method, head.target):
            body = await whole_body(reader, request_framing(head), _MAX_BODY_BYTES)
        changed = await self._interceptor.before(head.method, head.target, body or b"")
        return changed, body

    async def _connect(self) -> Streams:
        sock = self._dockerd.connect()
        return await asyncio.open_unix_connection(sock=sock, limit=MAX_HEAD_BYTES)


async def _exchange(
    head: Head, changed: Changed, body: bytes | None, client: Streams, dockerd: Streams
) -> bool:
    """One request and its answer; whether the connection goes on."""
    sending: asyncio.Future[object]
    if body is not None:
        new_body = body if changed.body is None else changed.body
        dockerd[1].write(head.with_length(len(new_body)) + new_body)
        sending = asyncio.ensure_future(dockerd[1].drain())
    else:
        dockerd[1].write(head.raw)
        sending = asyncio.ensure_future(_pump(client[0], dockerd[1], request_framing(head)))
    try:
        answer = await _final_head(dockerd[0], client[1])
        if _is_raw(answer):
            await sending
            await _both_ways(client, dockerd)
            return False
        framing = response_framing(answer, head.method)
        kept = await _pump(dockerd[0], client[1], framing, keep=changed.after is not None)
        if changed.after is not None:
            changed.after(answer.status, _content(kept, framing))
        if not sending.done():
            return False  # an answer before the end of the question: nobody reads on
        sending.result()
        return not (framing.length is None and not framing.chunked) and not (
            answer.has("connection", "close") or head.has("connection", "close")
        )
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _final_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Head:
    """Passes on interim answers (100 Continue) and the head that is final."""
    while True:
        answer = await read_head(reader)
        if answer is None:
            raise HttpError("dockerd closed before it answered")
        if not answer.line.split(" ")[1].isdigit():
            raise HttpError(f"no answer: {answer.line[:80]!r}")
        writer.write(answer.raw)
        if answer.status == 101 or answer.status >= 200:
            await writer.drain()
            return answer


def _is_raw(answer: Head) -> bool:
    """Whether what follows is no HTTP: after an upgrade, or the older way without one."""
    if answer.status == 101:
        return True
    no_length = not answer.get("content-length") and not answer.get("transfer-encoding")
    return no_length and answer.get("content-type").partition(";")[0] in _RAW_STREAMS


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    framing: Framing,
    *,
    keep: bool = False,
) -> bytes:
    """Pass a body on as it comes; its beginning where ``keep`` asks for that."""
    kept = bytearray()
    async for piece in pieces(reader, framing):
        writer.write(piece)
        await writer.drain()
        if keep and len(kept) < _MAX_KEPT_BYTES:
            kept += piece
    return bytes(kept)


def _content(kept: bytes, framing: Framing) -> bytes:
    if not framing.chunked:
        return kept
    content, rest = b"", kept
    while rest:
        line, _, rest = rest.partition(b"\r\n")
        size = int(line.partition(b";")[0] or b"0", 16)
        if size == 0:
            break
        content, rest = content + rest[:size], rest[size + 2 :]
    return content


async def _both_ways(client: Streams, dockerd: Streams) -> None:
    """Raw bytes until both sides have ended; an end goes on as an end, not as a close."""
    ways = (_one_way(client[0], dockerd[1]), _one_way(dockerd[0], client[1]))
    await asyncio.gather(*ways, return_exceptions=True)


async def _one_way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(65_536):
            writer.write(piece)
            await writer.drain()
    finally:
        with contextlib.suppress(OSError):
            writer.write_eof()


async def _answer(writer: asyncio.StreamWriter, status: int, message: str) -> None:
    """An error in Docker's form; the connection ends with it."""
    body = json.dumps({"message": message}).encode()
    reason = "Internal Server Error" if status == 500 else "Service Unavailable"
    writer.write(
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        + body
    )
    await writer.drain()
