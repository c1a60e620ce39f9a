"""Summaries: percentiles within their bound of the exact ones, however they were merged."""

from __future__ import annotations

import contextlib
import math
import random
import struct
import tempfile
from array import array
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from koordlet.history.codec import CodecError, Tally, repacked, tallied
from koordlet.history.query import Line
from koordlet.history.summary import ERROR_RATIO, Summary, bucket_of, merged
from tests.support.historyrig import POD, T0_S, HistoryRig, cpu

FLOAT_RATIO = 1e-6  # what a 32-bit float may be off
PERCENTS = (0.0, 1.0, 50.0, 90.0, 95.0, 99.0, 99.9, 100.0)

values = st.one_of(
    st.just(0.0),
    st.floats(2.0**-30, 2.0**43, width=32),
    st.sampled_from((0.25, 0.5, 1.0, 2.0, 0.1, 1e-6, 4096.0)),
)


def exactly(seconds: Sequence[float], percent: float) -> float:
    """The nearest rank: the least value that so many percent of the seconds did not exceed."""
    rank = max(1, math.ceil(len(seconds) * percent / 100 - 1e-9))
    return sorted(seconds)[rank - 1]


def is_near(found: float, exact: float, ratio: float) -> bool:
    return abs(found - exact) <= ratio * abs(exact) + 1e-30


def check(summary: Summary, seconds: Sequence[float]) -> None:
    """Everything that a summary says, against the seconds themselves."""
    assert summary.covered_s == len(seconds)
    assert is_near(summary.mean, math.fsum(seconds) / len(seconds), 2 * FLOAT_RATIO)
    assert is_near(summary.lowest, min(seconds), FLOAT_RATIO)
    assert is_near(summary.highest, max(seconds), FLOAT_RATIO)
    for percent in PERCENTS:
        found = summary.percentile(percent)
        assert is_near(found, exactly(seconds, percent), ERROR_RATIO + FLOAT_RATIO)
        assert summary.lowest <= found <= summary.highest


def tally(seconds: Sequence[float]) -> Tally:
    """As 32-bit floats, since that is what is recorded."""
    made = Tally()
    for value in seconds:
        made.add_steady(array("f", (value,))[0], 1)
    return made


def summed(seconds: Sequence[float]) -> Summary:
    return tally(seconds).summary()


@given(st.lists(values, min_size=1, max_size=200))
def test_a_summary_tells_of_its_seconds(seconds: list[float]) -> None:
    check(summed(seconds), seconds)


@given(
    st.lists(st.lists(values, min_size=1, max_size=40), min_size=3, max_size=8),
    st.randoms(use_true_random=False),
)
def test_merging_is_associative_and_takes_any_order(
    parts: list[list[float]], order: random.Random
) -> None:
    summaries = [summed(part) for part in parts]
    whole = merged(summaries)
    order.shuffle(summaries)
    first, *rest = summaries
    one_by_one = first
    for each in rest:
        one_by_one = merged((one_by_one, each))
    assert one_by_one.buckets == whole.buckets
    assert (one_by_one.lowest, one_by_one.highest) == (whole.lowest, whole.highest)
    check(one_by_one, [value for part in parts for value in part])


@given(
    st.lists(st.tuples(st.integers(0, 255), st.lists(values, min_size=1, max_size=80)), max_size=8)
)
def test_bytes_give_the_summary_back(series: list[tuple[int, list[float]]]) -> None:
    packed = b"".join(tally(seconds).packed(number) for number, seconds in series)
    found = tallied([packed])
    assert list(found) == list(dict.fromkeys(number for number, _ in series))
    for number, one in found.items():
        check(one.summary(), [value for n, seconds in series if n == number for value in seconds])
    wanted = {number for number, _ in series[:1]}
    assert tallied([packed], wanted).keys() == wanted


@given(st.lists(st.lists(values, min_size=1, max_size=70), min_size=2, max_size=10))
def test_rows_that_were_merged_say_the_same(rows: list[list[float]]) -> None:
    packed = [tally(seconds).packed(7) for seconds in rows]
    ((number, whole),) = tallied([repacked(packed)]).items()
    assert number == 7
    check(whole.summary(), [value for seconds in rows for value in seconds])


@given(st.binary(max_size=120))
def test_bytes_of_others_are_refused_or_read_and_never_looped_over(data: bytes) -> None:
    with contextlib.suppress(CodecError):
        assert len(tallied([data])) <= len(data) / 4
        repacked([data, data])


@given(values)
def test_a_bucket_is_narrow_and_sorts_as_its_values(value: float) -> None:
    (following,) = struct.unpack("<f", struct.pack("<f", value * 1.04 + 1e-30))
    assert bucket_of(value) <= bucket_of(following)
    assert value == 0.0 or bucket_of(value) < bucket_of(following)


@settings(max_examples=25)
@given(
    st.lists(
        st.one_of(st.none(), st.sampled_from((0.0, 0.125, 0.5, 1.0, 3.0)), values),
        min_size=70,
        max_size=330,
    )
)
def test_from_reports_to_a_range_every_second_counts_once(seconds: list[float | None]) -> None:
    """Values are sent when they change, one lasts until the next; None is a gap."""
    with tempfile.TemporaryDirectory() as folder:
        rig = HistoryRig(Path(folder))
        before: float | None = None
        for number, value in enumerate(seconds):
            changed = (cpu(1, value),) if value != before or number == 0 else ()
            rig.tick(*changed, keys=((1, POD),) if number == 0 else ())
            before = value
        rig.tick(cpu(1, None))
        rig.recorder.finish()
        known = any(value is not None for value in seconds)
        _compare(rig.lines(until_s=T0_S + 600)[0] if known else None, seconds)


def _compare(line: Line | None, seconds: list[float | None]) -> None:
    known = [value for value in seconds if value is not None]
    if line is None:
        assert not known
        return
    assert line.whole.covered_s == len(known)
    assert is_near(line.whole.mean, math.fsum(known) / len(known), 1e-5)
    assert is_near(line.whole.highest, max(known), FLOAT_RATIO)
    for number, percent in enumerate((50.0, 95.0, 99.0)):
        exact = exactly(known, percent)
        assert is_near(line.whole.percentiles[number], exact, ERROR_RATIO + FLOAT_RATIO)
    for point in line.points:
        first = int(point.start_s - T0_S)
        minute = [value for value in seconds[first : first + 60] if value is not None]
        assert point.covered_s == len(minute)
