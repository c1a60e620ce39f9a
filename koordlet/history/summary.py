"""What a series was over some time: seconds seen, least, mean, most, and a sketch of the spread.

The sketch counts seconds by *bucket*: the exponent and the five highest bits of the fraction of the
value as a 32-bit float, so 32 buckets from each power of two to the next, each of the same width.
A bucket's middle is within 1/64 of every value in it, and buckets of two summaries add up, in any
order: a percentile of a week is no worse than one of a minute. It needs no logarithm, since the
bits of a float that is not negative sort as the numbers do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

FRACTION_BITS = 5
SHIFT = 23 - FRACTION_BITS
"""A 32-bit float's bits shifted right by this are its bucket."""

ERROR_RATIO = 1 / (2 << FRACTION_BITS)
"""The most that a percentile can be off, as a share of the true one; below 1e-37 all count as 0."""

_BITS, _FLOAT = struct.Struct("<I"), struct.Struct("<f")
_HALF = 1 << (SHIFT - 1)
_FIRST_NORMAL = 1 << FRACTION_BITS


@dataclass(frozen=True, slots=True)
class Summary:
    """One series over ``covered_s`` seconds in which it had a value, each second counted once.

    Seconds without a value are not in it: a gap, never a zero. ``buckets`` has seconds by bucket.
    """

    covered_s: int
    mean: float
    lowest: float
    highest: float
    buckets: Mapping[int, int]

    def percentile(self, percent: float) -> float:
        """The value that at least ``percent`` of the seconds did not exceed, within ERROR_RATIO."""
        rank = max(1, -(-self.covered_s * percent // 100))
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= rank:
                return min(max(middle_of(bucket), self.lowest), self.highest)
        return self.highest


def bucket_of(value: float) -> int:
    """The bucket of a value that is not negative."""
    (bits,) = _BITS.unpack(_FLOAT.pack(value))
    return int(bits) >> SHIFT


def middle_of(bucket: int) -> float:
    """The middle of a bucket; 0 for those that are too small to matter."""
    if bucket < _FIRST_NORMAL:
        return 0.0
    (value,) = _FLOAT.unpack(_BITS.pack((bucket << SHIFT) + _HALF))
    return float(value)


def merged(parts: Iterable[Summary]) -> Summary:
    """The summary of all the time that ``parts`` cover; at least one is needed."""
    found = tuple(parts)
    first = found[0]
    if len(found) == 1:
        return first
    covered_s = sum(part.covered_s for part in found)
    buckets: dict[int, int] = {}
    for part in found:
        for bucket, seconds in part.buckets.items():
            buckets[bucket] = buckets.get(bucket, 0) + seconds
    return Summary(
        covered_s,
        sum(part.mean * part.covered_s for part in found) / covered_s,
        min(part.lowest for part in found),
        max(part.highest for part in found),
        buckets,
    )
