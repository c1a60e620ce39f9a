"""A recorder on a clock that is moved by hand, and a store of roll-ups beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from koordlet.history.query import HistoryReader, Line, RangeQuery
from koordlet.history.recorder import Piece, Recorder
from koordlet.history.rollup import roll_up
from koordlet.history.store import HistoryStore
from koordlet.metrics.readings import FIELDS, EntityKey, Group, Level, Readings, Scope, Values
from koordlet.report import TickCause, TickReport, TickStats

T0_S = 1_767_225_600.0  # 2026-01-01 00:00:00 UTC, a whole hour
POD = EntityKey(Level.POD, namespace="shop", pod="web", uid="uid-web")


class TwoClocks:
    """A monotonic clock, and a wall clock that can be set."""

    def __init__(self) -> None:
        self.at_s = 1_000.0
        self.ahead_s = T0_S - self.at_s

    def now_s(self) -> float:
        return self.at_s

    def wall_s(self) -> float:
        return self.at_s + self.ahead_s


class HistoryRig:
    """Ticks a recorder; its pieces go to ``pieces``, and with ``store_in`` to a store there."""

    def __init__(self, store_in: Path | None = None) -> None:
        self.clock = TwoClocks()
        self.pieces: list[Piece] = []
        self.path = (store_in or Path("/nowhere")) / "history.db"
        self.store = None if store_in is None else HistoryStore(self.path)
        self.recorder = Recorder(self.clock, self._put, tick_s=1.0)
        self.ticks = 0

    def _put(self, piece: Piece) -> None:
        self.pieces.append(piece)
        if self.store is not None:
            self.store.append(piece.minute, roll_up(piece, self.store.numbers))

    def tick(
        self,
        *changed: tuple[int, int, Values],
        keys: Sequence[tuple[int, EntityKey]] = (),
        gone: Sequence[int] = (),
        scope: Scope = Scope.DELTA,
        after_s: float = 1.0,
        **parts: Any,
    ) -> None:
        """One report, ``after_s`` after the one before."""
        self.clock.at_s += after_s if self.ticks else 0.0
        self.ticks += 1
        stats = TickStats(self.ticks, 0.0, TickCause.REGULAR, 0.0, 0.0, 0, 0, 0, False)
        readings = Readings(self.ticks, scope, tuple(keys), changed, tuple(gone))
        self.recorder.observe(TickReport(stats, readings, **parts))

    def idle(self, seconds: int) -> None:
        """So many reports in which nothing changed."""
        for _ in range(seconds):
            self.tick()

    def lines(
        self, since_s: float = T0_S, until_s: float = T0_S + 3_600, **asked: Any
    ) -> list[Line]:
        """What the store has of pod web's CPU use, or of whatever is asked for."""
        usual: dict[str, Any] = {"target": "shop/web", "series": ("used_cpu_cores",), "step_s": 60}
        query = RangeQuery(since_s, until_s, **(usual | asked))
        return list(HistoryReader(self.path).query(query).lines)


def cpu(index: int, cores: float | None) -> tuple[int, int, Values]:
    """CPU use as the core sends it."""
    return index, int(Group.CPU), (cores, None if cores is None else 1_000.0)


def detail(index: int, **values: float) -> tuple[int, int, Values]:
    """Memory, throttling, pressure and IO; what is not given is not known."""
    return index, int(Group.DETAIL), tuple(values.get(name) for name in FIELDS[Group.DETAIL])
