"""Directory events by inotify: a new cgroup is known when it is made, not at the next scan."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from dataclasses import dataclass
from enum import Enum

from koordlet.protocol.problem import Problem, Severity

_IN_CREATE = 0x0000_0100
_IN_DELETE = 0x0000_0200
_IN_Q_OVERFLOW = 0x0000_4000
_IN_IGNORED = 0x0000_8000
_IN_ONLYDIR = 0x0100_0000
_IN_ISDIR = 0x4000_0000
_HEADER = struct.Struct("iIII")
_READ_BYTES = 65_536


class WatchUnavailable(Exception):
    """The kernel gives no (more) watches; poll instead. ``problem`` says why and what helps."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class Change(Enum):
    """What happened to a directory entry."""

    CREATED = "created"
    REMOVED = "removed"
    OVERFLOW = "overflow"  # events were lost: scan everything anew


@dataclass(frozen=True, slots=True)
class Event:
    """A directory ``name`` appeared in, or left, the watched ``directory``; both empty on overflow.

    A directory's own children may have been made before it could be watched: scan it once.
    """

    change: Change
    directory: str = ""
    name: str = ""


class Watch:
    """One inotify instance. ``fd`` becomes readable when ``read`` has something."""

    def __init__(self) -> None:
        """Raises WatchUnavailable where the user's instances are used up."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._paths: dict[int, str] = {}
        self._ids: dict[str, int] = {}
        self.fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise WatchUnavailable(_problem("inotify instance", ctypes.get_errno()))

    def add(self, directory: str) -> bool:
        """Watch ``directory`` for directories made and removed in it; False where it is not there.

        Raises WatchUnavailable where the user's watches are used up.
        """
        mask = _IN_CREATE | _IN_DELETE | _IN_ONLYDIR
        number = self._libc.inotify_add_watch(self.fd, os.fsencode(directory), mask)
        if number >= 0:
            self._paths[number] = directory
            self._ids[directory] = number
            return True
        code = ctypes.get_errno()
        if code in (errno.ENOENT, errno.ENOTDIR):
            return False
        raise WatchUnavailable(_problem(directory, code))

    def remove(self, directory: str) -> None:
        """Stop watching ``directory``; nothing happens where it was not watched."""
        number = self._ids.pop(directory, None)
        if number is not None:
            self._paths.pop(number, None)
            self._libc.inotify_rm_watch(self.fd, number)

    def read(self) -> tuple[Event, ...]:
        """The events since the last call, oldest first; never blocks."""
        events: list[Event] = []
        while True:
            try:
                data = os.read(self.fd, _READ_BYTES)
            except BlockingIOError:
                return tuple(events)
            events.extend(self._events(data))

    def close(self) -> None:
        """Give the instance back."""
        os.close(self.fd)

    def _events(self, data: bytes) -> list[Event]:
        found: list[Event] = []
        at = 0
        while at < len(data):
            number, mask, _, length = _HEADER.unpack_from(data, at)
            at += _HEADER.size
            name = data[at : at + length].rstrip(b"\0")
            at += length
            if mask & _IN_Q_OVERFLOW:
                found.append(Event(Change.OVERFLOW))
            elif mask & _IN_IGNORED:  # the directory itself has left
                self._ids.pop(self._paths.pop(number, ""), None)
            elif mask & _IN_ISDIR and number in self._paths:
                change = Change.CREATED if mask & _IN_CREATE else Change.REMOVED
                found.append(Event(change, self._paths[number], os.fsdecode(name)))
        return found


def _problem(where: str, code: int) -> Problem:
    limits = {
        errno.EMFILE: ("fs.inotify.max_user_instances", "instances"),
        errno.ENOSPC: ("fs.inotify.max_user_watches", "watches"),
    }
    limit, noun = limits.get(code, ("", "watches"))
    return Problem(
        code="inotify-unavailable",
        where=where,
        what=f"no inotify {noun}: {os.strerror(code)}; new containers are found by polling",
        limit=f"sysctl {limit}" if limit else "",
        remedy=f"raise sysctl {limit}" if limit else "",
        severity=Severity.WARNING,
    )
