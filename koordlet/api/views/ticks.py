"""The newest ticks: when, why, how long, and what they cost."""

from __future__ import annotations

from typing import TypedDict

from koordlet.api.views.common import Unknown, iso_time, number
from koordlet.report import NodeView, TickStats


class TickData(TypedDict):
    """One tick; ``run_s`` is CPU time of the tick thread since the tick before."""

    tick: int
    at: str
    cause: str
    duration_s: float | Unknown
    run_s: float | Unknown
    reads: int
    opens: int
    writes: int
    overrun: bool


class TicksData(TypedDict):
    """Ticks, oldest first, as far back as the daemon keeps them."""

    ticks: list[TickData]
    core_age_s: float | Unknown


def ticks_data(view: NodeView) -> TicksData:
    """All kept ticks."""
    return {
        "ticks": [tick_data(tick) for tick in view.ticks],
        "core_age_s": number(view.core_age_s),
    }


def tick_data(tick: TickStats) -> TickData:
    """The JSON form of one tick."""
    return {
        "tick": tick.tick,
        "at": iso_time(tick.at_wall_s),
        "cause": tick.cause.value,
        "duration_s": number(tick.duration_s),
        "run_s": number(tick.run_s),
        "reads": tick.reads,
        "opens": tick.opens,
        "writes": tick.writes,
        "overrun": tick.overrun,
    }
