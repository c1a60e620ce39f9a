"""How long roll-ups of which period are kept, and what makes room for new ones. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400
FUTURE_S = DAY_S


@dataclass(frozen=True, slots=True)
class Grain:
    """Roll-ups of one period. After ``keep_s``, sooner where room is short, they are merged into
    ``next_s``.
    """

    period_s: int
    next_s: int
    keep_s: float


GRAINS = (
    Grain(MINUTE_S, 10 * MINUTE_S, keep_s=DAY_S),
    Grain(10 * MINUTE_S, HOUR_S, keep_s=7 * DAY_S),
    Grain(HOUR_S, HOUR_S, keep_s=float("inf")),
)
"""From the finest to the coarsest, which is merged into nothing: there the oldest leave."""

FAIR_SHARE = 1 / len(GRAINS)
"""Where room is short, a grain that takes more than this of it gives up its oldest."""


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
    """The first and the last period that a grain has roll-ups of, by their starts, and what those
    of the last one take.
    """

    first_s: int
    last_s: int
    last_bytes: int

    def bytes(self, grain: Grain) -> int:
        """About what the whole grain takes, were each period like the last one."""
        return self.last_bytes * ((self.last_s - self.first_s) // grain.period_s + 1)


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
    return _for_room(held) if is_short else None


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


def _for_room(held: Mapping[int, Held]) -> Work | None:
    """Merge the finest that takes too much; if none does drop the oldest hour, else the oldest."""
    found = [(grain, held[grain.period_s]) for grain in GRAINS if grain.period_s in held]
    if not found:
        return None
    total = sum(each.bytes(grain) for grain, each in found)
    newest_s = max(each.last_s for _, each in found)
    for grain, each in found:
        fate = Fate.DROP if grain is GRAINS[-1] else Fate.MERGE
        work = _first(grain, each.first_s, fate)
        # What is still being added to is merged last of all: that is, never.
        if each.bytes(grain) > FAIR_SHARE * total and work.end_s <= newest_s:
            return work
    grain, each = min(found, key=lambda one: one[1].first_s)
    return _first(grain, each.first_s, Fate.DROP)


def _first(grain: Grain, start_s: int, fate: Fate) -> Work:
    return Work(fate, grain, start_s // grain.next_s * grain.next_s)
