"""The front's thread that keeps the audit trail on disk."""

from __future__ import annotations

import queue
import sqlite3
import threading
from pathlib import Path

import structlog

from koordlet.clock import Clock
from koordlet.protocol.problem import Problem
from koordlet.report import SourceState, SourceStatus
from koordlet.resexecutor.audit import AuditEvent, AuditStore
from koordlet.setaside import set_aside

QUEUE_LIMIT = 1024
PRUNE_EVERY_S = 600.0
STOP_S = 3.0


def open_audit(path: Path, keep_days: float) -> tuple[AuditStore, Problem | None]:
    """The audit store at ``path``. A file that is no database is put aside; where the disk takes
    none at all events are kept in memory, until this process ends. The problem says which.
    """
    try:
        return AuditStore(path, keep_days=keep_days), None
    except sqlite3.OperationalError as error:
        memory = AuditStore(Path(":memory:"), keep_days=keep_days)
        why, remedy = f"cannot be written: {error}", "make room; events are in memory until then"
        return memory, Problem("audit-not-stored", str(path), why, remedy=remedy)
    except sqlite3.DatabaseError as error:
        why = f"{error}; put aside as {set_aside(path)}, and begun anew"
        return AuditStore(path, keep_days=keep_days), Problem("audit-damaged", str(path), why)


class AuditWriter:
    """A thread that stores audit events; the tick never waits for its disk (hazard H15).

    ``problem`` is what the store had to say when it was opened.
    """

    def __init__(self, store: AuditStore, clock: Clock, problem: Problem | None = None) -> None:
        self._store = store
        self._clock = clock
        self._problem = problem
        self._queue: queue.Queue[tuple[AuditEvent, ...] | None] = queue.Queue(maxsize=QUEUE_LIMIT)
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self.dropped = 0

    def trouble(self) -> SourceStatus | None:
        """How the store is doing, where that is not well."""
        problems = () if self._problem is None else (self._problem,)
        if self.dropped:
            what = f"{self.dropped} events were lost: the disk refused them, or was too slow"
            lost = Problem("audit-lost", "audit.db", what, remedy="see the log and the disk")
            problems = (*problems, lost)
        if not problems:
            return None
        return SourceStatus("audit", SourceState.STALE, "audit.db", None, problems)

    def start(self) -> None:
        self._thread.start()

    def put(self, events: tuple[AuditEvent, ...]) -> None:
        """Queue events; when the disk cannot keep up they are counted as dropped."""
        try:
            self._queue.put_nowait(events)
        except queue.Full:
            self.dropped += len(events)

    def stop(self) -> None:
        """Store what is queued, then end; a disk that does not answer is given up on."""
        try:
            self._queue.put(None, timeout=STOP_S)
        except queue.Full:
            return
        self._thread.join(timeout=STOP_S)

    def _run(self) -> None:
        log = structlog.get_logger("audit")
        pruned_at_s = float("-inf")
        works = True
        while (events := self._queue.get()) is not None:
            try:
                self._store.append(events)
                if self._clock.now_s() - pruned_at_s > PRUNE_EVERY_S:
                    pruned_at_s = self._clock.now_s()
                    self._store.prune(self._clock.wall_s())
            except sqlite3.Error as error:
                self.dropped += len(events)
                if works:
                    log.warning("audit events are lost", error=str(error))
                works = False
            else:
                if not works:
                    log.warning("audit events are stored again", lost=self.dropped)
                works = True
