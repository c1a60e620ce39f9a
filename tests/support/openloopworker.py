"""The process of the open-loop generator: sends at the given times, whatever the server does.

Run as a script, ``python -I -S openloopworker.py``, by tests.support.openloop. The first line of
stdin says where and what to send; each further line is one job, ``{"start_s", "offsets"}``: send a
request at each offset (seconds) after the monotonic time ``start_s``, each on a connection of its
own, and answer with one line of when it was sent and when its reply ended, both as offsets.

A late reply never delays a request: that would leave out just the moments that count (coordinated
omission). The process is to preempt whatever it measures, so it asks for real-time priority.
"""

import contextlib
import gc
import json
import os
import resource
import select
import socket
import sys
import time
from typing import Any

READ_BYTES = 1 << 18
Times = list[float | None]


def raise_priority() -> str:
    """Real-time where the cgroup allows it, else the highest nice value; what it came to."""
    with contextlib.suppress(OSError), open("/proc/self/timerslack_ns", "w") as file:
        file.write("1")
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        return "fifo"
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        return "nice -20"
    return "normal"


class Player:
    """One job in progress."""

    def __init__(self, settings: dict[str, Any], start_s: float, offsets: list[float]) -> None:
        self._address = settings["address"]
        self._request = settings["request"].encode()
        self._good = settings["reply_start"].encode()
        self._start_s = start_s
        self._offsets = offsets
        self._epoll = select.epoll()
        self._waiting: dict[int, tuple[socket.socket, int]] = {}
        self._begun: set[int] = set()
        self._bad: set[int] = set()
        self.sent: Times = [None] * len(offsets)
        self.done: Times = [None] * len(offsets)

    def play(self, patience_s: float) -> None:
        """Send everything on time, then wait for replies, ``patience_s`` after the last one."""
        number, count = 0, len(self._offsets)
        end_s = (self._offsets[-1] if self._offsets else 0.0) + patience_s
        while number < count or self._waiting:
            while number < count and self._offsets[number] <= self._now_s():
                self._send(number)
                number += 1
            until_s = self._offsets[number] if number < count else end_s
            if number == count and self._now_s() >= end_s:
                break
            self._read(max(0.0, until_s - self._now_s()))
        self._close()

    def _now_s(self) -> float:
        return time.monotonic() - self._start_s

    def _send(self, number: int) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            connection.connect(self._address)
            connection.send(self._request)
        except OSError:  # nobody listens, or the backlog is full: not sent
            connection.close()
            return
        self.sent[number] = self._now_s()
        self._waiting[connection.fileno()] = (connection, number)
        self._epoll.register(connection, select.EPOLLIN)

    def _read(self, timeout_s: float) -> None:
        """epoll alone waits in whole milliseconds; select(2) on it waits to the microsecond."""
        if not select.select([self._epoll], [], [], timeout_s)[0]:
            return
        for fd, _ in self._epoll.poll(0):
            connection, number = self._waiting[fd]
            try:
                data = connection.recv(READ_BYTES)
            except OSError:
                data = b""
                self._bad.add(number)
            if not data:
                self._end(fd, connection, number)
            elif number not in self._begun:
                self._begun.add(number)
                if not data.startswith(self._good):
                    self._bad.add(number)

    def _end(self, fd: int, connection: socket.socket, number: int) -> None:
        if number in self._begun and number not in self._bad:
            self.done[number] = self._now_s()
        del self._waiting[fd]
        connection.close()

    def _close(self) -> None:
        for connection, _ in self._waiting.values():
            connection.close()
        self._epoll.close()


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    gc.disable()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(json.dumps({"priority": raise_priority()}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        player = Player(settings, job["start_s"], job["offsets"])
        player.play(settings["patience_s"])
        print(json.dumps({"sent": player.sent, "done": player.done}), flush=True)


if __name__ == "__main__":
    main()
