"""gRPC on top of HTTP/2: status codes, messages in DATA, deadlines in headers."""

from __future__ import annotations

from enum import IntEnum
from urllib.parse import quote_from_bytes, unquote_to_bytes

from runtimeproxy.wire.headers import Header, Headers

PREFIX_BYTES = 5


class Code(IntEnum):
    """gRPC's status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class StatusError(Exception):
    """A call that ended with a status other than OK."""

    def __init__(self, code: Code, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code
        self.details = details


_RESPONSE: tuple[Header, ...] = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_CODES = {str(int(code)).encode(): code for code in Code}
# What a message may hold unescaped: printable ASCII but the percent sign.
_PLAIN = bytes(byte for byte in range(0x20, 0x7F) if byte != 0x25)


def trailers(code: Code, details: str) -> Headers:
    """The trailers that end a call with ``code``."""
    message = quote_from_bytes(details.encode(), safe=_PLAIN).encode()
    return ((b"grpc-status", str(int(code)).encode()), (b"grpc-message", message))


def trailers_only(code: Code, details: str) -> Headers:
    """The one header block of a call that ends before any answer."""
    return (*_RESPONSE, *trailers(code, details))


def find(headers: Headers, name: bytes) -> bytes:
    """The first value of ``name``, or empty."""
    for key, value in headers:
        if key == name:
            return value
    return b""


def code_of(headers: Headers) -> Code | None:
    """The status in these headers or trailers; None where there is none."""
    text = find(headers, b"grpc-status")
    return _CODES.get(text, Code.UNKNOWN) if text else None


def details_of(headers: Headers) -> str:
    return unquote_to_bytes(find(headers, b"grpc-message")).decode(errors="replace")


def pack(message: bytes) -> bytes:
    """One uncompressed message as it goes into DATA."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def unpack_or_none(data: bytes) -> bytes | None:
    """The one message of a unary call; None where it is not one whole, plain message."""
    if len(data) < PREFIX_BYTES or data[0] != 0:
        return None
    if int.from_bytes(data[1:PREFIX_BYTES], "big") != len(data) - PREFIX_BYTES:
        return None
    return data[PREFIX_BYTES:]


_TIMEOUT_UNIT_S = {b"n": 1e-9, b"u": 1e-6, b"m": 1e-3, b"S": 1.0, b"M": 60.0, b"H": 3600.0}


def parse_timeout(text: bytes) -> float | None:
    """Seconds of a ``grpc-timeout``; None where there is no such limit or it is not one."""
    number, unit = text[:-1], _TIMEOUT_UNIT_S.get(text[-1:])
    if unit is None or not number.isdigit() or len(number) > 8:
        return None
    return int(number) * unit


def format_timeout(seconds: float) -> bytes:
    """A ``grpc-timeout`` of at most 8 digits, rounded up."""
    for unit, scale in ((b"u", 1e6), (b"m", 1e3), (b"S", 1.0)):
        count = int(max(seconds, 0.0) * scale) + 1
        if count < 100_000_000:
            return str(count).encode() + unit
    return b"99999999S"


class MessageMeter:
    """Watches the messages of one direction of a call go by, against a limit of bytes each."""

    __slots__ = ("_left", "_limit", "_prefix")

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._left = 0  # of the message that is going by
        self._prefix = b""

    def too_large(self, data: bytes) -> int:
        """The size of the first message that is above the limit and begins here, or 0."""
        if self._left > len(data) and not self._prefix:
            self._left -= len(data)
            return 0
        offset = self._left
        self._left = 0
        while offset < len(data):
            part = data[offset : offset + PREFIX_BYTES - len(self._prefix)]
            self._prefix += part
            offset += len(part)
            if len(self._prefix) < PREFIX_BYTES:
                return 0
            size = int.from_bytes(self._prefix[1:], "big")
            if size > self._limit:
                return size
            self._prefix = b""
            offset += size
        self._left = offset - len(data)
        return 0
