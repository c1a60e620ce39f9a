"""A D-Bus connection over a unix socket that waits for one answer at a time.

Messages are built and parsed by jeepney. The socket is ours: every call has a deadline, and
signals, which systemd sends to each direct connection unasked, are skipped unparsed.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal

from jeepney import DBusAddress, HeaderFields, Message, MessageType, Parser, new_method_call

_BUS = DBusAddress(
    "/org/freedesktop/DBus", bus_name="org.freedesktop.DBus", interface="org.freedesktop.DBus"
)
_FIXED_HEADER = 16
_BYTE_ORDERS: dict[int, Literal["little", "big"]] = {ord("l"): "little", ord("B"): "big"}
_SIGNAL = MessageType.signal.value
_READ = 1 << 16
_LONGEST_LINE = 512
_LONGEST_MESSAGE = 1 << 27  # the protocol's own limit


class BusError(Exception):
    """The bus or its other end cannot be talked to; the connection is of no more use."""


class CallError(Exception):
    """The other end said no: ``name`` is the error's D-Bus name, the text what it said."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text or name)
        self.name = name


class Bus:
    """One connection. Raises BusError from every method once something went wrong.

    ``is_direct``: the other end is the service itself, and no message bus that wants a Hello.
    """

    def __init__(self, path: str, *, is_direct: bool, timeout_s: float) -> None:
        """Connect to the socket at ``path`` and say who we are."""
        self._serials: Iterator[int] = itertools.count(1)
        self._buffer = bytearray()
        self._deadline_s = time.monotonic() + timeout_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connect(path)
            if not is_direct:
                self.call(new_method_call(_BUS, "Hello"), timeout_s)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def call(self, message: Message, timeout_s: float) -> tuple[Any, ...]:
        """The body of the answer. Raises CallError where the other end refuses."""
        self._deadline_s = time.monotonic() + timeout_s
        serial = next(self._serials)
        self._send(message.serialise(serial))
        while True:
            answer = self._next_message()
            fields = answer.header.fields
            if fields.get(HeaderFields.reply_serial) != serial:
                continue
            if answer.header.message_type is MessageType.error:
                text = answer.body[0] if answer.body else ""
                raise CallError(str(fields.get(HeaderFields.error_name, "")), str(text))
            return tuple(answer.body)

    def _connect(self, path: str) -> None:
        """SASL EXTERNAL: the kernel tells the other end our uid, we only name it.

        All of it goes out at once and nothing follows before the answer: what systemd reads along
        with BEGIN it does not look at before more comes.
        """
        try:
            self._socket.settimeout(self._left_s())
            self._socket.connect(path)
        except OSError as error:
            raise BusError(f"{path}: {error.strerror or error}") from error
        uid = str(os.geteuid()).encode().hex()
        self._send(f"\0AUTH EXTERNAL {uid}\r\nBEGIN\r\n".encode())
        line = self._line()
        if not line.startswith(b"OK "):
            raise BusError(f"{path}: does not let us in: {line[:80].decode(errors='replace')!r}")

    def _line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            if len(self._buffer) > _LONGEST_LINE:
                raise BusError("the answer to AUTH is no line of text")
            self._receive()
        line, _, rest = bytes(self._buffer).partition(b"\r\n")
        self._buffer[:] = rest
        return line

    def _next_message(self) -> Message:
        """The next message that is no signal."""
        while True:
            raw = self._frame()
            if raw[1] == _SIGNAL:
                continue
            parser = Parser()
            parser.add_data(raw)
            with suppress(ValueError, IndexError, KeyError):
                message = parser.get_next_message()
                if message is not None:
                    return message
            raise BusError("the other end sent no D-Bus message")

    def _frame(self) -> bytes:
        """One message as it came."""
        self._fill(_FIXED_HEADER)
        size = self._size()
        if size > _LONGEST_MESSAGE:
            raise BusError(f"the other end announced a message of {size} bytes")
        self._fill(size)
        frame = bytes(self._buffer[:size])
        del self._buffer[:size]
        return frame

    def _size(self) -> int:
        """Header, its fields up to a multiple of eight, body."""
        order = _BYTE_ORDERS.get(self._buffer[0])
        if order is None:
            raise BusError("the other end sent no D-Bus message")
        body, fields = (int.from_bytes(self._buffer[at : at + 4], order) for at in (4, 12))
        return _FIXED_HEADER + -(-fields // 8) * 8 + body

    def _fill(self, size: int) -> None:
        while len(self._buffer) < size:
            self._receive()

    def _receive(self) -> None:
        try:
            self._socket.settimeout(self._left_s())
            part = self._socket.recv(_READ)
        except OSError as error:
            raise BusError(f"no answer: {error.strerror or error}") from error
        if not part:
            raise BusError("the other end hung up")
        self._buffer += part

    def _send(self, data: bytes) -> None:
        try:
            self._socket.settimeout(self._left_s())
            self._socket.sendall(data)
        except OSError as error:
            raise BusError(f"cannot send: {error.strerror or error}") from error

    def _left_s(self) -> float:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise BusError("no answer within the time limit")
        return left_s
