"""Header blocks (HPACK, RFC 7541): decoded by a library, encoded without a table of our own.

What is encoded never refers to earlier blocks, so blocks of many peers may be mixed on one
connection, delayed or left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpack import Decoder, HPACKError

from runtimeproxy.wire import frames

Header = tuple[bytes, bytes]
Headers = Sequence[Header]

MAX_LIST_BYTES = 1 << 20
_CACHE_ENTRIES = 4096
_INDEXED = 0x80  # a field that is in the table already; nothing else begins so high
_NO_TABLE = b"\x20"  # a table size update to 0: the first thing that we ever say
_STATIC_PAIRS: dict[Header, bytes] = {
    (b":method", b"POST"): b"\x83",
    (b":method", b"GET"): b"\x82",
    (b":path", b"/"): b"\x84",
    (b":scheme", b"http"): b"\x86",
    (b":scheme", b"https"): b"\x87",
    (b":status", b"200"): b"\x88",
}


class HeaderDecoder:
    """Blocks of one connection, in their order."""

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=MAX_LIST_BYTES)
        self._indexed: dict[bytes, Headers] = {}

    def decode(self, block: bytes) -> Headers:
        """Name and value of each header, as bytes. Raises ProtocolError."""
        known = self._indexed.get(block)
        if known is not None:
            return known
        try:
            headers = tuple(self._decoder.decode(block, raw=True))
        except HPACKError as error:
            raise frames.ProtocolError(frames.COMPRESSION_ERROR, str(error)) from error
        if block and min(block) >= _INDEXED:
            self._indexed[block] = headers  # the same again means the same, until the table changes
        else:
            self._indexed.clear()
        return headers


class HeaderEncoder:
    """Blocks of one connection; frequent headers are encoded once."""

    def __init__(self) -> None:
        self._known: dict[Header, bytes] = dict(_STATIC_PAIRS)
        self._prefix = _NO_TABLE

    def encode(self, headers: Headers) -> bytes:
        known = self._known
        parts = [known.get(pair) or self._literal(pair) for pair in headers]
        block = self._prefix + b"".join(parts)
        self._prefix = b""
        return block

    def _literal(self, pair: Header) -> bytes:
        name, value = pair
        literal = b"\x00" + _string(name) + _string(value)
        if name != b"grpc-timeout" and len(value) <= 256:
            if len(self._known) >= _CACHE_ENTRIES:
                self._known = dict(_STATIC_PAIRS)
            self._known[name, value] = literal
        return literal


def _string(text: bytes) -> bytes:
    """A string literal without Huffman coding: length with a prefix of 7 bits."""
    length = len(text)
    if length < 0x7F:
        return bytes((length,)) + text
    length -= 0x7F
    number = bytearray(b"\x7f")
    while length >= 0x80:
        number.append(length & 0x7F | 0x80)
        length >>= 7
    number.append(length)
    return bytes(number) + text
