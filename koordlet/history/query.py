"""Ranges of ``history.db``: points of one step for each series that was asked for.

It opens the file for reading only, beside the writer; koordletctl does so, too, where no daemon
runs. What is asked is bounded before anything is read.
"""

from __future__ import annotations

import difflib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from koordlet.history.codec import CodecError, Tally, tallied
from koordlet.history.fields import ALL_SERIES, FAMILIES, MAIN_SERIES
from koordlet.history.levels import DAY_S, GRAINS, HOUR_S, MINUTE_S
from koordlet.history.rollup import Subject
from koordlet.history.store import key_of, start_of
from koordlet.history.summary import Summary, merged
from koordlet.metrics.readings import Level
from koordlet.protocol.problem import Problem, RefusedError, Severity

DEFAULT_SINCE_S = HOUR_S
MOST_SPAN_S = 3_660 * DAY_S
MOST_ROWS = 50_000
MOST_POINTS = 10_000
POINTS_BY_DEFAULT = 60
NICE_STEPS_S = (
    *(minutes * MINUTE_S for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * HOUR_S for hours in (1, 2, 3, 6, 12)),
    DAY_S,
)
_BREATHE_EVERY = 100
_GUESSES = 5


@dataclass(frozen=True, slots=True)
class RangeQuery:
    """Which roll-ups: wall seconds, ``until_s`` excluded.

    ``target`` is namespace/name or UID of a pod, namespace/name/container, or the name of a tier,
    host application, disk or interface; "" is all of ``level``, and with that None the node.
    ``series`` are names or families, none: the main ones of each level. ``step_s`` None: one that
    gives up to 60 points.
    """

    since_s: float
    until_s: float
    step_s: int | None = None
    target: str = ""
    level: Level | None = None
    series: tuple[str, ...] = ()
    percentiles: tuple[float, ...] = (50.0, 95.0, 99.0)


class Stat(NamedTuple):
    """A series over a time that began at ``start_s``; its percentiles in the order of the query."""

    start_s: int
    covered_s: int
    lowest: float
    mean: float
    highest: float
    percentiles: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One series of one subject: its points by their start, and all of them as one."""

    subject: Subject
    qos: str | None
    series: str
    points: tuple[Stat, ...]
    whole: Stat


@dataclass(frozen=True, slots=True)
class RangeAnswer:
    """Lines over [since_s, until_s) in steps; a step without a value has no point.

    The range was widened to whole steps, the step to the longest period that roll-ups in it have.
    """

    since_s: int
    until_s: int
    step_s: int
    lines: tuple[Line, ...]
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class _Found:
    number: int
    subject: Subject
    qos: str | None


class HistoryReader:
    """Answers queries from ``path``; any thread may ask. ``breathe`` is called in between, so that
    a long answer does not keep others of its process waiting (hazard H10).
    """

    def __init__(self, path: Path, breathe: Callable[[], None] = lambda: None) -> None:
        self._path = path
        self._breathe = breathe

    def query(self, query: RangeQuery) -> RangeAnswer:
        """The lines of ``query``. Raises RefusedError for a query that cannot be answered, and
        sqlite3.Error where the file cannot be read.
        """
        _check(query)
        # Two slashes more: a path that begins with one would be taken for an authority.
        address = f"file://{quote(str(self._path))}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=5.0)) as db:
            db.execute("PRAGMA cache_size=-256")
            return self._answer(db, query)

    def _answer(self, db: sqlite3.Connection, query: RangeQuery) -> RangeAnswer:
        subjects = _matching(db, query)
        wanted = _series_by_level(query.series, {found.subject.level for found in subjects})
        coarsest_s = _coarsest_s(db, query)
        count = sum(len(wanted[found.subject.level]) for found in subjects)
        step_s = _step_s(query, coarsest_s, count)
        since_s = int(query.since_s // step_s) * step_s
        until_s = -int(-query.until_s // step_s) * step_s
        spans = list(_spans(db, since_s, until_s))
        rows = len(subjects) * sum(map(len, spans))
        _check_size(rows, count * ((until_s - since_s) // step_s))
        lines: list[Line] = []
        names = dict(db.execute("SELECT id, name FROM series"))
        reading = _Reading(db, spans, step_s, query.percentiles, self._breathe)
        for found in subjects:
            lines += reading.lines(found, names, wanted[found.subject.level])
        problems = _raised(query.step_s, step_s, coarsest_s)
        return RangeAnswer(since_s, until_s, step_s, tuple(lines), problems)


@dataclass(frozen=True, slots=True)
class _Span:
    """The periods of one grain of which there can be roll-ups in the range."""

    period_s: int
    first_s: int
    last_s: int

    def __len__(self) -> int:
        return (self.last_s - self.first_s) // self.period_s + 1


@dataclass(slots=True)
class _Reading:
    db: sqlite3.Connection
    spans: list[_Span]
    step_s: int
    percentiles: tuple[float, ...]
    breathe: Callable[[], None]
    looked_up: int = 0

    def lines(
        self, found: _Found, names: Mapping[int, str], wanted: Sequence[str]
    ) -> Iterator[Line]:
        numbers = {number for number, name in names.items() if name in wanted}
        points: dict[str, dict[int, Summary]] = {name: {} for name in wanted}
        for start_s, rows in sorted(self._rows(found.number).items()):
            for number, tally in _tallied(rows, numbers).items():
                points[names[number]][start_s] = tally.summary()
        for name in wanted:
            if points[name]:
                stats = tuple(self._stat(*point) for point in points[name].items())
                whole = self._stat(stats[0].start_s, merged(points[name].values()))
                yield Line(found.subject, found.qos, name, stats, whole)

    def _stat(self, start_s: int, of: Summary) -> Stat:
        percentiles = tuple(of.percentile(percent) for percent in self.percentiles)
        return Stat(start_s, of.covered_s, of.lowest, of.mean, of.highest, percentiles)

    def _rows(self, number: int) -> dict[int, list[bytes]]:
        """The roll-ups of a subject by the start of their step."""
        rows: dict[int, list[bytes]] = {}
        for span in self.spans:
            select = f"SELECT data FROM rollups_{span.period_s} WHERE key = ?"
            for start_s in range(span.first_s, span.last_s + 1, span.period_s):
                self.looked_up += 1
                if self.looked_up % _BREATHE_EVERY == 0:
                    self.breathe()
                row = self.db.execute(select, (key_of(start_s, number),)).fetchone()
                if row is not None:
                    rows.setdefault(start_s // self.step_s * self.step_s, []).append(row[0])
        return rows


def _tallied(rows: list[bytes], numbers: set[int]) -> dict[int, Tally]:
    try:
        return tallied(rows, numbers)
    except CodecError as error:
        raise sqlite3.DatabaseError(f"a damaged roll-up: {error}") from error


# -- what is asked --------------------------------------------------------------------------------


def _check(query: RangeQuery) -> None:
    for percent in query.percentiles:
        if not 0 <= percent <= 100:
            raise _refused("percentiles", f"{percent:g} is none", "0 to 100")
    if query.since_s >= query.until_s:
        what = "the range ends before it begins"
        raise _refused("since, until", what, "since earlier than until")
    if query.until_s - query.since_s > MOST_SPAN_S:
        raise _refused("since, until", "the range is too long", f"{MOST_SPAN_S // DAY_S} days")
    step_s = query.step_s
    if step_s is not None and (step_s <= 0 or step_s % MINUTE_S):
        raise _refused("step", f"{step_s} s is no step", "a multiple of 60 s")


def _refused(where: str, what: str, limit: str, remedy: str = "see docs/cli.md") -> RefusedError:
    return RefusedError((Problem("history-bad-range", where, what, limit, remedy),))


def _series_by_level(asked: tuple[str, ...], levels: set[Level]) -> dict[Level, tuple[str, ...]]:
    """The series of each level, families told apart; raises RefusedError for an unknown one."""
    named: list[str] = []
    for word in asked:
        if word in FAMILIES:
            named += FAMILIES[word]
        elif word in ALL_SERIES:
            named.append(word)
        else:
            raise _unknown("series", word, (*FAMILIES, *ALL_SERIES))
    chosen = tuple(dict.fromkeys(named))
    return {level: chosen or MAIN_SERIES[level] for level in levels}


def _unknown(kind: str, word: str, known: Sequence[str]) -> RefusedError:
    close = difflib.get_close_matches(word, known, n=_GUESSES, cutoff=0.5)
    remedy = f"did you mean {', '.join(close)}?" if close else "see docs/cli.md"
    what = f"no {kind} of that name has a history"
    return RefusedError((Problem(f"history-unknown-{kind}", word, what, remedy=remedy),))


def _matching(db: sqlite3.Connection, query: RangeQuery) -> list[_Found]:
    found = [
        _Found(number, Subject(Level(level), *names), qos)
        for number, level, *names, qos in db.execute(
            "SELECT id, level, name, namespace, pod, uid, container, qos FROM subjects"
            " ORDER BY namespace, pod, container, name, id"
        )
    ]
    level = query.level or (None if query.target else Level.NODE)
    chosen = [
        each
        for each in found
        if level in (None, each.subject.level)
        and (not query.target or query.target in _names(each.subject, query.level))
    ]
    if query.target and not chosen:
        raise _unknown("target", query.target, [full_name(each.subject) for each in found])
    order = list(Level)
    return sorted(chosen, key=lambda each: order.index(each.subject.level))


def _names(subject: Subject, level: Level | None) -> Iterable[str]:
    """What a subject answers to; asked for by level, containers also to the names of their pod."""
    yield full_name(subject)
    if subject.level is Level.POD or level is Level.CONTAINER:
        yield from (f"{subject.namespace}/{subject.pod}", subject.pod, subject.uid)


def full_name(subject: Subject) -> str:
    """How a person names it: ``node``, ``namespace/pod[/container]``, or its own name."""
    if subject.level is Level.NODE:
        return "node"
    if subject.level in (Level.POD, Level.CONTAINER):
        parts = (subject.namespace, subject.pod, subject.container)
        return "/".join(part for part in parts if part)
    return subject.name


# -- how much of it there is ----------------------------------------------------------------------


def _coarsest_s(db: sqlite3.Connection, query: RangeQuery) -> int:
    """The longest period of any roll-up in the range."""
    for grain in reversed(GRAINS):
        since_s = int(query.since_s // grain.period_s) * grain.period_s
        (there,) = db.execute(
            f"SELECT EXISTS (SELECT 1 FROM rollups_{grain.period_s} WHERE key >= ? AND key < ?)",
            (key_of(since_s), key_of(-int(-query.until_s // MINUTE_S) * MINUTE_S)),
        ).fetchone()
        if there:
            return grain.period_s
    return MINUTE_S


def _step_s(query: RangeQuery, coarsest_s: int, lines: int) -> int:
    step_s = query.step_s
    if step_s is None:
        # Two fewer than may be: the range is widened to whole steps at both ends.
        points = min(POINTS_BY_DEFAULT, max(1, MOST_POINTS // max(1, lines) - 2))
        # An hour that is a second longer, for it ends now, still has minutes.
        least_s = 0.99 * (query.until_s - query.since_s) / points
        days = DAY_S * (1 + int(least_s // DAY_S))
        step_s = next((step for step in NICE_STEPS_S if step >= least_s), days)
    return -(-step_s // coarsest_s) * coarsest_s


def _raised(asked_s: int | None, step_s: int, coarsest_s: int) -> tuple[Problem, ...]:
    if asked_s in (None, step_s):
        return ()
    what = f"the step is {step_s} s: of some of the range only roll-ups of {coarsest_s} s are left"
    remedy = "ask for a later range where the asked step matters"
    return (Problem("history-step", "step", what, "", remedy, Severity.INFO),)


def _spans(db: sqlite3.Connection, since_s: int, until_s: int) -> Iterator[_Span]:
    for grain in GRAINS:
        first, last = db.execute(
            f"SELECT min(key), max(key) FROM rollups_{grain.period_s} WHERE key >= ? AND key < ?",
            (key_of(since_s), key_of(until_s)),
        ).fetchone()
        if first is not None:
            yield _Span(grain.period_s, start_of(first), start_of(last))


def _check_size(rows: int, points: int) -> None:
    for count, limit, what in ((rows, MOST_ROWS, "roll-ups"), (points, MOST_POINTS, "points")):
        if count > limit:
            remedy = "ask for a shorter range, a longer step, fewer series or one target"
            raise _refused("range", f"up to {count} {what}", f"{limit}", remedy)
