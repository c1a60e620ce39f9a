"""What systemd is told: sd_notify(3), a datagram to ``$NOTIFY_SOCKET``. Without one nobody listens
and nothing is sent.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from koordlet.units import US_PER_S

TICKS_MISSED = 3
"""A watchdog shorter than so many ticks is lengthened: slow ticks are no stuck ones."""


class ServiceManager:
    """Sends without ever waiting: a tick must not depend on whether PID 1 reads its mail."""

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        """``address`` as in ``$NOTIFY_SOCKET``; ``watchdog_s`` 0 where none watches."""
        self.watchdog_s = watchdog_s
        self._address = "\0" + address[1:] if address.startswith("@") else address

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> ServiceManager:
        """Who started this process, by ``$NOTIFY_SOCKET`` and ``$WATCHDOG_USEC``."""
        watchdog_us = environment.get("WATCHDOG_USEC", "")
        watchdog_s = int(watchdog_us) / US_PER_S if watchdog_us.isdecimal() else 0.0
        return cls(environment.get("NOTIFY_SOCKET", ""), watchdog_s)

    def tell(self, *lines: str) -> bool:
        """Whether the datagram was taken, or nobody listens anyway."""
        if not self._address:
            return True
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        try:
            with socket.socket(socket.AF_UNIX, kind) as sender:
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return False
        return True


class Heartbeat:
    """The core's word at the end of each tick: alive, ready, and one line of status."""

    def __init__(self, manager: ServiceManager, tick_s: float) -> None:
        self._manager = manager
        self._watchdog_s = manager.watchdog_s
        self._is_ready = False
        self._status = ""
        self.pace(tick_s)

    def pace(self, tick_s: float) -> None:
        """Ticks come every ``tick_s`` seconds from now on."""
        wanted_s = max(self._manager.watchdog_s, TICKS_MISSED * tick_s)
        if not self._manager.watchdog_s or wanted_s == self._watchdog_s:
            return
        if self._manager.tell(f"WATCHDOG_USEC={round(wanted_s * US_PER_S)}"):
            self._watchdog_s = wanted_s

    def beat(self, status: str, *, serves: bool) -> None:
        """A tick has ended; ``serves`` once its report reached a front, whose API is then up."""
        lines = ["WATCHDOG=1"]
        if serves and not self._is_ready:
            lines.append("READY=1")
        if status != self._status:
            lines.append(f"STATUS={status}")
        if self._manager.tell(*lines):  # else once more after the next tick
            self._is_ready = self._is_ready or serves
            self._status = status
