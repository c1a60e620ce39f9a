"""Turns the rows of a minute into summaries: for each series the whole seconds of that minute."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from operator import mul
from typing import NamedTuple

from koordlet.history.codec import pack_spread, pack_steady, repacked
from koordlet.history.fields import SERIES
from koordlet.history.recorder import Piece, Track
from koordlet.history.summary import SHIFT
from koordlet.metrics.readings import EntityKey, Level
from koordlet.protocol.qos import Qos

SLICE = 64
"""So many tracks are worked out before others have their turn (hazard H10)."""


class Subject(NamedTuple):
    """What a series is about, over restarts of containers and of koordlet; see EntityKey."""

    level: Level
    name: str
    namespace: str
    pod: str
    uid: str
    container: str


class Row(NamedTuple):
    """The summaries of a subject as bytes, and the QoS class it had, where one is known."""

    data: bytes
    qos: Qos | None


def subject_of(key: EntityKey) -> Subject:
    """The part of the key that stays as long as the thing has a name."""
    return Subject(key.level, key.name, key.namespace, key.pod, key.uid, key.container)


def roll_up(
    piece: Piece, numbers: Mapping[str, int], breathe: Callable[[], None] = lambda: None
) -> dict[Subject, Row]:
    """The rows of a piece. ``numbers`` are those of the series in the store."""
    groups = {group: tuple(numbers[name] for name in names) for group, names in SERIES.items()}
    rows: dict[Subject, Row] = {}
    seen: set[tuple[Subject, int]] = set()
    for count, track in enumerate(piece.tracks, start=1):
        data = b"".join(_packed(track, groups[track.group], piece.lasted_s))
        if data:
            _put(rows, seen, track, data)
        if count % SLICE == 0:
            breathe()
    return rows


def _put(
    rows: dict[Subject, Row], seen: set[tuple[Subject, int]], track: Track, data: bytes
) -> None:
    """Add a track to its subject's row; a container that was restarted has two of one group."""
    subject = subject_of(track.key)
    before = rows.get(subject, Row(b"", None))
    twice = (subject, track.group) in seen
    seen.add((subject, track.group))
    whole = repacked((before.data, data)) if twice else before.data + data
    rows[subject] = Row(whole, track.key.qos or before.qos)


def _packed(track: Track, numbers: tuple[int, ...], lasted_s: float) -> Iterator[bytes]:
    width = track.width
    ends_s = lasted_s if track.ends_s is None else track.ends_s
    seconds = _whole_seconds(track.rows[::width], ends_s)
    if len(seconds) == 1:
        yield from _one_row(track.rows[1:], numbers, seconds[0])
        return
    for at, number in enumerate(numbers, start=1):
        column = track.rows[at::width]
        if track.has_gaps:
            packed = _with_gaps(number, column, seconds)
        else:
            packed = _pack_column(number, column, seconds, sum(seconds))
        if packed:
            yield packed


def _one_row(values: array[float], numbers: tuple[int, ...], held: int) -> Iterator[bytes]:
    """Most things do not move within a minute. What is not known is NaN, unequal to itself."""
    for number, value in zip(numbers, values, strict=True):
        if held and value == value:
            yield pack_steady(number, value, held)


def _whole_seconds(begins_s: array[float], ends_s: float) -> list[int]:
    """How many whole seconds each row held; rounded so that their sum is right."""
    edges = [int(second + 0.5) for second in begins_s]
    edges.append(int(ends_s + 0.5))
    return [after - before for before, after in pairwise(edges)]


def _with_gaps(number: int, column: array[float], seconds: list[int]) -> bytes:
    """The column without the rows that have no value."""
    known = [(value, held) for value, held in zip(column, seconds, strict=True) if value == value]
    if not known:
        return b""
    values, held = zip(*known, strict=True)
    return _pack_column(number, array("f", values), list(held), sum(held))


def _pack_column(number: int, column: array[float], seconds: list[int], covered_s: int) -> bytes:
    if covered_s <= 0:
        return b""
    lowest, highest = min(column), max(column)
    if lowest == highest:
        return pack_steady(number, lowest, covered_s)
    mean = sum(map(mul, column, seconds)) / covered_s
    buckets: dict[int, int] = {}
    for bits, held in zip(memoryview(column).cast("B").cast("I"), seconds, strict=True):
        if held:
            bucket = bits >> SHIFT
            buckets[bucket] = buckets.get(bucket, 0) + held
    return pack_spread(number, covered_s, (mean, lowest, highest), buckets)
