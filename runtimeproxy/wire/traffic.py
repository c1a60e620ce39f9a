"""What connections of one loop share, and what each tells its owner."""

from __future__ import annotations

import asyncio
from typing import Protocol

from runtimeproxy.wire.headers import Headers

_READ_BYTES = 262_144


class Events(Protocol):
    """What a connection tells its owner. ``ended``: the peer's last word on that stream."""

    def on_headers(self, stream_id: int, headers: Headers, *, ended: bool) -> None: ...
    def on_data(self, stream_id: int, data: bytes, *, ended: bool) -> None: ...
    def on_sent(self, stream_id: int, count: int) -> None: ...
    def on_reset(self, stream_id: int, code: int) -> None: ...
    def on_go_away(self, last_stream_id: int) -> None: ...
    def on_ping_ack(self) -> None: ...
    def on_lost(self, why: str) -> None: ...


class Writer(Protocol):
    """A connection that gathers what it has to write."""

    def flush(self) -> None: ...


class Traffic:
    """What connections share: a buffer to read into, and who has something to write.

    All that is written while one piece of input is handled leaves in one system call for each
    connection, at the end of it; what is written at another time, in the loop's next turn.
    """

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(_READ_BYTES))
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Writer] = []
        self._handling = False
        self._scheduled = False

    def begin(self) -> None:
        """A piece of input is handled from now on."""
        self._handling = True

    def end(self) -> None:
        """It is handled."""
        self._handling = False
        self._flush()

    def add(self, peer: Writer) -> None:
        """``peer`` has something to write, for the first time since it was flushed."""
        self._waiting.append(peer)
        if not self._handling and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        waiting, self._waiting = self._waiting, []
        for peer in waiting:
            peer.flush()
