"""What was done to this host, by whom and why: the event, and the store that the front keeps."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from koordlet.model.actions import Terms

SECONDS_PER_DAY = 86_400
_PRUNE_TO = 0.9
"""A store above its size limit is cut to this share of it, so that cuts stay rare."""

_COLUMNS = (
    "at_wall_s, kind, owner, target, knob, path, pod, from_text, to_text, reason, terms, outcome"
)
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, {_COLUMNS});
CREATE INDEX IF NOT EXISTS events_at ON events (at_wall_s);
CREATE INDEX IF NOT EXISTS events_pod ON events (pod, at_wall_s) WHERE pod != '';
"""


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One thing that happened to one file. Texts are as the kernel shows them.

    ``kind``: write, restore, reset, rebased, adopted, gone, order, or else the Status value.
    ``target`` and ``knob`` are names below the managed root, ``path`` the kernel file, ``pod``
    the pod's uid where there is one. ``outcome`` is a Status value.
    """

    at_wall_s: float
    kind: str
    owner: str
    target: str = ""
    knob: str = ""
    path: str = ""
    pod: str = ""
    from_text: str = ""
    to_text: str = ""
    reason: str = ""
    terms: Terms = ()
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Which events: wall seconds, ``until_s`` excluded; ``""`` and None mean any.

    ``path`` is a kernel file or a cgroup below the managed root.
    """

    since_s: float | None = None
    until_s: float | None = None
    pod: str = ""
    knob: str = ""
    owner: str = ""
    path: str = ""
    limit: int = 1_000


class AuditStore:
    """SQLite in the state directory; any thread of one process may use it.

    Events older than ``keep_days`` leave, then the oldest while the file is above ``keep_bytes``.
    Raises sqlite3.Error where the disk does not take the file.
    """

    def __init__(self, path: Path, *, keep_days: float = 30, keep_bytes: int = 64 << 20) -> None:
        self.keep(keep_days)
        self._keep_bytes = keep_bytes
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA auto_vacuum=INCREMENTAL")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("PRAGMA cache_size=-256")  # KiB; the default of 2 MiB fills with time
        self._db.executescript(_SCHEMA)

    def keep(self, days: float) -> None:
        """Another age of the oldest event, from the next ``prune`` on."""
        self._keep_s = days * SECONDS_PER_DAY

    def append(self, events: Iterable[AuditEvent]) -> int:
        """Add a batch in one transaction; gives back how many."""
        rows = [_row(event) for event in events]
        if rows:
            marks = ",".join("?" * len(rows[0]))
            with self._lock, self._transaction():
                self._db.executemany(f"INSERT INTO events ({_COLUMNS}) VALUES ({marks})", rows)
        return len(rows)

    def query(self, query: AuditQuery) -> tuple[AuditEvent, ...]:
        """The newest ``limit`` events that match, oldest of them first."""
        where, values = _where(query)
        text = f"SELECT {_COLUMNS} FROM events{where} ORDER BY at_wall_s DESC, id DESC LIMIT ?"
        with self._lock:
            found = self._db.execute(text, (*values, query.limit)).fetchall()
        return tuple(_event(row) for row in reversed(found))

    def prune(self, wall_s: float) -> int:
        """Apply the retention; gives back how many events left."""
        with self._lock, self._transaction():
            gone = self._db.execute(
                "DELETE FROM events WHERE at_wall_s < ?", (wall_s - self._keep_s,)
            ).rowcount
            gone += self._cut_to_size()
        with self._lock:
            # A page a step: execute() would take a single one.
            self._db.executescript("PRAGMA incremental_vacuum")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return gone

    def size_bytes(self) -> int:
        """Bytes of all pages in use."""
        (pages,) = self._db.execute("PRAGMA page_count").fetchone()
        (free,) = self._db.execute("PRAGMA freelist_count").fetchone()
        (page,) = self._db.execute("PRAGMA page_size").fetchone()
        return int((pages - free) * page)

    def close(self) -> None:
        """Close the file; events already appended are kept."""
        with self._lock:
            self._db.close()

    def _cut_to_size(self) -> int:
        size = self.size_bytes()
        if size <= self._keep_bytes:
            return 0
        (count,) = self._db.execute("SELECT count(*) FROM events").fetchone()
        surplus = int(count * (1 - _PRUNE_TO * self._keep_bytes / size)) + 1
        oldest = "SELECT id FROM events ORDER BY at_wall_s, id LIMIT ?"
        return self._db.execute(f"DELETE FROM events WHERE id IN ({oldest})", (surplus,)).rowcount

    def _transaction(self) -> _Transaction:
        return _Transaction(self._db)


class _Transaction:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._db.execute("COMMIT" if kind is None else "ROLLBACK")


def _row(event: AuditEvent) -> tuple[float | str, ...]:
    texts = (
        event.kind,
        event.owner,
        event.target,
        event.knob,
        event.path,
        event.pod,
        event.from_text,
        event.to_text,
        event.reason,
        json.dumps(event.terms),
        event.outcome,
    )
    # A cgroup's name need not be UTF-8; what SQLite cannot take is shown as "?".
    return (event.at_wall_s, *(text.encode(errors="replace").decode() for text in texts))


def _event(row: Sequence[object]) -> AuditEvent:
    at, kind, owner, target, knob, path, pod, before, after, reason, terms, outcome = row
    return AuditEvent(
        float(str(at)),
        kind=str(kind),
        owner=str(owner),
        target=str(target),
        knob=str(knob),
        path=str(path),
        pod=str(pod),
        from_text=str(before),
        to_text=str(after),
        reason=str(reason),
        terms=tuple((name, number) for name, number in json.loads(str(terms))),
        outcome=str(outcome),
    )


def _where(query: AuditQuery) -> tuple[str, list[float | str]]:
    clauses: list[str] = []
    values: list[float | str] = []
    if query.since_s is not None:
        clauses.append("at_wall_s >= ?")
        values.append(query.since_s)
    if query.until_s is not None:
        clauses.append("at_wall_s < ?")
        values.append(query.until_s)
    for column in ("pod", "knob", "owner"):
        wanted = getattr(query, column)
        if wanted:
            clauses.append(f"{column} = ?")
            values.append(wanted)
    if query.path:
        clauses.append("(path = ? OR target = ?)")
        values += [query.path, query.path.strip("/")]
    return (" WHERE " + " AND ".join(clauses) if clauses else ""), values
