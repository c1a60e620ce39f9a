"""How fast BE may get CPU back: a tenth of the node a second, however often a tick comes."""

from __future__ import annotations

from dataclasses import dataclass, field

from koordlet.qosmanager.strategy import Numbers

GROWTH_RATIO = 0.1
"""Of the node, per step."""

_STEP_S = 0.9
"""Time between two steps: one regular tick less its jitter. Early ticks, called by pressure on
latency-sensitive work, must not speed up the growth of BE."""

_PREFIX = "grown_at_s:"


@dataclass(slots=True)
class Growth:
    """When each thing last grew, carried in the strategy's memory."""

    now_s: float
    before: Numbers
    after: dict[str, float] = field(default_factory=dict)

    def may_grow(self, name: str) -> bool:
        """False while the last step of ``name`` is too young; a step from the future is void."""
        age_s = self.now_s - self.before.get(_PREFIX + name, float("-inf"))
        return not 0 <= age_s < _STEP_S

    def record(self, name: str, *, grew: bool) -> None:
        """Keep in memory when ``name`` last grew."""
        key = _PREFIX + name
        if grew:
            self.after[key] = self.now_s
        elif key in self.before:
            self.after[key] = self.before[key]
