"""Collects what every tick measured, minute by minute, in arrays of 32-bit floats.

The core sends a value when it changed; until the next one it holds. So a row is kept for each
change, with the second of the minute at which it began, and lasts until the row after it: busy
containers, which are sampled more often than quiet ones, weigh no more than these.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from koordlet.clock import Clock
from koordlet.history.fields import GROUP_COUNT, NODE_BUDGET, ROOT_QUOTA, SERIES, pick
from koordlet.metrics.readings import EntityKey, Level, Readings, Scope, Values
from koordlet.model.actions import Plan
from koordlet.report import (
    CoreStatus,
    TickReport,
    be_budget_cores,
    be_quotas_cores,
    measured_as,
)

SECONDS_PER_MINUTE = 60
SILENT_S = 5.0
"""The core reports every tick; what it said before a longer silence is not taken for true."""
SHORT_LIFE_S = 10.0
"""What came and went in less leaves no history of its own; its pod's and tier's have it."""
MOST_LEFT = 4096
"""So many tracks of things that left are kept until the minute ends: a bound, not a quota."""
STEP_S = 2.0
STEADY_S = 3600.0
"""After a step of the wall clock it is not believed about age for so long."""
_GAP = math.nan

Decision = tuple[EntityKey, int]
"""What a number that suppression decided is about, and its group."""


class Track:
    """The rows of one group of values of one thing: second of the minute, then the values."""

    __slots__ = ("ends_s", "group", "has_gaps", "is_new", "key", "rows", "width")

    def __init__(self, key: EntityKey, group: int, *, is_new: bool) -> None:
        self.key = key
        self.group = group
        self.width = 1 + len(SERIES[group])
        self.rows = array("f")
        self.has_gaps = False
        self.is_new = is_new  # its first row is not the last one of the minute before
        self.ends_s: float | None = None

    def add(self, at_s: float, values: Values) -> None:
        """Append a row; one of the same instant is replaced."""
        rows = self.rows
        if rows and rows[-self.width] == at_s:
            del rows[-self.width :]
        rows.append(at_s)
        if None in values:
            self.has_gaps = True
            rows.extend([_GAP if value is None else value for value in values])
        else:
            rows.extend(values)  # type: ignore[arg-type]

    def continued(self) -> Track:
        """The track of the next minute, which begins with what holds at its start."""
        after = Track(self.key, self.group, is_new=False)
        after.rows = self.rows[-self.width :]
        after.rows[0] = 0.0
        after.has_gaps = self.has_gaps and any(map(math.isnan, after.rows))
        return after


@dataclass(frozen=True, slots=True)
class Piece:
    """What was measured in one minute by the wall clock, or in a part of it.

    ``minute`` counts from the epoch; ``lasted_s`` is the time that reports covered. The clock is
    ``steady`` where it has not been set for an hour.
    """

    minute: int
    lasted_s: float
    tracks: tuple[Track, ...]
    steady: bool


class Recorder:
    """Takes every report, and hands out a Piece as soon as its minute is over. For one thread.

    ``tick_s`` is the time between two reports, and may be changed.
    """

    def __init__(self, clock: Clock, put: Callable[[Piece], None], *, tick_s: float) -> None:
        self._clock = clock
        self._put = put
        self.tick_s = tick_s
        self._keys: dict[int, EntityKey] = {}
        self._tracks: dict[int, Track] = {}
        self._left: list[Track] = []
        self._decided: dict[Decision, int] = {}  # numbered from -1 down: the core's begin at 0
        self._core: CoreStatus | None = None
        self._plan: Plan | None = None
        self._minute = -1
        self._elapsed_s = 0.0
        self._at_s = 0.0
        self._heard_s: float | None = None
        self._ahead_s = 0.0  # of the wall clock before the monotonic one
        self._steady_since_s = 0.0

    def observe(self, report: TickReport) -> None:
        """Put one report in."""
        now_s, wall_s = self._clock.now_s(), self._clock.wall_s()
        self._advance(now_s, wall_s)
        minute = int(wall_s // SECONDS_PER_MINUTE)
        if minute != self._minute:
            self._cut(minute)
        self._read(report.readings)
        if report.status is not None or report.plan is not None:
            self._core = report.status or self._core
            self._plan = report.plan or self._plan
            self._decide()

    def finish(self) -> None:
        """Hand out the piece of the running minute: this process ends."""
        if self._heard_s is not None:
            self._cut(self._minute)

    def _advance(self, now_s: float, wall_s: float) -> None:
        if self._heard_s is None:
            self._steady_since_s = now_s
        else:
            elapsed_s = now_s - self._heard_s
            # After a silence nobody knows how long the last values held: for one tick at least.
            is_silence = elapsed_s > max(SILENT_S, 3 * self.tick_s)
            self._elapsed_s += self.tick_s if is_silence else elapsed_s
            if abs(wall_s - now_s - self._ahead_s) > STEP_S:
                self._steady_since_s = now_s
        self._ahead_s = wall_s - now_s
        self._heard_s = now_s
        self._at_s = _sixteenths(self._elapsed_s)

    def _cut(self, minute: int) -> None:
        tracks = (*self._left, *self._tracks.values())
        if tracks and self._at_s > 0.0:
            steady = (self._heard_s or 0.0) - self._steady_since_s >= STEADY_S
            self._put(Piece(self._minute, self._at_s, tracks, steady))
        self._left = []
        self._keys = self._keys.copy()  # as small as what is in it
        self._tracks = {number: track.continued() for number, track in self._tracks.items()}
        self._minute = minute
        self._elapsed_s = self._at_s = 0.0

    def _read(self, readings: Readings) -> None:
        if readings.scope is Scope.WHOLE:  # another core, with other numbers
            for index in list(self._keys):
                self._leave(index)
            self._decided.clear()
            self._core = self._plan = None
        for index in readings.gone:
            self._leave(index)
        for index, key in readings.keys:
            self._keys[index] = key
            for known in self._tracks_of(index):
                known.key = key
        at_s, tracks = self._at_s, self._tracks
        for index, group, values in readings.changed:
            track = tracks.get(index * GROUP_COUNT + group) or self._new_track(index, group)
            if track is not None:
                track.add(at_s, pick(group, values))

    def _new_track(self, index: int, group: int) -> Track | None:
        key = self._keys.get(index)
        if key is None:
            return None
        made = self._tracks[index * GROUP_COUNT + group] = Track(key, group, is_new=True)
        return made

    def _tracks_of(self, index: int) -> Iterator[Track]:
        for number in range(index * GROUP_COUNT, (index + 1) * GROUP_COUNT):
            if number in self._tracks:
                yield self._tracks[number]

    def _leave(self, index: int) -> None:
        self._keys.pop(index, None)
        for number in range(index * GROUP_COUNT, (index + 1) * GROUP_COUNT):
            left = self._tracks.pop(number, None)
            if left is None:
                continue
            lived_s = self._at_s - left.rows[0] if left.is_new else SHORT_LIFE_S
            if lived_s >= SHORT_LIFE_S and len(self._left) < MOST_LEFT:
                left.ends_s = self._at_s
                self._left.append(left)

    def _decide(self) -> None:
        """Budget and quotas as of now; what is decided no more has a gap."""
        found = dict(_decisions(self._core, self._plan))
        for what in [what for what in self._decided if what not in found]:
            self._leave(self._decided.pop(what))
        for what, cores in found.items():
            key, group = what
            if what not in self._decided:
                index = self._decided[what] = min(self._decided.values(), default=0) - 1
                self._keys[index] = key
            index = self._decided[what]
            track = self._tracks.get(index * GROUP_COUNT + group) or self._new_track(index, group)
            if track is not None:
                track.add(self._at_s, (cores,))


def _decisions(core: CoreStatus | None, plan: Plan | None) -> Iterator[tuple[Decision, float]]:
    if core is None:
        return
    budget_cores = be_budget_cores(core)
    if budget_cores is not None:
        yield (EntityKey(Level.NODE), NODE_BUDGET), budget_cores
    quotas_cores = {} if plan is None else be_quotas_cores(core, plan)
    for root in core.be_roots:
        if root.path in quotas_cores:
            level, name = measured_as(root)
            yield (EntityKey(level, name=name), ROOT_QUOTA), quotas_cores[root.path]


def _sixteenths(seconds: float) -> float:
    """Seconds as a number that a 32-bit float holds exactly."""
    return round(seconds * 16) / 16
