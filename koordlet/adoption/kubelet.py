"""What the kubelet writes for requests and limits, by its own arithmetic (pkg/kubelet/cm).

Milli-cores in; shares, weights and microseconds out. Two formulas for the cgroup v2 weight are in
use: the linear one of KEP-2254, and since runc 1.3.2 (opencontainers/cgroups 0.0.5) a quadratic
one in the logarithm, which maps 1024 shares to a weight of 100.
"""

from __future__ import annotations

import math
from enum import Enum

from koordlet.units import (
    MILLI,
    QUOTA_MIN_US,
    SHARES_MAX,
    SHARES_MIN,
    US_PER_S,
    WEIGHT_MAX,
    WEIGHT_MIN,
    shares_to_weight,
)

SHARES_PER_CORE = 1_024
SYSTEMD_STEP_US_PER_S = 10_000
"""systemd keeps a quota as time per second, which runc rounds up to whole 10 ms."""


class WeightFormula(Enum):
    """How shares become a cgroup v2 weight."""

    LINEAR = "linear"
    QUADRATIC = "quadratic"


def milli_to_shares(milli: int | None) -> int:
    """MilliCPUToShares: rounded down, no request is the least weight."""
    return min(max((milli or 0) * SHARES_PER_CORE // MILLI, SHARES_MIN), SHARES_MAX)


def milli_to_quota_us(milli: int | None, period_us: int) -> int | None:
    """MilliCPUToQuota: rounded down, at least 1 ms; no limit is None, unlimited."""
    if not milli:
        return None
    return max(milli * period_us // MILLI, QUOTA_MIN_US)


def by_systemd(quota_us: int, period_us: int) -> int:
    """The same quota as systemd writes it when it applies its unit's settings again."""
    per_second_us = quota_us * US_PER_S // period_us
    steps = -(-per_second_us // SYSTEMD_STEP_US_PER_S)
    return steps * SYSTEMD_STEP_US_PER_S * period_us // US_PER_S


def weight_of(shares: int, formula: WeightFormula) -> int:
    """The weight for ``shares`` by one of the formulas."""
    if formula is WeightFormula.LINEAR:
        return shares_to_weight(shares)
    clamped = min(max(shares, SHARES_MIN), SHARES_MAX)
    if clamped == SHARES_MIN:
        return WEIGHT_MIN
    if clamped == SHARES_MAX:
        return WEIGHT_MAX
    log = math.log2(clamped)
    return math.ceil(10 ** ((log * log + 125 * log) / 612 - 7 / 34))
