"""The thread that writes files which may block: one writer for each such file (hazard H11)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from koordlet.host.cgroup import Cgroups
from koordlet.model.actions import Target
from koordlet.resexecutor.ordering import Step

QUEUE_LIMIT = 256


@dataclass(frozen=True, slots=True)
class EffectResult:
    """What came of the steps for one file: ``errno`` 0 where all were taken."""

    key: Target
    text: str
    errno: int


@dataclass(frozen=True, slots=True)
class Stuck:
    """A write that the kernel has not answered; its process cannot be stopped until it has."""

    key: Target
    text: str


class Effects:
    """Writes in the order of submission; for one file only the newest that has not begun counts.

    ``cgroups`` is this thread's own (its file descriptors are not shared). The thread is a daemon:
    a write stuck in the kernel never keeps the process from ending.
    """

    def __init__(self, cgroups: Cgroups, *, limit: int = QUEUE_LIMIT) -> None:
        self._cgroups = cgroups
        self._limit = limit
        self._queue: OrderedDict[Target, tuple[Step, ...]] = OrderedDict()
        self._results: list[EffectResult] = []
        self._now: Stuck | None = None
        self._stopping = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="effects", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def submit(self, steps: tuple[Step, ...]) -> bool:
        """Queue the steps for one file; False where the queue is full or stopping."""
        key = steps[-1].key
        with self._changed:
            if self._stopping or (len(self._queue) >= self._limit and key not in self._queue):
                return False
            self._queue[key] = steps
            self._changed.notify_all()
        return True

    def drain(self) -> tuple[EffectResult, ...]:
        """Results since the last call."""
        with self._changed:
            results, self._results = tuple(self._results), []
        return results

    def stuck(self) -> Stuck | None:
        """The write that is in the kernel now."""
        with self._changed:
            return self._now

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until all is written; False where that takes longer."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._queue and self._now is None, timeout=timeout_s
            )

    def stop(self, timeout_s: float) -> Stuck | None:
        """Write what is queued and end; after ``timeout_s`` gives back what is stuck instead."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return self.stuck()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._queue) or self._stopping)
                if not self._queue:
                    return
                key, steps = self._queue.popitem(last=False)
                self._now = Stuck(key, steps[-1].text)
            number = self._write(steps)
            with self._changed:
                self._now = None
                self._results.append(EffectResult(key, steps[-1].text, number))
                self._changed.notify_all()

    def _write(self, steps: tuple[Step, ...]) -> int:
        for step in steps:
            try:
                self._cgroups.write(step.target, step.knob, step.text)
            except OSError as error:
                return error.errno or -1
        return 0
