"""Rings of counter samples: what a counter gained between two instants, never less than nothing.

Kept are not the raw numbers but totals that only grow. A step back (a restart, a reset by hand, a
wrap; case PP-15), a step that no machine can make, and a gap in time (suspend, overrun) add
nothing: the number found then is the new baseline.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

_ABSENT = float("nan")
_SLACK_S = 1.0
"""A late read: the clock is read once a tick, the counter up to this much later."""


def step_rate(
    before: float | None, after: float | None, elapsed_s: float, ceiling: float
) -> float | None:
    """What a counter gained per second from one reading to the next, at most ``ceiling``.

    None where one of them is missing, no time passed, or the step is impossible: the later reading
    is then only a new baseline.
    """
    if before is None or after is None or elapsed_s <= 0.0:
        return None
    gained = after - before
    if not 0 <= gained <= ceiling * (elapsed_s + _SLACK_S):
        return None
    return min(gained / elapsed_s, ceiling)


class CounterRing:
    """The newest ``capacity`` samples of counters that were read together, one instant each.

    ``ceilings`` has one entry per counter: the most it can gain in a second. A gap above ``gap_s``
    between two samples empties the ring. Time is monotonic seconds (case PP-17); a sample that is
    not later than the newest one is ignored.
    """

    __slots__ = (
        "_capacity",
        "_ceilings",
        "_columns",
        "_count",
        "_gap_s",
        "_newest",
        "_raws",
        "_seen_s",
        "_times",
        "_totals",
    )

    def __init__(self, capacity: int, ceilings: Sequence[float], gap_s: float) -> None:
        self._capacity = capacity
        self._ceilings = tuple(ceilings)
        self._gap_s = gap_s
        self._times = array("d", bytes(8 * capacity))
        self._columns = [array("d", bytes(8 * capacity)) for _ in ceilings]
        self._raws: list[float | None] = [None] * len(self._ceilings)
        self._seen_s = [0.0] * len(self._ceilings)
        self._totals = [0.0] * len(self._ceilings)
        self._count = 0
        self._newest = -1

    def __len__(self) -> int:
        return self._count

    @property
    def newest_s(self) -> float | None:
        """When the newest sample was taken."""
        return self._times[self._newest] if self._count else None

    def push(self, now_s: float, raws: Sequence[float | None]) -> None:
        """Append one sample; None is a counter that could not be read, and its total waits."""
        newest = self._newest
        if self._count:
            elapsed_s = now_s - self._times[newest]
            if elapsed_s <= 0.0:
                return
            if elapsed_s > self._gap_s:
                self.clear()
                newest = -1
        slot = newest + 1 if newest + 1 < self._capacity else 0
        self._times[slot] = now_s
        for column, raw in enumerate(raws):  # inlined: this loop runs a thousand times a tick
            if raw is None:
                self._columns[column][slot] = _ABSENT
            else:
                before = self._raws[column]
                if before is not None:
                    gained = raw - before
                    most = self._ceilings[column] * (now_s - self._seen_s[column] + _SLACK_S)
                    if 0 < gained <= most:
                        self._totals[column] += gained
                self._raws[column] = raw
                self._seen_s[column] = now_s
                self._columns[column][slot] = self._totals[column]
        self._newest = slot
        if self._count < self._capacity:
            self._count += 1

    def rebase(self, column: int) -> None:
        """The counter has left: whatever is found next time is another one's."""
        self._raws[column] = None

    def clear(self) -> None:
        """Forget every sample and baseline."""
        self._count = 0
        self._newest = -1
        for column in range(len(self._raws)):
            self._raws[column] = None
            self._totals[column] = 0.0

    def steps_back(self, column: int, window_s: float) -> int | None:
        """How many samples before the newest one lies the latest that is at least ``window_s``
        older and holds this counter; None where the ring does not reach back so far.
        """
        values, times, newest = self._columns[column], self._times, self._newest
        for steps in range(1, self._count):
            slot = newest - steps
            if times[newest] - times[slot] >= window_s and values[slot] == values[slot]:
                return steps
        return None

    def age_s(self, steps: int) -> float:
        """Seconds between the newest sample and the one ``steps`` before it."""
        return self._times[self._newest] - self._times[self._newest - steps]

    def gained(self, column: int, steps: int) -> float:
        """What the counter gained in the last ``steps`` intervals, as far as it was seen: from its
        first sight in that span to its last one. 0 where it was never seen.
        """
        values = self._columns[column]
        steps = min(steps, self._count - 1)
        for slot in range(self._newest - steps, self._newest + 1):
            if values[slot] == values[slot]:
                most = self._ceilings[column] * self.age_s(steps)
                return min(self._totals[column] - values[slot], most)
        return 0.0

    def rate_within(self, column: int, window_s: float) -> float | None:
        """Gain per second over the longest span of at most ``window_s`` seconds whose two ends
        were read; None where there is none or the newest sample could not be read.
        """
        values, times, newest = self._columns[column], self._times, self._newest
        last = values[newest]
        if last != last:
            return None
        for steps in range(self._count - 1, 0, -1):
            slot = newest - steps
            elapsed_s = times[newest] - times[slot]
            if elapsed_s <= window_s and values[slot] == values[slot]:
                return min((last - values[slot]) / elapsed_s, self._ceilings[column])
        return None
