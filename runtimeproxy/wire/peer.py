"""One HTTP/2 connection, either end of it: frames to events and back, with flow control.

The window of a stream that we receive opens again only when its data was handed on
(``consumed``). So a slow reader on the other side holds back at most one window of its own
stream, and never another stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from runtimeproxy.wire import frames
from runtimeproxy.wire.frames import ProtocolError
from runtimeproxy.wire.headers import HeaderDecoder, HeaderEncoder, Headers
from runtimeproxy.wire.traffic import Events, Traffic

OUR_FRAME_BYTES = 131_072
OUR_WINDOW = 4 << 20
_CONNECTION_WINDOW = 1 << 30
_MAX_BLOCK_BYTES = 1 << 20
_WRITE_BUFFER_BYTES = 1 << 20
_LAST_USED_ID = 1 << 30  # ids above are left alone: a new connection is due long before


class _Stream:
    """Flow control of one stream, and what waits for the peer's window."""

    __slots__ = ("ended_here", "ended_there", "queue", "unacked", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.unacked = 0
        self.queue: deque[tuple[bytes | Headers, bool]] = deque()
        self.ended_here = False
        self.ended_there = False


class Peer(asyncio.BufferedProtocol):
    """``client_side`` is our role: the one that opens streams."""

    def __init__(self, events: Events, traffic: Traffic, *, client_side: bool) -> None:
        self._events = events
        self._traffic = traffic
        self._client_side = client_side
        self._transport: asyncio.Transport | None = None
        self._why_lost = ""
        self._preface_left = b"" if client_side else frames.PREFACE
        self._splitter = frames.Splitter(OUR_FRAME_BYTES)
        self._decoder = HeaderDecoder()
        self._encoder = HeaderEncoder()
        self._streams: dict[int, _Stream] = {}
        self._waiting: dict[int, _Stream] = {}  # streams with a queue
        self._block: tuple[int, bool, bytearray] | None = None
        self._next_id = 1
        self._last_id = 0  # the highest that the peer opened
        self._refuse_above = frames.MAX_STREAM_ID
        self._window = frames.DEFAULT_WINDOW
        self._initial_window = frames.DEFAULT_WINDOW
        self._max_frame = frames.DEFAULT_FRAME_BYTES
        self._max_streams = frames.MAX_STREAM_ID
        self._unacked = 0
        self._writable = True
        self._out: list[bytes] = []
        self._handlers: dict[int, Callable[[int, int, bytes], None]] = {
            frames.DATA: self._got_data,
            frames.HEADERS: self._got_headers,
            frames.CONTINUATION: self._got_continuation,
            frames.RST_STREAM: self._got_reset,
            frames.SETTINGS: self._got_settings,
            frames.PUSH_PROMISE: self._got_push,
            frames.PING: self._got_ping,
            frames.GOAWAY: self._got_go_away,
            frames.WINDOW_UPDATE: self._got_window,
        }
        self._greet()

    def _greet(self) -> None:
        values = {
            frames.SETTINGS_INITIAL_WINDOW_SIZE: OUR_WINDOW,
            frames.SETTINGS_MAX_FRAME_SIZE: OUR_FRAME_BYTES,
        }
        if self._client_side:
            values[frames.SETTINGS_ENABLE_PUSH] = 0
            self._write(frames.PREFACE)
        self._write(frames.settings(values))
        self._write(frames.window_update(0, _CONNECTION_WINDOW - frames.DEFAULT_WINDOW))

    # -- what the owner does -------------------------------------------------------------------

    @property
    def can_open(self) -> bool:
        """Whether the peer takes one more stream on this connection."""
        return len(self._streams) < self._max_streams and self._next_id < _LAST_USED_ID

    @property
    def busy(self) -> bool:
        """Whether streams are under way, or their last data still waits to be sent."""
        return bool(self._streams)

    def open_stream(self) -> int:
        """The id of a new stream; its headers must be the next that is sent."""
        stream_id = self._next_id
        self._next_id += 2
        self._streams[stream_id] = _Stream(self._initial_window)
        return stream_id

    def send_headers(self, stream_id: int, headers: Headers, *, ended: bool) -> None:
        """Headers, or trailers behind data that may still wait for the peer's window."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.ended_here:
            return
        if stream.queue:
            stream.queue.append((headers, ended))
        else:
            self._write_headers(stream_id, stream, headers, ended)

    def send_data(self, stream_id: int, data: bytes, *, ended: bool) -> None:
        """Data; ``on_sent`` follows for all of it, at once or when the peer's window opens."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.ended_here:
            return
        stream.queue.append((data, ended))
        self._drain(stream_id, stream)

    def consumed(self, stream_id: int, count: int) -> None:
        """``count`` bytes of the peer's were handed on: it may send as many again."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.ended_there:
            return
        stream.unacked += count
        if stream.unacked * 2 >= OUR_WINDOW:
            self._write(frames.window_update(stream_id, stream.unacked))
            stream.unacked = 0

    def send_reset(self, stream_id: int, code: int) -> None:
        """End a stream both ways; nothing of it is told any more."""
        if self._streams.pop(stream_id, None) is not None:
            self._waiting.pop(stream_id, None)
            self._write(frames.reset(stream_id, code))

    def say_goodbye(self) -> None:
        """Ask the peer to open no more streams; those under way still arrive. A ping follows."""
        self._write(frames.go_away(frames.MAX_STREAM_ID, frames.NO_ERROR))
        self._write(frames.frame(frames.PING, 0, 0, b"\0" * 8))

    def refuse_more(self) -> None:
        """Streams that the peer opens from now on are not looked at; it opens them elsewhere."""
        self._refuse_above = self._last_id
        self._write(frames.go_away(self._last_id, frames.NO_ERROR))

    def close(self) -> None:
        """Send what is to be sent, and close."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    # -- the transport -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._streams.clear()
        self._waiting.clear()
        self._events.on_lost(self._why_lost or (str(exc) if exc else "connection closed"))

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._drain_all()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._traffic.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._traffic.begin()
        try:
            self.received(bytes(self._traffic.buffer[:nbytes]))
        finally:
            self._traffic.end()

    def received(self, data: bytes) -> None:
        """The next bytes of the peer."""
        try:
            if self._preface_left:
                data = self._without_preface(data)
            for kind, flags, stream_id, payload in self._splitter.feed(data):
                if self._block is not None and kind != frames.CONTINUATION:
                    raise ProtocolError(frames.PROTOCOL_ERROR, "a header block was interrupted")
                handler = self._handlers.get(kind)
                if handler is not None:
                    handler(flags, stream_id, payload)
        except ProtocolError as error:
            self._fail(error)

    def _without_preface(self, data: bytes) -> bytes:
        expected = self._preface_left[: len(data)]
        if not data.startswith(expected):
            raise ProtocolError(frames.PROTOCOL_ERROR, "this is not HTTP/2")
        self._preface_left = self._preface_left[len(expected) :]
        return data[len(expected) :]

    def _fail(self, error: ProtocolError) -> None:
        self._why_lost = f"protocol error: {error}"
        self._write(frames.go_away(self._last_id, error.code, str(error)))
        self.close()

    def _write(self, data: bytes) -> None:
        if not self._out:
            self._traffic.add(self)
        self._out.append(data)

    def flush(self) -> None:
        """Write what has gathered; before there is a transport, it goes on gathering."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._out:
            data, self._out = b"".join(self._out), []
            self._transport.write(data)

    # -- what is sent --------------------------------------------------------------------------

    def _write_headers(
        self, stream_id: int, stream: _Stream, headers: Headers, ended: bool
    ) -> None:
        block = self._encoder.encode(headers)
        flags = frames.END_STREAM if ended else 0
        kind = frames.HEADERS
        while len(block) > self._max_frame:
            self._write(frames.frame(kind, flags, stream_id, block[: self._max_frame]))
            block, kind, flags = block[self._max_frame :], frames.CONTINUATION, 0
        self._write(frames.frame(kind, flags | frames.END_HEADERS, stream_id, block))
        if ended:
            self._ended_here(stream_id, stream)

    def _drain_all(self) -> None:
        for stream_id, stream in list(self._waiting.items()):
            self._drain(stream_id, stream)

    def _drain(self, stream_id: int, stream: _Stream) -> None:
        """Send what the windows allow of what waits, in order."""
        queue = stream.queue
        sent = 0
        while queue and self._writable:
            payload, ended = queue[0]
            if not isinstance(payload, bytes):
                queue.popleft()
                self._write_headers(stream_id, stream, payload, ended)
                continue
            room = min(stream.window, self._window)
            if len(payload) > room:
                if room <= 0:
                    break
                queue[0] = (payload[room:], ended)
                payload, ended = payload[:room], False
            else:
                queue.popleft()
            sent += len(payload)
            self._write_data(stream_id, stream, payload, ended)
        if queue:
            self._waiting[stream_id] = stream
        elif self._waiting:
            self._waiting.pop(stream_id, None)
        if sent:
            self._events.on_sent(stream_id, sent)

    def _write_data(self, stream_id: int, stream: _Stream, payload: bytes, ended: bool) -> None:
        stream.window -= len(payload)
        self._window -= len(payload)
        last = frames.END_STREAM if ended else 0
        while len(payload) > self._max_frame:
            self._write(frames.header(self._max_frame, frames.DATA, 0, stream_id))
            self._write(payload[: self._max_frame])
            payload = payload[self._max_frame :]
        self._write(frames.header(len(payload), frames.DATA, last, stream_id))
        self._write(payload)
        if ended:
            self._ended_here(stream_id, stream)

    def _ended_here(self, stream_id: int, stream: _Stream) -> None:
        stream.ended_here = True
        if stream.ended_there:
            self._streams.pop(stream_id, None)
        elif not self._client_side:  # answered in full: what the client has left to say is void
            self.send_reset(stream_id, frames.NO_ERROR)

    def _ended_there(self, stream_id: int, stream: _Stream) -> None:
        stream.ended_there = True
        if stream.ended_here:
            self._streams.pop(stream_id, None)

    # -- what is received ----------------------------------------------------------------------

    def _got_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        block = frames.unpadded(flags, payload)
        ended = bool(flags & frames.END_STREAM)
        if flags & frames.END_HEADERS:
            self._got_block(stream_id, block, ended)
        else:
            self._block = (stream_id, ended, bytearray(block))

    def _got_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != stream_id:
            raise ProtocolError(frames.PROTOCOL_ERROR, "CONTINUATION of nothing")
        _, ended, block = self._block
        block += payload
        if len(block) > _MAX_BLOCK_BYTES:
            raise ProtocolError(frames.ENHANCE_YOUR_CALM, "header block too long")
        if flags & frames.END_HEADERS:
            self._block = None
            self._got_block(stream_id, bytes(block), ended)

    def _got_block(self, stream_id: int, block: bytes, ended: bool) -> None:
        headers = self._decoder.decode(block)  # always: blocks build on one another
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._opened_by_peer(stream_id)
        if stream is None:
            return
        if ended:
            self._ended_there(stream_id, stream)
        self._events.on_headers(stream_id, headers, ended=ended)

    def _opened_by_peer(self, stream_id: int) -> _Stream | None:
        """None where the stream is over already, or where no more are taken."""
        if self._client_side or stream_id <= self._last_id or stream_id > self._refuse_above:
            return None
        if stream_id % 2 == 0:
            raise ProtocolError(frames.PROTOCOL_ERROR, f"stream {stream_id} opened by a client")
        self._last_id = stream_id
        stream = self._streams[stream_id] = _Stream(self._initial_window)
        return stream

    def _got_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._unacked += len(payload)
        if self._unacked * 2 >= _CONNECTION_WINDOW:
            self._write(frames.window_update(0, self._unacked))
            self._unacked = 0
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        ended = bool(flags & frames.END_STREAM)
        if flags & frames.PADDED:
            data = frames.unpadded(flags & frames.PADDED, payload)
            self.consumed(stream_id, len(payload) - len(data))
            payload = data
        if ended:
            self._ended_there(stream_id, stream)
        self._events.on_data(stream_id, payload, ended=ended)

    def _got_reset(self, flags: int, stream_id: int, payload: bytes) -> None:
        code = frames.parse_uint32(payload, "RST_STREAM")
        if self._streams.pop(stream_id, None) is not None:
            self._waiting.pop(stream_id, None)
            self._events.on_reset(stream_id, code)

    def _got_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if flags & frames.ACK:
            return
        values = frames.parse_settings(payload)
        self._max_frame = values.get(frames.SETTINGS_MAX_FRAME_SIZE, self._max_frame)
        if not frames.DEFAULT_FRAME_BYTES <= self._max_frame <= frames.MAX_FRAME_BYTES:
            raise ProtocolError(frames.PROTOCOL_ERROR, f"MAX_FRAME_SIZE {self._max_frame}")
        self._max_streams = values.get(frames.SETTINGS_MAX_CONCURRENT_STREAMS, self._max_streams)
        window = values.get(frames.SETTINGS_INITIAL_WINDOW_SIZE, self._initial_window)
        if window > frames.MAX_WINDOW:
            raise ProtocolError(frames.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE {window}")
        for stream in self._streams.values():
            stream.window += window - self._initial_window
        self._initial_window = window
        self._write(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._drain_all()

    def _got_push(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise ProtocolError(frames.PROTOCOL_ERROR, "PUSH_PROMISE")

    def _got_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if flags & frames.ACK:
            self._events.on_ping_ack()
        else:
            self._write(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _got_go_away(self, flags: int, stream_id: int, payload: bytes) -> None:
        last_stream_id, _ = frames.parse_go_away(payload)
        self._events.on_go_away(last_stream_id)

    def _got_window(self, flags: int, stream_id: int, payload: bytes) -> None:
        increment = frames.parse_uint32(payload, "WINDOW_UPDATE") & frames.MAX_WINDOW
        if stream_id == 0:
            self._window += increment
            self._drain_all()
        elif (stream := self._streams.get(stream_id)) is not None:
            stream.window += increment
            if stream.queue:
                self._drain(stream_id, stream)
