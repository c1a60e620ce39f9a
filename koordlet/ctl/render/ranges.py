"""A range of the history for people and for spreadsheets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from koordlet.ctl.render.tables import show, table
from koordlet.ctl.text import clean, cores, duration, moment, ratio, size

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Data = Mapping[str, Any]
SPARK_COLUMNS = 60
BARS, PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.-=*%#@"
"""Heights of a sparkline; the second for terminals that lack the first."""
GAP = " "


def bars_for(encoding: str | None) -> str:
    """The heights that an encoding has."""
    try:
        BARS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return PLAIN_BARS
    return BARS


def draw_ranges(data: Data, console: Console, *, bars: str = BARS) -> None:
    """One row a series: the whole range as one, and how it went."""
    show(console, _parts(data["range"], bars))


def _parts(found: Data, bars: str) -> Iterable[RenderableType]:
    lines = found["lines"]
    yield (
        f"{moment(found['since'])} to {moment(found['until'])}, a point is"
        f" {duration(found['step_s'])}"
    )
    if not lines:
        yield "nothing was recorded in this range"
        return
    percentiles = list(lines[0]["whole"]["percentiles"])
    numbers = ("min", "mean", *percentiles, "max", "seen")
    made = table("of", "series", *numbers, "means, from 0 to the highest", right=numbers)
    for line in lines:
        whole, form = line["whole"], _FORMS[line["unit"]]
        made.add_row(
            clean(name_of(line)),
            clean(line["series"]),
            form(whole["min"]),
            form(whole["mean"]),
            *(form(whole["percentiles"][name]) for name in percentiles),
            form(whole["max"]),
            duration(whole["covered_s"]),
            sparkline(_means(line["points"], found), bars),
        )
    yield made
    error = ratio(found["percentile_error_ratio"])
    yield f"percentiles are within {error}; seconds without a value are in no number"


def _per_second(value: object) -> str:
    return f"{size(value)}/s"


def _operations(value: object) -> str:
    return f"{value:.1f}/s" if isinstance(value, int | float) else "?"


_FORMS: Mapping[str, Callable[[object], str]] = {
    "cores": cores,
    "bytes": size,
    "ratio": ratio,
    "bytes_per_s": _per_second,
    "per_s": _operations,
}


def name_of(line: Data) -> str:
    """What a line is about: level and name."""
    parts = (line["namespace"], line["pod"], line["container"])
    name = "/".join(part for part in parts if part) or line["name"]
    return f"{line['level'].replace('_', ' ')} {name}".strip()


def _means(points: Sequence[Data], found: Data) -> list[float | None]:
    """The mean of each step of the range, None where there is no point."""
    since_s, step_s = _wall_s(found["since"]), found["step_s"]
    means: list[float | None] = [None] * int((_wall_s(found["until"]) - since_s) // step_s)
    for point in points:
        means[int((_wall_s(point["at"]) - since_s) // step_s)] = point["mean"]
    return means


def _wall_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def sparkline(values: Sequence[float | None], bars: str = BARS) -> str:
    """A character for each value, from 0 to the highest; a gap is a space. Of more values than
    SPARK_COLUMNS the highest of each few is shown.
    """
    each = -(-len(values) // SPARK_COLUMNS) or 1
    shown = [_highest(values[at : at + each]) for at in range(0, len(values), each)]
    top = max((value for value in shown if value is not None), default=0.0)
    return "".join(GAP if value is None else _bar(value, top, bars) for value in shown).rstrip()


def _highest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _bar(value: float, top: float, bars: str) -> str:
    return bars[0] if top <= 0 else bars[round(value / top * (len(bars) - 1))]


def csv_rows(data: Data) -> Iterator[Sequence[object]]:
    """A head, then a row for each point; a step without a value has none."""
    lines = data["range"]["lines"]
    percentiles = list(lines[0]["whole"]["percentiles"]) if lines else []
    names = ("level", "namespace", "pod", "container", "name", "uid", "qos", "series")
    numbers = ("covered_s", "min", "mean", "max")
    yield ("at", *names, *numbers, *percentiles)
    for line in lines:
        what = tuple(clean(line[name] or "") for name in names)
        for point in line["points"]:
            values = (point[name] for name in numbers)
            further = (point["percentiles"][name] for name in percentiles)
            yield (point["at"], *what, *values, *further)
