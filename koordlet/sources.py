"""The front's threads that ask where workloads and configuration come from (hazard H10).

Each source publishes its newest answer; a failure keeps the last good one with its age.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

import structlog

from koordlet.clock import Clock
from koordlet.model.pods import PodRecord
from koordlet.pods.source import SourceError
from koordlet.protocol.problem import Problem
from koordlet.report import SourceState, SourceStatus

RELIST_S = 10.0
# A runtime names a container only some time after its directory appeared.
AFTER_CHANGE_S = (0.0, 0.05, 0.15, 0.4, 1.0)
LISTS_PER_S = 5
RETRY_FIRST_S = 1.0


class RelistPace:
    """When to list next: every RELIST_S, soon and repeatedly after a change, never too often.

    After a failure soon again, then less and less often up to RELIST_S.
    """

    def __init__(self) -> None:
        self._due: list[float] = [float("-inf")]
        self._retry_s = RETRY_FIRST_S
        self._recent: deque[float] = deque(maxlen=LISTS_PER_S)

    def changed(self, now_s: float) -> None:
        """The tree changed at ``now_s``."""
        self._due = [now_s + offset for offset in AFTER_CHANGE_S]

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next list."""
        earliest = self._due[0]
        if len(self._recent) == LISTS_PER_S:
            earliest = max(earliest, self._recent[0] + 1.0)
        return max(0.0, earliest - now_s)

    def asked(self, now_s: float) -> None:
        """A list is asked for at ``now_s``."""
        self._recent.append(now_s)
        self._due = [due for due in self._due if due > now_s] or [now_s + RELIST_S]

    def answered(self) -> None:
        """The answer was good."""
        self._retry_s = RETRY_FIRST_S

    def failed(self, now_s: float) -> None:
        """The answer, at ``now_s``, was no list."""
        self._due = sorted({*self._due, now_s + self._retry_s})
        self._retry_s = min(self._retry_s * 2, RELIST_S)


class ListClient(Protocol):
    """What a source is asked by; ``warnings`` are about the last list."""

    @property
    def warnings(self) -> tuple[Problem, ...]: ...

    def list_records(self) -> tuple[PodRecord, ...]: ...


def _fault(where: str, fault: Exception) -> Problem:
    what = f"an answer that koordlet cannot read ({fault!r:.200}); the last good list is kept"
    return Problem("source-fault", where, what, remedy="report it with koordlet's log")


class ListSource:
    """A thread that lists pods from one place: CRI or the kubelet."""

    def __init__(
        self,
        name: str,
        detail: str,
        client: ListClient,
        clock: Clock,
        publish: Callable[[str, tuple[PodRecord, ...] | Problem], None],
        status: Callable[[SourceStatus], None],
    ) -> None:
        self._name = name
        self._detail = detail
        self._client = client
        self._clock = clock
        self._publish = publish
        self._status = status
        self._pace = RelistPace()
        self._wake = threading.Condition()
        self._stopped = False
        self._answered_at_s: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"source-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._wake:
            self._stopped = True
            self._wake.notify()

    def relist(self) -> None:
        """Ask again now, and a few times more within a second."""
        with self._wake:
            self._pace.changed(self._clock.now_s())
            self._wake.notify()

    def _run(self) -> None:
        while self._wait():
            self._once()

    def _wait(self) -> bool:
        with self._wake:
            while not self._stopped:
                wait_s = self._pace.wait_s(self._clock.now_s())
                if wait_s <= 0:
                    self._pace.asked(self._clock.now_s())
                    return True
                self._wake.wait(wait_s)
        return False

    def _once(self) -> None:
        try:
            records = self._client.list_records()
        except SourceError as error:
            self._failed(error.problem)
            return
        except Exception as fault:  # noqa: BLE001 - a thread that died would never list again
            structlog.get_logger("sources").exception("source failed", source=self._name)
            self._failed(_fault(self._detail, fault))
            return
        self._answered_at_s = self._clock.now_s()
        with self._wake:
            self._pace.answered()
        self._publish(self._name, records)
        warnings = self._client.warnings
        self._status(SourceStatus(self._name, SourceState.OK, self._detail, 0.0, warnings))

    def _failed(self, problem: Problem) -> None:
        with self._wake:
            self._pace.failed(self._clock.now_s())
        state, age_s = SourceState.FAILED, None
        if self._answered_at_s is not None:
            state, age_s = SourceState.STALE, self._clock.now_s() - self._answered_at_s
        self._publish(self._name, problem)
        self._status(SourceStatus(self._name, state, self._detail, age_s, (problem,)))
