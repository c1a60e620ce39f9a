"""Summaries as bytes: all series of one subject over one period, one after the other.

Each begins with the series' number, its kind and the seconds it covers. Most series of most
workloads do not move within a minute, so a steady one takes 8 bytes and one that is zero 4.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from koordlet.history.summary import Summary, merged, steady

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


def pack(series: int, summary: Summary) -> bytes:
    """Any summary."""
    if summary.lowest == summary.highest:
        return pack_steady(series, summary.lowest, summary.covered_s)
    three = (summary.mean, summary.lowest, summary.highest)
    return pack_spread(series, summary.covered_s, three, summary.buckets)


def unpack(data: bytes, wanted: Container[int] | None = None) -> Iterator[tuple[int, Summary]]:
    """Number and summary of each series in ``data``, or of the ``wanted`` ones; a number may come
    twice. Raises CodecError.
    """
    at = 0
    try:
        while at < len(data):
            series, kind, covered_s = _HEAD.unpack_from(data, at)
            size = _size(kind, data, at)
            if wanted is None or series in wanted:
                yield series, _summary(kind, covered_s, data, at + _HEAD.size)
            at += size
    except struct.error as error:
        raise CodecError(f"a summary ends too early: {error}") from error


def _size(kind: int, data: bytes, at: int) -> int:
    if kind == _ZERO:
        return _HEAD.size
    if kind == _STEADY:
        return _HEAD.size + _VALUE.size
    if kind not in (_BYTES, _WORDS):
        raise CodecError(f"no summary is of kind {kind}")
    count = int(_SPREAD.unpack_from(data, at + _HEAD.size)[0])
    return _HEAD.size + _SPREAD.size + count * (3 if kind == _BYTES else 4)


def _summary(kind: int, covered_s: int, data: bytes, at: int) -> Summary:
    if kind == _ZERO:
        return Summary(covered_s, 0.0, 0.0, 0.0, {0: covered_s})
    if kind == _STEADY:
        return steady(_VALUE.unpack_from(data, at)[0], covered_s)
    count, mean, lowest, highest = _SPREAD.unpack_from(data, at)
    letter = "B" if kind == _BYTES else "H"
    both = struct.unpack_from(f"<{count}H{count}{letter}", data, at + _SPREAD.size)
    return Summary(
        covered_s, mean, lowest, highest, dict(zip(both[:count], both[count:], strict=True))
    )


def repacked(rows: Sequence[bytes]) -> bytes:
    """One row for the time that all ``rows`` of a subject cover."""
    return b"".join(pack(series, merged(parts)) for series, parts in gathered(rows).items())


def gathered(
    rows: Iterable[bytes], wanted: Container[int] | None = None
) -> dict[int, list[Summary]]:
    """The summaries of ``rows`` by series."""
    found: dict[int, list[Summary]] = {}
    for row in rows:
        for series, summary in unpack(row, wanted):
            found.setdefault(series, []).append(summary)
    return found
