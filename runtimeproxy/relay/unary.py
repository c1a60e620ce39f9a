"""One unary call of our own over a link."""

from __future__ import annotations

import asyncio

from runtimeproxy.relay.endpoint import Endpoint
from runtimeproxy.relay.link import Link
from runtimeproxy.wire import frames, status
from runtimeproxy.wire.headers import Header, Headers
from runtimeproxy.wire.status import Code, StatusError
from runtimeproxy.wire.traffic import Traffic

_HEADERS: tuple[Header, ...] = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":authority", b"localhost"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
    (b"user-agent", b"koord-runtimeproxy"),
)


class UnaryClient:
    """Calls to one endpoint over one connection that is made when it is needed."""

    def __init__(self, endpoint: Endpoint, *, max_message_bytes: int) -> None:
        self.endpoint = endpoint
        self._max_bytes = max_message_bytes
        self._link: Link | None = None
        self._traffic: Traffic | None = None  # made where there is a loop

    async def call(self, path: str, message: bytes, timeout_s: float) -> bytes:
        """The reply. Raises StatusError, for a deadline too, and Unreachable."""
        if self._link is None or not self._link.usable:
            self._traffic = self._traffic or Traffic()
            self._link = Link(self.endpoint, self._traffic)
        call = _UnaryCall(self._link, self._max_bytes)
        headers = (
            *_HEADERS,
            (b":path", path.encode()),
            (b"grpc-timeout", status.format_timeout(timeout_s)),
        )
        # Pseudo headers come first.
        call.begin(sorted(headers, key=lambda pair: pair[0][:1] != b":"), status.pack(message))
        try:
            async with asyncio.timeout(timeout_s):
                return await call.reply
        except TimeoutError:
            raise StatusError(Code.DEADLINE_EXCEEDED, f"no answer in {timeout_s:g} s") from None
        finally:
            call.end()

    @property
    def connected(self) -> bool:
        return self._link is not None and self._link.usable

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


class _UnaryCall:
    def __init__(self, link: Link, max_bytes: int) -> None:
        self.reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._link = link
        self._stream_id = 0
        self._parts: list[bytes] = []
        self._bytes = 0
        self._max_bytes = max_bytes + status.PREFIX_BYTES

    def begin(self, headers: Headers, message: bytes) -> None:
        self._stream_id = self._link.open(self, headers, ended=False)
        self._link.send_data(self._stream_id, message, ended=True)

    def end(self) -> None:
        self._link.forget(self._stream_id)

    def _fail(self, code: Code, details: str) -> None:
        if not self.reply.done():
            self.reply.set_exception(StatusError(code, details))

    # -- Answers -------------------------------------------------------------------------------

    def answered_headers(self, headers: Headers, *, ended: bool) -> None:
        if not ended or self.reply.done():
            return
        code = status.code_of(headers)
        message = status.unpack_or_none(b"".join(self._parts))
        if code is not Code.OK:
            self._fail(code or Code.UNKNOWN, status.details_of(headers))
        elif message is None:
            self._fail(Code.INTERNAL, "the answer is not one whole message")
        else:
            self.reply.set_result(message)

    def answered_data(self, data: bytes, *, ended: bool) -> None:
        self._bytes += len(data)
        if self._bytes > self._max_bytes:
            self._fail(Code.RESOURCE_EXHAUSTED, f"the answer is above {self._max_bytes} bytes")
        elif not self.reply.done():
            self._parts.append(data)
            self._link.consumed(self._stream_id, len(data))

    def request_sent(self, count: int) -> None:
        """Nobody waits for it."""

    def answered_reset(self, code: int) -> None:
        cancelled = code == frames.CANCEL
        self._fail(Code.CANCELLED if cancelled else Code.UNAVAILABLE, "the stream was reset")

    def runtime_lost(self, why: str) -> None:
        self._fail(Code.UNAVAILABLE, why)
