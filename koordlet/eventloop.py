"""Readiness of a handful of file descriptors, with a deadline; nothing but poll(2)."""

from __future__ import annotations

import select
from collections.abc import Callable


class EventLoop:
    """Calls a handler when its descriptor is ready; one thread, no callbacks in callbacks."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[int], None]] = {}

    def watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        """Call ``handler(revents)`` when ``fd`` shows one of ``events`` (select.POLL*)."""
        self._poll.register(fd, events)
        self._handlers[fd] = handler

    def change(self, fd: int, events: int) -> None:
        """Wait for other events on a watched ``fd``."""
        self._poll.modify(fd, events)

    def forget(self, fd: int) -> None:
        """Stop watching ``fd``; harmless where it was not watched."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def wait(self, timeout_s: float) -> None:
        """Handle what is ready within ``timeout_s`` seconds; signals wake it by their own fd."""
        for fd, events in self._poll.poll(max(0.0, timeout_s) * 1000):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(events)
