"""HTTP/2 and gRPC of the proxy: whatever arrives, nothing breaks but the connection it came on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.wire import frames, status
from runtimeproxy.wire.headers import HeaderDecoder, HeaderEncoder, Headers
from runtimeproxy.wire.peer import OUR_WINDOW, Peer
from runtimeproxy.wire.status import Code, MessageMeter
from runtimeproxy.wire.traffic import Traffic

HEADERS: Headers = ((b":method", b"POST"), (b":path", b"/a/B"), (b"x-bin", b"\x00\xff"))


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class Told:
    """Events, as a list."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def on_headers(self, stream_id: int, headers: Headers, *, ended: bool) -> None:
        self.events.append(("headers", stream_id, tuple(map(tuple, headers)), ended))

    def on_data(self, stream_id: int, data: bytes, *, ended: bool) -> None:
        self.events.append(("data", stream_id, data, ended))

    def on_sent(self, stream_id: int, count: int) -> None:
        self.events.append(("sent", stream_id, count))

    def on_reset(self, stream_id: int, code: int) -> None:
        self.events.append(("reset", stream_id, code))

    def on_go_away(self, last_stream_id: int) -> None:
        self.events.append(("go away", last_stream_id))

    def on_ping_ack(self) -> None:
        self.events.append(("ping ack",))

    def on_lost(self, why: str) -> None:
        self.events.append(("lost", why))


class End:
    """One end of a connection."""

    def __init__(self, *, client_side: bool) -> None:
        self.told = Told()
        self.transport = Transport()
        self.peer = Peer(self.told, Traffic(), client_side=client_side)
        self.peer.connection_made(self.transport)

    def take(self) -> bytes:
        """What it has to say, now."""
        self.peer.flush()
        said, self.transport.written = bytes(self.transport.written), bytearray()
        return said

    def frames(self) -> list[frames.Frame]:
        return list(frames.Splitter(frames.MAX_FRAME_BYTES).feed(self.take()))


def with_loop(test: Callable[[], None]) -> None:
    async def body() -> None:
        test()

    asyncio.run(body())


def exchange(one: End, other: End) -> None:
    """Until both have nothing to say any more."""
    while True:
        said, answered = one.take(), other.take()
        if not said and not answered:
            return
        other.peer.received(said)
        one.peer.received(answered)


def talking() -> tuple[End, End]:
    client, server = End(client_side=True), End(client_side=False)
    exchange(client, server)
    return client, server


def test_a_call_from_one_end_to_the_other() -> None:
    def body() -> None:
        client, server = talking()
        stream_id = client.peer.open_stream()
        client.peer.send_headers(stream_id, HEADERS, ended=False)
        client.peer.send_data(stream_id, b"question", ended=True)
        exchange(client, server)
        assert server.told.events == [
            ("headers", 1, HEADERS, False),
            ("data", 1, b"question", True),
        ]
        server.peer.send_headers(1, ((b":status", b"200"),), ended=False)
        server.peer.send_data(1, b"answer", ended=False)
        server.peer.send_headers(1, ((b"grpc-status", b"0"),), ended=True)
        exchange(client, server)
        assert [event[0] for event in client.told.events] == ["sent", "headers", "data", "headers"]
        assert not client.peer.busy and not server.peer.busy

    with_loop(body)


def test_data_waits_for_the_window_and_trailers_wait_for_data() -> None:
    def body() -> None:
        client, server = talking()
        stream_id = client.peer.open_stream()
        client.peer.send_headers(stream_id, HEADERS, ended=False)
        client.peer.send_data(stream_id, bytes(OUR_WINDOW + 10), ended=False)
        client.peer.send_headers(stream_id, ((b"t", b"1"),), ended=True)
        exchange(client, server)
        got = sum(len(event[2]) for event in server.told.events if event[0] == "data")
        assert got == OUR_WINDOW
        assert server.told.events[-1][0] == "data"
        server.peer.consumed(stream_id, got)
        exchange(client, server)
        got = sum(len(event[2]) for event in server.told.events if event[0] == "data")
        assert got == OUR_WINDOW + 10
        assert server.told.events[-1] == ("headers", 1, ((b"t", b"1"),), True)
        sent = sum(event[2] for event in client.told.events if event[0] == "sent")
        assert sent == got

    with_loop(body)


def test_a_full_transport_holds_data_back() -> None:
    def body() -> None:
        client, server = talking()
        stream_id = client.peer.open_stream()
        client.peer.send_headers(stream_id, HEADERS, ended=False)
        client.peer.pause_writing()
        client.peer.send_data(stream_id, b"later", ended=True)
        exchange(client, server)
        assert [event[0] for event in server.told.events] == ["headers"]
        client.peer.resume_writing()
        exchange(client, server)
        assert server.told.events[-1] == ("data", 1, b"later", True)

    with_loop(body)


def test_an_answer_before_the_end_of_the_question_ends_the_stream() -> None:
    def body() -> None:
        client, server = talking()
        stream_id = client.peer.open_stream()
        client.peer.send_headers(stream_id, HEADERS, ended=False)
        exchange(client, server)
        server.peer.send_headers(1, status.trailers_only(Code.UNIMPLEMENTED, "no"), ended=True)
        exchange(client, server)
        assert ("reset", 1, frames.NO_ERROR) in client.told.events
        assert not server.peer.busy
        client.peer.send_data(stream_id, b"late", ended=True)
        exchange(client, server)

    with_loop(body)


def test_a_goodbye_tells_which_streams_were_looked_at() -> None:
    def body() -> None:
        client, server = talking()
        for _ in range(2):
            client.peer.send_headers(client.peer.open_stream(), HEADERS, ended=True)
        exchange(client, server)
        server.peer.say_goodbye()
        exchange(client, server)
        assert client.told.events == [("go away", frames.MAX_STREAM_ID)]
        assert server.told.events[-1] == ("ping ack",)
        server.peer.refuse_more()
        client.peer.send_headers(client.peer.open_stream(), HEADERS, ended=True)
        exchange(client, server)
        assert client.told.events[-1] == ("go away", 3)
        assert [event for event in server.told.events if event[0] == "headers"][-1][1] == 3

    with_loop(body)


def test_header_blocks_are_cut_to_the_peers_frames() -> None:
    def body() -> None:
        client, server = talking()
        long = ((b":path", b"/x"), (b"long", b"v" * 200_000))
        client.peer.send_headers(client.peer.open_stream(), long, ended=True)
        exchange(client, server)
        assert server.told.events == [("headers", 1, long, True)]

    with_loop(body)


def test_padding_and_priority_are_taken_off() -> None:
    def body() -> None:
        _, server = talking()
        block = HeaderEncoder().encode(HEADERS)
        payload = b"\x03" + b"\0\0\0\0\x10" + block + b"\0\0\0"
        flags = frames.PADDED | frames.HAS_PRIORITY | frames.END_HEADERS
        server.peer.received(frames.frame(frames.HEADERS, flags, 1, payload))
        data = frames.frame(frames.DATA, frames.PADDED | frames.END_STREAM, 1, b"\x02ab\0\0")
        server.peer.received(data)
        assert server.told.events == [("headers", 1, HEADERS, False), ("data", 1, b"ab", True)]

    with_loop(body)


@pytest.mark.parametrize(
    "frame",
    (
        frames.frame(frames.DATA, frames.PADDED, 1, b"\xff"),
        frames.frame(frames.HEADERS, frames.END_HEADERS, 2, b"\x82"),
        frames.frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"),
        frames.frame(frames.CONTINUATION, 0, 1, b""),
        frames.frame(frames.HEADERS, 0, 1) + frames.frame(frames.PING, 0, 0, b"12345678"),
        frames.frame(frames.SETTINGS, 0, 0, b"12345"),
        frames.settings({frames.SETTINGS_MAX_FRAME_SIZE: 1}),
        frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 1 << 31}),
        frames.frame(frames.PUSH_PROMISE, 0, 1, b""),
        frames.frame(frames.WINDOW_UPDATE, 0, 0, b""),
        frames.frame(frames.GOAWAY, 0, 0, b"1"),
        frames.header(1 << 23, frames.DATA, 0, 1),
    ),
    ids=str,
)
def test_what_breaks_the_protocol_ends_the_connection_with_a_reason(frame: bytes) -> None:
    def body() -> None:
        _, server = talking()
        if frame.startswith(frames.header(1, frames.DATA, frames.PADDED, 1)):
            opening = frames.frame(frames.HEADERS, frames.END_HEADERS, 1, b"\x82")
            server.peer.received(opening)
        server.peer.received(frame)
        assert server.transport.closed
        assert server.frames()[-1][0] == frames.GOAWAY
        assert server.frames() == []

    with_loop(body)


def test_what_is_no_http2_is_told_so() -> None:
    def body() -> None:
        server = End(client_side=False)
        server.peer.received(b"GET / HTTP/1.1\r\n\r\n")
        assert server.transport.closed
        server.peer.connection_lost(None)
        assert server.told.events == [("lost", "protocol error: this is not HTTP/2")]

    with_loop(body)


@given(st.lists(st.binary(max_size=200), max_size=20), st.booleans())
def test_noise_ends_connections_and_raises_nothing(chunks: list[bytes], greeted: bool) -> None:
    def body() -> None:
        server = End(client_side=False)
        if greeted:
            server.peer.received(frames.PREFACE)
        for chunk in chunks:
            if not server.transport.closed:
                server.peer.received(chunk)

    with_loop(body)


@given(st.data())
def test_a_talk_cut_anywhere_and_changed_anywhere_raises_nothing(data: st.DataObject) -> None:
    block = Encoder().encode(list(HEADERS))
    talk = bytearray(
        frames.PREFACE
        + frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 100_000})
        + frames.frame(frames.HEADERS, frames.END_HEADERS, 1, block)
        + frames.frame(frames.DATA, frames.END_STREAM, 1, status.pack(b"question"))
        + frames.window_update(0, 1000)
        + frames.frame(frames.HEADERS, 0, 3, block[:3])
        + frames.frame(frames.CONTINUATION, frames.END_HEADERS, 3, block[3:])
        + frames.reset(3, frames.CANCEL)
    )
    for _ in range(data.draw(st.integers(0, 4))):
        talk[data.draw(st.integers(24, len(talk) - 1))] = data.draw(st.integers(0, 255))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(talk)), max_size=6)))

    def body() -> None:
        server = End(client_side=False)
        for start, end in zip([0, *cuts], [*cuts, len(talk)], strict=True):
            if not server.transport.closed:
                server.peer.received(bytes(talk[start:end]))

    with_loop(body)


# -- headers

NAMES = st.binary(min_size=1, max_size=40)
LISTS = st.lists(st.tuples(NAMES, st.binary(max_size=400)), max_size=12)


@given(st.lists(LISTS, max_size=5))
def test_what_is_encoded_is_what_is_decoded(blocks: list[list[tuple[bytes, bytes]]]) -> None:
    encoder, decoder = HeaderEncoder(), HeaderDecoder()
    for headers in blocks:
        assert [tuple(pair) for pair in decoder.decode(encoder.encode(headers))] == headers


@given(LISTS, LISTS)
def test_blocks_do_not_build_on_one_another(
    first: list[tuple[bytes, bytes]], second: list[tuple[bytes, bytes]]
) -> None:
    encoder = HeaderEncoder()
    encoder.encode(first)
    assert [tuple(pair) for pair in HeaderDecoder().decode(encoder.encode(second))] == second


def test_a_bomb_of_headers_is_refused() -> None:
    encoder = Encoder()
    block = encoder.encode([(b"x", b"v" * 3000)]) + b"\xbe" * 2000
    with pytest.raises(frames.ProtocolError):
        HeaderDecoder().decode(block)


# -- gRPC


@given(st.text(max_size=100))
def test_status_messages_survive(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    trailers = status.trailers(Code.INTERNAL, text)
    assert all(0x20 <= byte < 0x7F for byte in status.find(trailers, b"grpc-message"))
    assert status.details_of(trailers) == text
    assert status.code_of(trailers) is Code.INTERNAL


@given(st.lists(st.binary(max_size=300), max_size=6), st.data())
def test_the_meter_finds_the_first_message_above_its_limit(
    messages: list[bytes], data: st.DataObject
) -> None:
    limit = 150
    stream = b"".join(map(status.pack, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    meter = MessageMeter(limit)
    found = 0
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found = found or meter.too_large(stream[start:end])
    assert found == next((len(one) for one in messages if len(one) > limit), 0)


def test_timeouts_as_grpc_writes_them() -> None:
    assert status.parse_timeout(b"100m") == pytest.approx(0.1)
    assert status.parse_timeout(b"2H") == 7200
    assert status.parse_timeout(b"119999941u") is None  # nine digits: not allowed
    for text in (b"", b"m", b"1", b"-1S", b"1x", b"\xff\xffS"):
        assert status.parse_timeout(text) is None
    for seconds in (0.0, 0.0001, 1.0, 99.9, 120.0, 86_400.0, 1e12):
        text = status.format_timeout(seconds)
        parsed = status.parse_timeout(text)
        assert parsed is not None and len(text) <= 9
        assert (
            parsed >= min(seconds, 99_999_998) and parsed < seconds * 1.02 + 0.001
        ) or parsed > 9e7


@given(st.binary(max_size=30))
def test_only_one_whole_plain_message_is_unpacked(data: bytes) -> None:
    message = status.unpack_or_none(data)
    assert message is None or status.pack(message) == data
    assert status.unpack_or_none(status.pack(data)) == data
