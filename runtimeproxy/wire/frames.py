"""HTTP/2 frames (RFC 9113): cut out of a byte stream, and put together.

Only what a proxy of gRPC needs: no push, no priorities.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES = 9
DEFAULT_WINDOW = 65_535
DEFAULT_FRAME_BYTES = 16_384
MAX_FRAME_BYTES = 16_777_215
MAX_WINDOW = 2**31 - 1
MAX_STREAM_ID = 2**31 - 1

DATA = 0x0
HEADERS = 0x1
PRIORITY = 0x2
RST_STREAM = 0x3
SETTINGS = 0x4
PUSH_PROMISE = 0x5
PING = 0x6
GOAWAY = 0x7
WINDOW_UPDATE = 0x8
CONTINUATION = 0x9

END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

SETTINGS_HEADER_TABLE_SIZE = 0x1
SETTINGS_ENABLE_PUSH = 0x2
SETTINGS_MAX_CONCURRENT_STREAMS = 0x3
SETTINGS_INITIAL_WINDOW_SIZE = 0x4
SETTINGS_MAX_FRAME_SIZE = 0x5
SETTINGS_MAX_HEADER_LIST_SIZE = 0x6

NO_ERROR = 0x0
PROTOCOL_ERROR = 0x1
INTERNAL_ERROR = 0x2
FLOW_CONTROL_ERROR = 0x3
STREAM_CLOSED = 0x5
FRAME_SIZE_ERROR = 0x6
REFUSED_STREAM = 0x7
CANCEL = 0x8
COMPRESSION_ERROR = 0x9
ENHANCE_YOUR_CALM = 0xB

_HEADER = struct.Struct(">HBBBI")
_SETTING = struct.Struct(">HI")
_UINT32 = struct.Struct(">I")
_TWO_UINT32 = struct.Struct(">II")

Frame = tuple[int, int, int, bytes]
"""Type, flags, stream id, payload."""


class ProtocolError(Exception):
    """The peer broke the protocol; the whole connection ends with ``code``."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Splitter:
    """Whole frames out of chunks that are cut anywhere."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._rest = b""
        self._max = max_frame_bytes

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Every frame that is complete now. Raises ProtocolError for one that is too long."""
        data = self._rest + chunk if self._rest else chunk
        self._rest = b""
        offset, end = 0, len(data)
        while end - offset >= HEADER_BYTES:
            high, low, kind, flags, stream_id = _HEADER.unpack_from(data, offset)
            length = (high << 8) | low
            if length > self._max:
                raise ProtocolError(FRAME_SIZE_ERROR, f"frame of {length} bytes")
            start = offset + HEADER_BYTES
            if end - start < length:
                break
            offset = start + length
            yield kind, flags, stream_id & MAX_STREAM_ID, data[start:offset]
        self._rest = data[offset:] if offset else data


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One frame. The caller keeps to the peer's frame size."""
    return header(len(payload), kind, flags, stream_id) + payload


def header(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    """The nine bytes in front of a payload of ``length`` bytes."""
    return _HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream_id)


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in values.items()))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, _UINT32.pack(increment))


def reset(stream_id: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream_id, _UINT32.pack(code))


def go_away(last_stream_id: int, code: int, text: str = "") -> bytes:
    payload = _TWO_UINT32.pack(last_stream_id, code) + text.encode()[:256]
    return frame(GOAWAY, 0, 0, payload)


def parse_settings(payload: bytes) -> dict[int, int]:
    """Setting by number. Raises ProtocolError where the payload is no list of settings."""
    if len(payload) % _SETTING.size:
        raise ProtocolError(FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    return dict(_SETTING.iter_unpack(payload))


def parse_uint32(payload: bytes, what: str) -> int:
    """The one number of a WINDOW_UPDATE or RST_STREAM."""
    if len(payload) != _UINT32.size:
        raise ProtocolError(FRAME_SIZE_ERROR, f"{what} of {len(payload)} bytes")
    return int(_UINT32.unpack(payload)[0])


def parse_go_away(payload: bytes) -> tuple[int, int]:
    """Last stream id and error code."""
    if len(payload) < _TWO_UINT32.size:
        raise ProtocolError(FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
    last, code = _TWO_UINT32.unpack_from(payload)
    return last & MAX_STREAM_ID, code


def unpadded(flags: int, payload: bytes) -> bytes:
    """The payload of a DATA or HEADERS frame without padding and priority."""
    start, end = 0, len(payload)
    if flags & PADDED:
        start, end = 1, end - (payload[0] if payload else 0)
    if flags & HAS_PRIORITY:
        start += 5
    if start > end:
        raise ProtocolError(PROTOCOL_ERROR, "padding longer than the frame")
    return payload[start:end]
