"""Our connection to the runtime on behalf of one client's connection."""

from __future__ import annotations

import asyncio
from typing import Protocol

from runtimeproxy.relay.endpoint import Endpoint
from runtimeproxy.wire import frames
from runtimeproxy.wire.headers import Headers
from runtimeproxy.wire.peer import Peer
from runtimeproxy.wire.traffic import Traffic


class Answers(Protocol):
    """What a call hears from the runtime."""

    def answered_headers(self, headers: Headers, *, ended: bool) -> None: ...
    def answered_data(self, data: bytes, *, ended: bool) -> None: ...
    def request_sent(self, count: int) -> None: ...
    def answered_reset(self, code: int) -> None: ...
    def runtime_lost(self, why: str) -> None: ...


class Link:
    """One connection, made at once or not at all; its calls by stream."""

    def __init__(self, endpoint: Endpoint, traffic: Traffic) -> None:
        """Raises Unreachable."""
        self._calls: dict[int, Answers] = {}
        self._usable = True
        self._socket = endpoint.connect()
        self._peer = Peer(self, traffic, client_side=True)
        loop = asyncio.get_running_loop()
        # What is sent before the transport is there waits in the peer.
        self._connecting = loop.create_task(
            loop.create_unix_connection(lambda: self._peer, sock=self._socket)
        )

    @property
    def usable(self) -> bool:
        """Whether one more call may be made here."""
        return self._usable and self._peer.can_open

    def open(self, call: Answers, headers: Headers, *, ended: bool) -> int:
        """Begin a call; its stream id."""
        stream_id = self._peer.open_stream()
        self._calls[stream_id] = call
        self._peer.send_headers(stream_id, headers, ended=ended)
        return stream_id

    def send_data(self, stream_id: int, data: bytes, *, ended: bool) -> None:
        self._peer.send_data(stream_id, data, ended=ended)

    def send_headers(self, stream_id: int, headers: Headers, *, ended: bool) -> None:
        self._peer.send_headers(stream_id, headers, ended=ended)

    def consumed(self, stream_id: int, count: int) -> None:
        self._peer.consumed(stream_id, count)

    def forget(self, stream_id: int, code: int = frames.CANCEL) -> None:
        """End a call if it is not over; it hears nothing any more."""
        if self._calls.pop(stream_id, None) is not None:
            self._peer.send_reset(stream_id, code)
            self._close_if_done()

    def retire(self) -> None:
        """No more calls begin here; it closes when the last one has ended."""
        self._usable = False
        self._close_if_done()

    def close(self) -> None:
        """Calls that are under way are told that their answer will not come."""
        self.on_lost("the connection was given up")
        self._peer.close()
        if not self._connecting.done():
            self._connecting.cancel()
            self._socket.close()

    def _close_if_done(self) -> None:
        if not self._usable and not self._calls:
            self._peer.close()

    # -- Events --------------------------------------------------------------------------------

    def on_headers(self, stream_id: int, headers: Headers, *, ended: bool) -> None:
        if (call := self._calls.get(stream_id)) is not None:
            call.answered_headers(headers, ended=ended)

    def on_data(self, stream_id: int, data: bytes, *, ended: bool) -> None:
        if (call := self._calls.get(stream_id)) is not None:
            call.answered_data(data, ended=ended)

    def on_sent(self, stream_id: int, count: int) -> None:
        if (call := self._calls.get(stream_id)) is not None:
            call.request_sent(count)

    def on_reset(self, stream_id: int, code: int) -> None:
        if (call := self._calls.pop(stream_id, None)) is not None:
            call.answered_reset(code)

    def on_go_away(self, last_stream_id: int) -> None:
        """Calls that the runtime did not look at are refused, so that clients try them again."""
        self._usable = False
        for stream_id in [each for each in self._calls if each > last_stream_id]:
            self._calls.pop(stream_id).answered_reset(frames.REFUSED_STREAM)
        self._close_if_done()

    def on_ping_ack(self) -> None:
        """Never asked for here."""

    def on_lost(self, why: str) -> None:
        self._usable = False
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.runtime_lost(why)
