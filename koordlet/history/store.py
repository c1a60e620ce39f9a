"""``history.db``: roll-ups by minute, ten minutes and hour, in a file of bounded size.

One row is one subject over one period: ``key`` is the period's start in minutes since the epoch,
shifted left by 24 bits, plus the subject's number. So what belongs to one minute lies together and
is appended at the end, and a subject's roll-ups are found without an index. Loss of power may lose
the newest minutes, never the file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from koordlet.history.codec import CodecError, repacked
from koordlet.history.fields import ALL_SERIES
from koordlet.history.levels import DAY_S, GRAINS, MINUTE_S, Fate, Held, Work, next_work
from koordlet.history.rollup import Row, Subject

VERSION = 1
SUBJECT_BITS = 24
MOST_SUBJECTS = 1 << SUBJECT_BITS
_MASK = MOST_SUBJECTS - 1
MERGED_AT_ONCE = 32
"""Subjects whose roll-ups are merged in one transaction: some 20 ms of work."""
FULL_AT = 0.9
"""From this share of the size limit on, room is made."""
WAL_BYTES = 1 << 20
"""What the log beside the file keeps after it was copied there, every 1000 pages."""
_SEEN_EVERY_MINUTES = 60

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS subjects (
  id INTEGER PRIMARY KEY, level TEXT NOT NULL, name TEXT NOT NULL, namespace TEXT NOT NULL,
  pod TEXT NOT NULL, uid TEXT NOT NULL, container TEXT NOT NULL, qos TEXT, seen_minute INTEGER,
  UNIQUE (level, name, namespace, pod, uid, container));
CREATE TABLE IF NOT EXISTS series (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
{
    "".join(
        f"CREATE TABLE IF NOT EXISTS rollups_{grain.period_s}"
        " (key INTEGER PRIMARY KEY, data BLOB NOT NULL);"
        for grain in GRAINS
    )
}
PRAGMA user_version = {VERSION};
"""


def key_of(start_s: int, subject: int = 0) -> int:
    """The key of a subject's roll-up, or the first one of a period."""
    return (start_s // MINUTE_S) << SUBJECT_BITS | subject


def start_of(key: int) -> int:
    """When the period of a key began."""
    return (key >> SUBJECT_BITS) * MINUTE_S


@dataclass(frozen=True, slots=True)
class Limits:
    """How long roll-ups are kept at most, and how large the file may be."""

    keep_days: float
    keep_bytes: int


class HistoryStore:
    """The writer's side, for one thread. Raises sqlite3.OperationalError where the disk takes
    nothing, sqlite3.DatabaseError where the file is damaged or of another version.
    """

    def __init__(self, path: Path) -> None:
        self._known: dict[Subject, tuple[int, str | None]] = {}
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._prepare()
        except sqlite3.Error:
            self._db.close()
            raise

    def _prepare(self) -> None:
        db = self._db
        db.execute("PRAGMA auto_vacuum=INCREMENTAL")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("PRAGMA cache_size=-256")  # KiB; the default of 2 MiB fills with time
        db.execute(f"PRAGMA journal_size_limit={WAL_BYTES}")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            raise sqlite3.DatabaseError(f"history of version {version}, not {VERSION}")
        db.executescript(_SCHEMA)
        names = [(name,) for name in ALL_SERIES]
        db.executemany("INSERT OR IGNORE INTO series (name) VALUES (?)", names)
        self.numbers: Mapping[str, int] = dict(db.execute("SELECT name, id FROM series"))

    def close(self) -> None:
        self._db.close()

    def size_bytes(self) -> int:
        """Bytes of all pages in use."""
        return (self._pragma("page_count") - self._pragma("freelist_count")) * self._page_bytes()

    def _pragma(self, name: str) -> int:
        return int(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    def _page_bytes(self) -> int:
        return self._pragma("page_size")

    # -- what is new ------------------------------------------------------------------------------

    def append(self, minute: int, rows: Mapping[Subject, Row]) -> None:
        """Store a minute, or a further piece of one: what is there already is added to."""
        start_s = minute * MINUTE_S
        with self._transaction():
            numbered = self._numbered(minute, rows)
            self._add(MINUTE_S, start_s, {number: (data,) for number, data in numbered.items()})

    def _numbered(self, minute: int, rows: Mapping[Subject, Row]) -> dict[int, bytes]:
        before, self._known = self._known, {}
        found: dict[int, bytes] = {}
        for subject, row in rows.items():
            qos = None if row.qos is None else row.qos.value
            number, known_qos = before.get(subject) or self._look_up(subject, qos, minute)
            if number >= MOST_SUBJECTS:
                continue
            if qos is not None and qos != known_qos:
                self._db.execute("UPDATE subjects SET qos = ? WHERE id = ?", (qos, number))
            self._known[subject] = number, qos or known_qos
            found[number] = row.data
        gone = [number for subject, (number, _) in before.items() if subject not in self._known]
        self._seen(minute, found if minute % _SEEN_EVERY_MINUTES == 0 else gone)
        return found

    def _look_up(self, subject: Subject, qos: str | None, minute: int) -> tuple[int, str | None]:
        values = (subject.level.value, *(_text(part) for part in subject[1:]))
        row = self._db.execute(
            "SELECT id, qos FROM subjects WHERE level = ? AND name = ? AND namespace = ?"
            " AND pod = ? AND uid = ? AND container = ?",
            values,
        ).fetchone()
        if row is not None:
            return int(row[0]), row[1]
        number = self._db.execute(
            "INSERT INTO subjects (level, name, namespace, pod, uid, container, qos, seen_minute)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*values, qos, minute),
        ).lastrowid
        return int(number or 0), qos

    def _seen(self, minute: int, numbers: Iterable[int]) -> None:
        """Of what is there this is written once an hour, and when it has left."""
        self._db.executemany(
            "UPDATE subjects SET seen_minute = ? WHERE id = ?",
            [(minute, number) for number in numbers],
        )

    def _add(self, period_s: int, start_s: int, rows: Mapping[int, tuple[bytes, ...]]) -> None:
        """Put rows by subject into a period, merged with those that are there."""
        table = f"rollups_{period_s}"
        span = (key_of(start_s, min(rows, default=0)), key_of(start_s, max(rows, default=0)))
        there = dict(
            self._db.execute(f"SELECT key, data FROM {table} WHERE key BETWEEN ? AND ?", span)
        )
        puts: list[tuple[int, bytes]] = []
        for number in sorted(rows):
            key, parts = key_of(start_s, number), rows[number]
            if key in there:
                parts = (there[key], *parts)
            puts.append((key, parts[0] if len(parts) == 1 else _merged(parts)))
        self._db.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", puts)

    # -- what is old ------------------------------------------------------------------------------

    def settle(
        self,
        now_s: float,
        limits: Limits,
        *,
        trusts_clock: bool,
        breathe: Callable[[], None] = lambda: None,
    ) -> bool:
        """One step of making room; False where there is nothing to do. See ``next_work``."""
        work = next_work(
            self._held(),
            now_s,
            keep_s=limits.keep_days * DAY_S,
            is_short=self.size_bytes() > FULL_AT * limits.keep_bytes,
            trusts_clock=trusts_clock,
        )
        if work is None:
            return False
        if work.fate is Fate.MERGE:
            while self._merge_some(work):
                breathe()
        else:
            self._drop(work)
        self._tidy(limits.keep_bytes)
        return True

    def _held(self) -> dict[int, Held]:
        held: dict[int, Held] = {}
        for grain in GRAINS:
            table = f"rollups_{grain.period_s}"
            first, last = self._db.execute(
                f"SELECT (SELECT min(key) FROM {table}), (SELECT max(key) FROM {table})"
            ).fetchone()
            if first is not None:
                (size,) = self._db.execute(
                    f"SELECT sum(length(data)) FROM {table} WHERE key >= ?",
                    (key_of(start_of(last)),),
                ).fetchone()
                held[grain.period_s] = Held(start_of(first), start_of(last), size)
        return held

    def _merge_some(self, work: Work) -> bool:
        """Merge the roll-ups of a few subjects; False where none is left. Killed in between, the
        rest is merged next time: a subject's rows are in one table or in the other.
        """
        table, span = f"rollups_{work.grain.period_s}", _span(work)
        with self._transaction():
            numbers = [
                number
                for (number,) in self._db.execute(
                    f"SELECT DISTINCT key & {_MASK} AS subject FROM {table}"
                    " WHERE key >= ? AND key < ? ORDER BY subject LIMIT ?",
                    (*span, MERGED_AT_ONCE),
                )
            ]
            if not numbers:
                return False
            which = f"key >= ? AND key < ? AND key & {_MASK} <= ?"
            limits = (*span, numbers[-1])
            rows: dict[int, tuple[bytes, ...]] = {}
            select = f"SELECT key, data FROM {table} WHERE {which}"
            for key, data in self._db.execute(select, limits):
                rows[key & _MASK] = (*rows.get(key & _MASK, ()), data)
            self._add(work.grain.next_s, work.start_s, rows)
            self._db.execute(f"DELETE FROM {table} WHERE {which}", limits)
        return True

    def _drop(self, work: Work) -> None:
        with self._transaction():
            self._db.execute(
                f"DELETE FROM rollups_{work.grain.period_s} WHERE key >= ? AND key < ?",
                _span(work),
            )

    def _tidy(self, keep_bytes: int) -> None:
        """Forget subjects of which nothing is left, and give space back where the file is larger
        than it may be: free pages are used again, so that this is rare.
        """
        held = self._held()
        if held:
            oldest = min(each.first_s for each in held.values()) // MINUTE_S
            with self._transaction():
                gone = self._db.execute(
                    "DELETE FROM subjects WHERE seen_minute < ?", (oldest - _SEEN_EVERY_MINUTES,)
                )
            if gone.rowcount:
                self._known = {}
        if self._pragma("page_count") * self._page_bytes() > keep_bytes:
            # A page a step: execute() would take a single one.
            self._db.executescript("PRAGMA incremental_vacuum")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            self._known = {}  # numbers that were given in here are not
            if self._db.in_transaction:  # a full disk ends it by itself
                self._db.execute("ROLLBACK")
            raise


def _span(work: Work) -> tuple[int, int]:
    return key_of(work.start_s), key_of(work.end_s)


def _merged(parts: tuple[bytes, ...]) -> bytes:
    try:
        return repacked(parts)
    except CodecError as error:
        raise sqlite3.DatabaseError(f"a damaged roll-up: {error}") from error


def _text(part: object) -> str:
    """A cgroup's name need not be UTF-8; what SQLite cannot take is shown as "?"."""
    return str(part).encode(errors="replace").decode()
