"""One call: what the client says goes to the runtime, what the runtime says goes back."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from runtimeproxy.relay.calls import CallCounts
from runtimeproxy.relay.endpoint import Unreachable
from runtimeproxy.relay.link import Link
from runtimeproxy.wire import frames, status
from runtimeproxy.wire.headers import Headers
from runtimeproxy.wire.peer import Peer
from runtimeproxy.wire.status import Code, MessageMeter, StatusError

_TIMEOUT = b"grpc-timeout"
_REPLY_KEPT_BYTES = 1 << 20  # replies of intercepted calls are ids or nothing
_RESET_CODES = {frames.CANCEL: Code.CANCELLED, frames.REFUSED_STREAM: Code.UNAVAILABLE}


class Client(Protocol):
    """The connection that a call came in on."""

    peer: Peer
    counts: CallCounts
    max_message_bytes: int

    def link_for(self, path: bytes) -> Link: ...
    def forget(self, stream_id: int) -> None: ...


class Interception(Protocol):
    """What is to be done around one unary call."""

    async def before(self, request: bytes, remaining_s: float | None) -> bytes:
        """The request for the runtime, the very same object where nothing changes.

        ``remaining_s`` is what the caller has left. Raises StatusError to refuse the call.
        """

    def after(self, code: Code, reply: bytes | None) -> None:
        """The runtime has answered; the client has not been told yet."""


class Call:
    """A call that goes through as it is, data by data."""

    def __init__(self, client: Client, stream_id: int, path: bytes) -> None:
        self.path = path
        self._client = client
        self._stream_id = stream_id
        self._link: Link | None = None
        self._link_id = 0
        self._answering = False
        self._ended = False
        self._began_s = time.monotonic()
        self._count = client.counts.begin(path)
        self._asked = MessageMeter(client.max_message_bytes)
        self._answered = MessageMeter(client.max_message_bytes)

    # -- from the client -----------------------------------------------------------------------

    def requested_headers(self, headers: Headers, *, ended: bool) -> None:
        """The headers of the call, or its trailers."""
        if self._link is not None:
            self._link.send_headers(self._link_id, headers, ended=ended)
        else:
            self._open(headers, ended=ended)

    def requested_data(self, data: bytes, *, ended: bool) -> None:
        size = self._asked.too_large(data)
        if size:
            self.fail(Code.RESOURCE_EXHAUSTED, self._too_large(size))
        elif self._link is not None:
            self._link.send_data(self._link_id, data, ended=ended)

    def answer_sent(self, count: int) -> None:
        if self._link is not None:
            self._link.consumed(self._link_id, count)

    def cancelled(self, code: int) -> None:
        """The client gave the call up; the runtime is told the same."""
        if self._link is not None:
            self._link.forget(self._link_id, code)
        self._end(Code.CANCELLED)

    # -- from the runtime ----------------------------------------------------------------------

    def request_sent(self, count: int) -> None:
        self._client.peer.consumed(self._stream_id, count)

    def answered_headers(self, headers: Headers, *, ended: bool) -> None:
        self._answering = True
        if ended:  # what is to be known of it is known before the client's next call
            code = status.code_of(headers)
            self._end(Code.UNKNOWN if code is None else code)
        self._client.peer.send_headers(self._stream_id, headers, ended=ended)

    def answered_data(self, data: bytes, *, ended: bool) -> None:
        size = self._answered.too_large(data)
        if size:
            self.fail(Code.RESOURCE_EXHAUSTED, self._too_large(size))
            return
        self._client.peer.send_data(self._stream_id, data, ended=ended)
        if ended:  # without trailers this is no gRPC; the client will say so
            self._end(Code.UNKNOWN)

    def answered_reset(self, code: int) -> None:
        self._client.peer.send_reset(self._stream_id, code)
        self._end(_RESET_CODES.get(code, Code.INTERNAL))

    def runtime_lost(self, why: str) -> None:
        self.fail(Code.UNAVAILABLE, f"the container runtime went away during the call: {why}")

    # -- both ----------------------------------------------------------------------------------

    def fail(self, code: Code, details: str) -> None:
        """End the call with an answer of our own."""
        if self._ended:
            return
        answer = status.trailers if self._answering else status.trailers_only
        self._client.peer.send_headers(self._stream_id, answer(code, details), ended=True)
        self._end(code)

    def _open(self, headers: Headers, *, ended: bool) -> None:
        try:
            self._link = self._client.link_for(self.path)
        except Unreachable as error:
            self.fail(Code.UNAVAILABLE, str(error))
        else:
            self._link_id = self._link.open(self, headers, ended=ended)

    def _end(self, code: Code) -> None:
        if self._ended:
            return
        self._ended = True
        if self._link is not None:
            self._link.forget(self._link_id)
        self._client.forget(self._stream_id)
        self._client.counts.end(self._count, code, time.monotonic() - self._began_s)

    def _too_large(self, size: int) -> str:
        limit = self._client.max_message_bytes
        return f"grpc: message larger than max ({size} vs. {limit}); remedy: raise maxMessageBytes"


class InterceptedCall(Call):
    """A unary call that is looked at before the runtime sees any of it, and after it answered."""

    def __init__(
        self, client: Client, stream_id: int, path: bytes, interception: Interception
    ) -> None:
        super().__init__(client, stream_id, path)
        self._interception = interception
        self._headers: Headers = ()
        self._parts: list[bytes] = []
        self._asking: asyncio.Task[None] | None = None
        self._reply: list[bytes] = []
        self._reply_bytes = 0
        self._count.hooked += 1

    def requested_headers(self, headers: Headers, *, ended: bool) -> None:
        if self._headers or ended:  # no unary call of gRPC looks like that: not ours to judge
            super().requested_headers(headers, ended=ended)
        else:
            self._headers = headers

    def requested_data(self, data: bytes, *, ended: bool) -> None:
        if self._asking is not None or self._link is not None:
            return  # nothing follows the end of a request
        size = self._asked.too_large(data)
        if size:
            self.fail(Code.RESOURCE_EXHAUSTED, self._too_large(size))
            return
        self._parts.append(data)
        self._client.peer.consumed(self._stream_id, len(data))
        if ended:
            self._asking = asyncio.get_running_loop().create_task(self._ask(b"".join(self._parts)))

    async def _ask(self, data: bytes) -> None:
        try:
            self._client.link_for(self.path)  # a runtime that is away needs no hooks
            changed = await self._ask_hooks(data)
        except Unreachable as error:
            self.fail(Code.UNAVAILABLE, str(error))
        except StatusError as error:
            self.fail(error.code, error.details)
        except Exception as error:
            self.fail(Code.INTERNAL, f"runtimeproxy: {type(error).__name__}: {error}")
            raise
        else:
            self._pass_on(changed)

    async def _ask_hooks(self, data: bytes) -> bytes:
        request = status.unpack_or_none(data)
        if request is None:
            return data
        remaining_s = status.parse_timeout(status.find(self._headers, _TIMEOUT))
        changed = await self._interception.before(request, remaining_s)
        return data if changed is request else status.pack(changed)

    def _pass_on(self, data: bytes) -> None:
        if self._ended:
            return
        self._open(self._with_time_left(), ended=False)
        if self._link is not None:
            self._link.send_data(self._link_id, data, ended=True)

    def _with_time_left(self) -> Headers:
        """The deadline is a length of time: what the hooks took of it is gone."""
        spent_s = time.monotonic() - self._began_s
        timeout_s = status.parse_timeout(status.find(self._headers, _TIMEOUT))
        if timeout_s is None:
            return self._headers
        left = (_TIMEOUT, status.format_timeout(timeout_s - spent_s))
        return [left if pair[0] == _TIMEOUT else pair for pair in self._headers]

    def request_sent(self, count: int) -> None:
        """The client was told already that we had read it."""

    def answered_data(self, data: bytes, *, ended: bool) -> None:
        if self._reply_bytes <= _REPLY_KEPT_BYTES:
            self._reply.append(data)
            self._reply_bytes += len(data)
        super().answered_data(data, ended=ended)

    def cancelled(self, code: int) -> None:
        if self._asking is not None:
            self._asking.cancel()
        super().cancelled(code)

    def _end(self, code: Code) -> None:
        if self._link is not None and not self._ended:
            self._interception.after(code, status.unpack_or_none(b"".join(self._reply)))
        super()._end(code)
