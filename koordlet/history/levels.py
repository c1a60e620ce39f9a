"""How long roll-ups of which period are kept, and what makes room for new ones. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400
FUTURE_S = DAY_S


@dataclass(frozen=True, slots=True)
class Grain:
    """Roll-ups of one period. After ``keep_s`` they are merged into ``next_s``; where room is
    short already after ``least_s``.
    """

    period_s: int
    next_s: int
    keep_s: float
    least_s: float


GRAINS = (
    Grain(MINUTE_S, 10 * MINUTE_S, keep_s=DAY_S, least_s=3 * HOUR_S),
    Grain(10 * MINUTE_S, HOUR_S, keep_s=7 * DAY_S, least_s=DAY_S),
    Grain(HOUR_S, HOUR_S, keep_s=float("inf"), least_s=0.0),
)
"""From the finest to the coarsest, which is merged into nothing: there the oldest leave."""


class Fate(Enum):
    """What becomes of old roll-ups."""

    MERGE = "merge"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Work:
    """One step of making room: what becomes of ``grain``'s roll-ups from ``start_s`` on, for one
    period of the next coarser grain.
    """

    fate: Fate
    grain: Grain
    start_s: int

    @property
    def end_s(self) -> int:
        return self.start_s + self.grain.next_s


@dataclass(frozen=True, slots=True)
class Held:
    """The first and the last period that a grain has roll-ups of, by their starts."""

    first_s: int
    last_s: int


def next_work(
    held: Mapping[int, Held], now_s: float, *, keep_s: float, is_short: bool, trusts_clock: bool
) -> Work | None:
    """The next step, or None where all is as it should be.

    ``held`` has by period what there is. ``is_short``: the file is too large. By age nothing is
    done while the clock cannot be trusted: one set wrongly for a minute would empty the store.
    """
    if trusts_clock:
        work = _by_age(held, now_s, keep_s)
        if work is not None:
            return work
    return _for_room(held, now_s) if is_short else None


def _by_age(held: Mapping[int, Held], now_s: float, keep_s: float) -> Work | None:
    for grain in GRAINS:
        found = held.get(grain.period_s)
        if found is None:
            continue
        oldest = _first(grain, found.first_s, Fate.DROP)
        if oldest.end_s <= now_s - keep_s:
            return oldest
        if found.last_s > now_s + FUTURE_S:  # from a clock that was wrong
            return _first(grain, found.last_s, Fate.DROP)
        if oldest.end_s <= now_s - grain.keep_s:
            return Work(Fate.MERGE, grain, oldest.start_s)
    return None


def _for_room(held: Mapping[int, Held], now_s: float) -> Work | None:
    """Merge the finest that is old enough, drop the oldest hour, else the oldest of all."""
    for grain in GRAINS:
        found = held.get(grain.period_s)
        if found is None:
            continue
        fate = Fate.DROP if grain is GRAINS[-1] else Fate.MERGE
        work = _first(grain, found.first_s, fate)
        if work.end_s <= now_s - grain.least_s:
            return work
    rest = [(held[grain.period_s].first_s, grain) for grain in GRAINS if grain.period_s in held]
    if not rest:
        return None
    first_s, grain = min(rest, key=lambda each: each[0])
    return _first(grain, first_s, Fate.DROP)


def _first(grain: Grain, start_s: int, fate: Fate) -> Work:
    return Work(fate, grain, start_s // grain.next_s * grain.next_s)
