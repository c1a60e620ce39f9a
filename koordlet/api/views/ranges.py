"""A range of the history: for each series its points, and the whole range as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from koordlet.api.views.common import iso_time
from koordlet.history.fields import SeriesUnit, unit_of
from koordlet.history.query import Line, RangeAnswer, Stat
from koordlet.history.summary import ERROR_RATIO


class StatData(TypedDict):
    """One series over a step that began at ``at``, or over the whole range.

    ``covered_s`` counts the seconds in which it had a value; the others are in no number here.
    ``mean`` is over that time. ``percentiles`` are by name: ``p95`` is the value that 95 % of those
    seconds did not exceed, within percentile_error_ratio of it; min, max and mean are exact.
    """

    at: str
    covered_s: int
    min: float
    mean: float
    max: float
    percentiles: dict[str, float]


class LineData(TypedDict):
    """One series of one thing; ``name`` and ``uid`` as in readings. A step in which it had no value
    has no point.
    """

    level: str
    name: str
    namespace: str
    pod: str
    uid: str
    container: str
    qos: str | None
    series: str
    unit: SeriesUnit
    whole: StatData
    points: list[StatData]


class RangeData(TypedDict):
    """From ``since`` to before ``until``, both widened to whole steps.

    ``step_s`` is at least the period of the coarsest roll-up in the range: a minute, ten minutes
    or an hour. The running minute has no roll-up yet.
    """

    since: str
    until: str
    step_s: int
    percentile_error_ratio: float
    lines: list[LineData]


def range_data(answer: RangeAnswer, percentiles: Sequence[float]) -> RangeData:
    """An answer as data; ``percentiles`` are those that were asked for."""
    names = [f"p{percent:g}" for percent in percentiles]
    return {
        "since": iso_time(answer.since_s),
        "until": iso_time(answer.until_s),
        "step_s": answer.step_s,
        "percentile_error_ratio": ERROR_RATIO,
        "lines": [_line_data(line, names) for line in answer.lines],
    }


def _line_data(line: Line, names: Sequence[str]) -> LineData:
    subject = line.subject
    return {
        "level": subject.level.value,
        "name": subject.name,
        "namespace": subject.namespace,
        "pod": subject.pod,
        "uid": subject.uid,
        "container": subject.container,
        "qos": line.qos,
        "series": line.series,
        "unit": unit_of(line.series),
        "whole": _stat_data(line.whole, names),
        "points": [_stat_data(point, names) for point in line.points],
    }


def _stat_data(stat: Stat, names: Sequence[str]) -> StatData:
    return {
        "at": iso_time(stat.start_s),
        "covered_s": stat.covered_s,
        "min": _plain(stat.lowest),
        "mean": _plain(stat.mean),
        "max": _plain(stat.highest),
        "percentiles": {
            name: _plain(value) for name, value in zip(names, stat.percentiles, strict=True)
        },
    }


def _plain(value: float) -> float:
    """Without the digits that a 32-bit float does not have."""
    return float(f"{value:.7g}")
