"""How often what is read (hazard H29), spread so that no tick does all of it."""

from __future__ import annotations

import math

CPU_EVERY_S = 1.0
QUIET_EVERY_S = 5.0  # containers of a pod whose use does not move
DETAIL_EVERY_S = 10.0  # memory, throttling, pressure, IO
JITTER_S = 0.1  # a tick that comes this much early still counts as in time
ABSENT_FOR_S = 60.0  # a file that this cgroup does not have is looked for again so often
_GOLDEN = 0.6180339887498949


class Phases:
    """Gives each newcomer a place in the round, far from those before it: multiples of the golden
    ratio divide a circle evenly, however many come.
    """

    def __init__(self) -> None:
        self._arrivals = 0

    def take(self) -> float:
        """A phase in [0, 1)."""
        self._arrivals += 1
        return (self._arrivals * _GOLDEN) % 1.0


def is_due(now_s: float, due_s: float) -> bool:
    """Whether ``due_s`` has come, or comes before the next tick would be on time."""
    return now_s >= due_s - JITTER_S


def next_due(now_s: float, period_s: float, phase: float) -> float:
    """The next instant of this phase that is more than half a period away."""
    offset_s = phase * period_s
    rounds = math.floor((now_s + period_s / 2 - offset_s) / period_s) + 1
    return offset_s + rounds * period_s
