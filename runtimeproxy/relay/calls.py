"""What is counted of the calls that go through: by method, code and time."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from dataclasses import dataclass, field

from runtimeproxy.wire.status import Code

MAX_METHODS = 128  # clients choose the names
OTHERS = "(others)"
_RECENT = 512
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, math.inf)


@dataclass(slots=True)
class MethodCount:
    """One method: ended calls by code, those under way, and how long the last ones took."""

    codes: Counter[Code] = field(default_factory=Counter)
    hooked: int = 0
    in_flight: int = 0
    total_s: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * len(BUCKETS_S))
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))

    @property
    def count(self) -> int:
        return sum(self.codes.values())

    @property
    def errors(self) -> int:
        return self.count - self.codes[Code.OK]

    def quantile_s(self, share: float) -> float | None:
        """Of the last calls; None before the first."""
        if not self.recent_s:
            return None
        ordered = sorted(self.recent_s)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class CallCounts:
    """Counts by method, of a bounded number of methods."""

    def __init__(self) -> None:
        self.methods: dict[str, MethodCount] = {}
        self._by_path: dict[bytes, MethodCount] = {}

    def begin(self, path: bytes) -> MethodCount:
        """A call of ``path`` began; give what comes back to ``end``."""
        count = self._by_path.get(path) or self._new(path)
        count.in_flight += 1
        return count

    def _new(self, path: bytes) -> MethodCount:
        if len(self._by_path) >= MAX_METHODS:
            return self.methods.setdefault(OTHERS, MethodCount())
        name = path.decode("ascii", "backslashreplace")[:200]
        count = self._by_path[path] = self.methods.setdefault(name, MethodCount())
        return count

    def end(self, count: MethodCount, code: Code, took_s: float) -> None:
        count.in_flight -= 1
        count.codes[code] += 1
        count.total_s += took_s
        count.recent_s.append(took_s)
        count.buckets[bisect_left(BUCKETS_S, took_s)] += 1

    @property
    def in_flight(self) -> int:
        return sum(count.in_flight for count in self.methods.values())
