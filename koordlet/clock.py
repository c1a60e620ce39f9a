"""Time as an argument: the composition root passes a Clock, tests pass their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds for decisions, wall seconds only as a label (case PP-17)."""

    def now_s(self) -> float:
        """Monotonic seconds."""
        ...

    def wall_s(self) -> float:
        """Seconds since the epoch, to print; never subtracted."""
        ...


class SystemClock:
    """The host's clocks."""

    def now_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()
