"""The core's end of the connection: the newest front gets everything, then only changes."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from koordlet import ipc
from koordlet.eventloop import EventLoop


class CoreLink:
    """Listens for the front, hands its messages on, and sends without ever waiting.

    ``fresh`` is True from a connection's start until ``sent_whole``, and again once a report was
    lost to a front that does not read: the next report must then hold every part.
    """

    def __init__(self, path: Path, loop: EventLoop, handle: Callable[[Any], None]) -> None:
        self._path = path
        self._loop = loop
        self._handle = handle
        self._listener: socket.socket = ipc.listen(path)
        self._channel: ipc.Channel | None = None
        self.fresh = False
        loop.watch(self._listener.fileno(), select.POLLIN, lambda _events: self._accept())

    @property
    def wants_write(self) -> bool:
        """True while something is still on its way to the front."""
        return self._channel is not None and self._channel.wants_write

    def sent_whole(self) -> None:
        """The front now has every part; changes are enough from here on."""
        self.fresh = False

    def send(self, message: object, *, droppable: bool = False) -> bool:
        """True where a front is there and takes it; a droppable message may be lost to one that
        does not read.
        """
        channel = self._channel
        if channel is None:
            return False
        try:
            taken = channel.send(message, droppable=droppable)
        except ipc.ChannelClosedError:
            self._lost()
            return False
        self.fresh = self.fresh or not taken
        self._update_interest(channel)
        return taken

    def _accept(self) -> None:
        channel = ipc.accept(self._listener)
        if channel is None:
            return
        self._lost()  # a front that was restarted replaces the one that died
        self._channel = channel
        self.fresh = True
        self._loop.watch(channel.fileno(), select.POLLIN, lambda _events: self._on_ready(channel))

    def _on_ready(self, channel: ipc.Channel) -> None:
        try:
            channel.flush()
            messages = channel.receive()
        except ipc.ChannelClosedError:
            self._lost()
            return
        self._update_interest(channel)
        for message in messages:
            self._handle(message)

    def _update_interest(self, channel: ipc.Channel) -> None:
        events = select.POLLIN | (select.POLLOUT if channel.wants_write else 0)
        self._loop.change(channel.fileno(), events)

    def _lost(self) -> None:
        if self._channel is None:
            return
        structlog.get_logger("core").info("front disconnected")
        self._loop.forget(self._channel.fileno())
        self._channel.close()
        self._channel = None
        self.fresh = False

    def close(self) -> None:
        """Leave no socket file that nobody listens on."""
        self._lost()
        self._loop.forget(self._listener.fileno())
        self._listener.close()
        self._path.unlink(missing_ok=True)
