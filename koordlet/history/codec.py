"""Summaries as bytes: all series of one subject over one period, one after the other.

Each begins with the series' number, its kind and the seconds it covers. Most series of most
workloads do not move within a minute, so a steady one takes 8 bytes and one that is zero 4.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Iterator, Mapping

from koordlet.history.summary import Summary, bucket_of

_ZERO, _STEADY, _BYTES, _WORDS = range(4)
_HEAD = struct.Struct("<BBH")  # series, kind, covered seconds
_VALUE = struct.Struct("<f")
_SPREAD = struct.Struct("<Hfff")  # buckets, mean, lowest, highest
_BYTE_MOST, _WORD_MOST = 0xFF, 0xFFFF


class CodecError(ValueError):
    """Bytes that no summary was ever written as."""


def pack_steady(series: int, value: float, covered_s: int) -> bytes:
    """A series that did not move."""
    covered_s = min(covered_s, _WORD_MOST)
    if value == 0.0:
        return _HEAD.pack(series, _ZERO, covered_s)
    return _HEAD.pack(series, _STEADY, covered_s) + _VALUE.pack(value)


def pack_spread(
    series: int,
    covered_s: int,
    mean_lowest_highest: tuple[float, float, float],
    buckets: Mapping[int, int],
) -> bytes:
    """A series that moved. Seconds beyond 18 hours are not counted further."""
    ordered = sorted(buckets)
    seconds = [buckets[bucket] for bucket in ordered]
    kind, letter = (_BYTES, "B") if max(seconds) <= _BYTE_MOST else (_WORDS, "H")
    if kind == _WORDS:
        seconds = [min(each, _WORD_MOST) for each in seconds]
    count = len(ordered)
    return b"".join(
        (
            _HEAD.pack(series, kind, min(covered_s, _WORD_MOST)),
            _SPREAD.pack(count, *mean_lowest_highest),
            struct.pack(f"<{count}H{count}{letter}", *ordered, *seconds),
        )
    )


class Tally:
    """One series of several rows, added up as they are read."""

    __slots__ = ("_buckets", "_covered_s", "_highest", "_lowest", "_steady", "_sum")

    def __init__(self) -> None:
        self._covered_s = 0
        self._sum = 0.0
        self._lowest = float("inf")
        self._highest = float("-inf")
        self._steady: dict[float, int] = {}  # seconds by value, of rows in which it did not move
        self._buckets: dict[int, int] = {}

    def add_steady(self, value: float, seconds: int) -> None:
        """Seconds in which it was ``value``."""
        self._covered_s += seconds
        self._sum += value * seconds
        if value < self._lowest:
            self._lowest = value
        if value > self._highest:
            self._highest = value
        self._steady[value] = self._steady.get(value, 0) + seconds

    def add_spread(
        self, seconds: int, mean: float, lowest: float, highest: float, counts: tuple[int, ...]
    ) -> None:
        """A row in which it moved; ``counts`` are its buckets, then the seconds of each."""
        self._covered_s += seconds
        self._sum += mean * seconds
        self._lowest = min(self._lowest, lowest)
        self._highest = max(self._highest, highest)
        buckets, half = self._buckets, len(counts) // 2
        for bucket, held in zip(counts[:half], counts[half:], strict=True):
            buckets[bucket] = buckets.get(bucket, 0) + held

    def summary(self) -> Summary:
        """All of it."""
        mean = self._sum / self._covered_s if self._covered_s else 0.0
        buckets = self._all_buckets()
        return Summary(self._covered_s, mean, self._lowest, self._highest, buckets)

    def _all_buckets(self) -> dict[int, int]:
        buckets = dict(self._buckets)
        for value, seconds in self._steady.items():
            bucket = bucket_of(value)
            buckets[bucket] = buckets.get(bucket, 0) + seconds
        return buckets

    def packed(self, series: int) -> bytes:
        """All of it as bytes."""
        if self._lowest == self._highest:
            return pack_steady(series, self._lowest, self._covered_s)
        three = (self._sum / max(self._covered_s, 1), self._lowest, self._highest)
        return pack_spread(series, self._covered_s, three, self._all_buckets())


def tallied(rows: Iterable[bytes], wanted: Container[int] | None = None) -> dict[int, Tally]:
    """What ``rows`` of one subject come to by series, or by the ``wanted`` ones of them.

    Raises CodecError.
    """
    found: dict[int, Tally] = {}
    try:
        for row in rows:
            for series, kind, covered_s, at in _heads(row):
                if wanted is None or series in wanted:
                    tally = found.get(series) or found.setdefault(series, Tally())
                    _take(tally, kind, covered_s, row, at)
    except struct.error as error:
        raise CodecError(f"a summary ends too early: {error}") from error
    return found


def _heads(row: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Series, kind, covered seconds and where the rest begins, of each summary in a row."""
    at = 0
    while at < len(row):
        series, kind, covered_s = _HEAD.unpack_from(row, at)
        at += 4
        yield series, kind, covered_s, at
        if kind == _STEADY:
            at += 4
        elif kind != _ZERO:
            at += _SPREAD.size + _count(kind, row, at) * (3 if kind == _BYTES else 4)


def _count(kind: int, row: bytes, at: int) -> int:
    if kind not in (_BYTES, _WORDS):
        raise CodecError(f"no summary is of kind {kind}")
    return int(_SPREAD.unpack_from(row, at)[0])


def _take(tally: Tally, kind: int, covered_s: int, row: bytes, at: int) -> None:
    if kind == _ZERO:
        tally.add_steady(0.0, covered_s)
    elif kind == _STEADY:
        tally.add_steady(_VALUE.unpack_from(row, at)[0], covered_s)
    else:
        count, mean, lowest, highest = _SPREAD.unpack_from(row, at)
        if count == 0:
            raise CodecError("a summary without a bucket")
        letter = "B" if kind == _BYTES else "H"
        counts = struct.unpack_from(f"<{count}H{count}{letter}", row, at + _SPREAD.size)
        tally.add_spread(covered_s, mean, lowest, highest, counts)


def repacked(rows: Iterable[bytes]) -> bytes:
    """One row for the time that all ``rows`` of a subject cover. Raises CodecError."""
    found = tallied(rows)
    try:
        return b"".join(tally.packed(series) for series, tally in found.items())
    except (struct.error, OverflowError) as error:
        raise CodecError(f"no summary that was ever written: {error}") from error
