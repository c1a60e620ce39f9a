"""A unix socket that somebody else serves: connected to without waiting."""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

_FIRST_PAUSE_S = 0.02
_LAST_PAUSE_S = 0.5
_UCRED = struct.Struct("3i")


class Unreachable(Exception):
    """Nobody answers there now; the text says where and why."""


class Endpoint:
    """One socket path. After a failure it is not tried again for a moment, then less and less."""

    def __init__(
        self,
        path: Path,
        *,
        trusted_uids: frozenset[int] | None = None,
        last_pause_s: float = _LAST_PAUSE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``trusted_uids`` are those that may serve it; None is anybody."""
        self.path = path
        self.why_away = ""
        self._trusted_uids = trusted_uids
        self._last_pause_s = last_pause_s
        self._clock = clock
        self._pause_s = _FIRST_PAUSE_S
        self._retry_at_s = 0.0

    def connect(self) -> socket.socket:
        """A connected, non-blocking socket. Raises Unreachable, at once."""
        now_s = self._clock()
        if self.why_away and now_s < self._retry_at_s:
            raise Unreachable(self.why_away)
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            connected.connect(str(self.path))
            self._check(connected)
        except OSError as error:
            connected.close()
            self._note_failure(now_s, _reason(error))
            raise Unreachable(self.why_away) from error
        self.why_away, self._pause_s = "", _FIRST_PAUSE_S
        return connected

    def _check(self, connected: socket.socket) -> None:
        uid = peer_uid(connected)
        if self._trusted_uids is not None and uid not in self._trusted_uids:
            raise OSError(errno.EPERM, f"it is served by uid {uid}, which is not trusted")

    def _note_failure(self, now_s: float, reason: str) -> None:
        self.why_away = f'connection error: desc = "dial unix {self.path}: {reason}"'
        self._retry_at_s = now_s + self._pause_s
        self._pause_s = min(self._pause_s * 2, self._last_pause_s)


def _reason(error: OSError) -> str:
    if error.errno == errno.EAGAIN:
        return "its queue of connections is full"
    return error.strerror or str(error)


def peer_uid(connected: socket.socket) -> int:
    """The uid of the process at the other end when it began to listen or to connect."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(raw)[1])
