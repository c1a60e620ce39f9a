"""The only place where units are converted."""

from __future__ import annotations

MILLI = 1_000
US_PER_S = 1_000_000
NS_PER_US = 1_000
NS_PER_S = 1_000_000_000
BASE_PERIOD_US = 100_000
QUOTA_MIN_US = 1_000
SHARES_MIN, SHARES_MAX = 2, 262_144
WEIGHT_MIN, WEIGHT_MAX = 1, 10_000
SECTOR_BYTES = 512
MIB = 1 << 20


def ns_to_cores(used_ns: float, window_s: float) -> float:
    """CPU nanoseconds used in ``window_s`` seconds, as cores."""
    return used_ns / NS_PER_S / window_s


def usec_to_ns(usec: int) -> int:
    """cgroup v2 reports microseconds where v1 reports nanoseconds (cases V1-12, V2-09)."""
    return usec * NS_PER_US


def cores_to_quota_us(cores: float, period_us: int) -> int:
    """The cfs quota for ``cores`` at ``period_us`` (case CQ-09), not below the kernel's minimum."""
    return max(QUOTA_MIN_US, round(cores * period_us))


def milli_to_cores(milli: float) -> float:
    """Milli-cores as cores."""
    return milli / MILLI


def shares_to_weight(shares: int) -> int:
    """v1 shares as v2 weight, the linear formula: 1 + (shares - 2) * 9999 // 262142."""
    clamped = min(max(shares, SHARES_MIN), SHARES_MAX)
    return 1 + (clamped - 2) * 9_999 // 262_142


def weight_to_shares(weight: int) -> int:
    """The linear inverse: 2 + (weight - 1) * 262142 // 9999; 1024 does not survive a round trip."""
    clamped = min(max(weight, WEIGHT_MIN), WEIGHT_MAX)
    return 2 + (clamped - 1) * 262_142 // 9_999
