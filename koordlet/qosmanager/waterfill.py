"""One BE budget split over the BE roots: who wants little gets it, the others share the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from koordlet.model.paths import CgroupPath
from koordlet.snapshot import RootDemand

HEADROOM = 1.25
"""A root that is not throttled wants its use and a quarter more, so that growth shows."""

THROTTLED_RATIO = 0.05
"""Share of throttled periods from which a root wants more than it has, nobody knows how much."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One root's part in the split, in cores: what it wants, at least gets and at most may have."""

    want_cores: float
    floor_cores: float
    ceiling_cores: float


def want_cores(demand: RootDemand | None, capacity_cores: float) -> float:
    """What a root would use if it could: all of the node where it is throttled or unknown."""
    if demand is None or not demand.throttled_ratio < THROTTLED_RATIO:
        return capacity_cores
    return min(demand.used_cores * HEADROOM, capacity_cores)


def split(budget_cores: float, claims: Mapping[CgroupPath, Claim]) -> dict[CgroupPath, float]:
    """Cores for each root; the sum is the budget unless floors exceed it or ceilings fall short.

    Three rounds of water-filling: floors first, whatever the budget says (hazard H12: the
    floors win); then wants, smallest first; then what is left over, evenly up to the ceilings.
    """
    shares = {root: min(c.floor_cores, c.ceiling_cores) for root, c in claims.items()}
    for limit in (
        {root: min(c.want_cores, c.ceiling_cores) for root, c in claims.items()},
        {root: c.ceiling_cores for root, c in claims.items()},
    ):
        _fill(shares, limit, budget_cores)
    return shares


def _fill(
    shares: dict[CgroupPath, float], limit: Mapping[CgroupPath, float], budget_cores: float
) -> None:
    """Raise the shares to one water level, each up to its limit, until the budget is used."""
    level = 0.0
    left = budget_cores - sum(shares.values())
    for point in sorted({*shares.values(), *limit.values()}):
        rising = [root for root, share in shares.items() if share <= level < limit[root]]
        rise = point - level
        if rising and rise * len(rising) >= left:
            level += max(left, 0.0) / len(rising)
            break
        left -= rise * len(rising)
        level = point
    for root, share in shares.items():
        shares[root] = max(share, min(level, limit[root]))
