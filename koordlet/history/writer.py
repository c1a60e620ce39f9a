"""The front's thread that keeps the history on disk; no other one waits for that (hazard H15)."""

from __future__ import annotations

import queue
import sqlite3
import threading
import time
from pathlib import Path

import structlog

from koordlet.history.levels import MINUTE_S
from koordlet.history.recorder import Piece
from koordlet.history.rollup import roll_up
from koordlet.history.store import HistoryStore, Limits
from koordlet.protocol.problem import Problem
from koordlet.report import SourceState, SourceStatus
from koordlet.setaside import set_aside

PIECES_WAITING = 4
STEPS_A_MINUTE = 20
"""Of making room: after a long stop a day's minutes are merged in some ten minutes."""
BREATH_S = 0.02
STOP_S = 3.0


class HistoryWriter:
    """Rolls pieces up and stores them. A minute that the disk refuses is lost and counted; a file
    that is no sound database is put aside. ``limits`` may be replaced at any time.
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        self._path = path
        self.limits = limits
        self._queue: queue.Queue[Piece | None] = queue.Queue(maxsize=PIECES_WAITING)
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._stopping = threading.Event()
        self._log = structlog.get_logger("history")
        self._store: HistoryStore | None = None
        self._refused = ""
        self._damaged: Problem | None = None
        self.lost_minutes = 0

    def start(self) -> None:
        self._thread.start()

    def put(self, piece: Piece) -> None:
        """Take a piece; where the disk is far behind it is lost."""
        try:
            self._queue.put_nowait(piece)
        except queue.Full:
            self._lost("the disk is too slow")

    def stop(self) -> None:
        """Store what waits, then end; a disk that does not answer is given up on."""
        self._stopping.set()
        try:
            self._queue.put(None, timeout=STOP_S)
        except queue.Full:
            return
        self._thread.join(timeout=STOP_S)

    def trouble(self) -> SourceStatus | None:
        """How the store is doing, where that is not well, or was not since the start."""
        problems = [] if self._damaged is None else [self._damaged]
        if self._refused:
            what = f"{self._refused}; {self.lost_minutes} minutes have no roll-ups"
            remedy = "make room on its file system; koordlet goes on by itself then"
            problems.append(Problem("history-not-stored", str(self._path), what, remedy=remedy))
        if not problems:
            return None
        return SourceStatus("history", SourceState.STALE, "history.db", None, tuple(problems))

    def _run(self) -> None:
        self._attempt(None)
        while (piece := self._queue.get()) is not None:
            self._attempt(piece)
        if self._store is not None:
            self._store.close()

    def _attempt(self, piece: Piece | None) -> None:
        """Store a piece; with None only open the file, so that there is one to read."""
        minutes = 0 if piece is None else 1
        try:
            store = self._opened()
            if piece is not None:
                self._keep(store, piece)
        except (sqlite3.OperationalError, OSError) as error:
            self._close()
            self._lost(str(error), minutes)
        except sqlite3.DatabaseError as error:
            self._close()
            self._begin_anew(error, minutes)
        else:
            self._stored()

    def _opened(self) -> HistoryStore:
        if self._store is None:
            self._store = HistoryStore(self._path)
        return self._store

    def _keep(self, store: HistoryStore, piece: Piece) -> None:
        store.append(piece.minute, roll_up(piece, store.numbers, self._breathe))
        now_s = (piece.minute + 1) * MINUTE_S
        for _ in range(STEPS_A_MINUTE):
            if self._stopping.is_set() or not store.settle(
                now_s, self.limits, trusts_clock=piece.steady, breathe=self._breathe
            ):
                return

    def _breathe(self) -> None:
        """Others of this process have their turn, unless it ends (hazard H10)."""
        if not self._stopping.is_set():
            time.sleep(BREATH_S)

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _begin_anew(self, error: sqlite3.DatabaseError, minutes: int) -> None:
        try:
            aside = set_aside(self._path)
            self._opened()
        except (sqlite3.Error, OSError) as fault:
            self._lost(f"{error}; it cannot be begun anew: {fault}", minutes)
            return
        what = f"{error}; put aside as {aside}, and begun anew"
        self._damaged = Problem("history-damaged", str(self._path), what)
        self._log.error("history begins anew", why=str(self._damaged))
        self.lost_minutes += minutes

    def _lost(self, why: str, minutes: int = 1) -> None:
        self.lost_minutes += minutes
        if not self._refused:
            self._log.warning("history is not stored", error=why)
        self._refused = why

    def _stored(self) -> None:
        if self._refused:
            self._log.warning("history is stored again", lost_minutes=self.lost_minutes)
        self._refused = ""
