"""What the journal keeps beside its rows: where an original comes from that was not read from its
file (hazard H14), and of a systemd unit's value what its properties were (hazard H6).

Tables of their own: versions that do not know of them can take the journal over.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Final

from koordlet.model.actions import Target
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath

SOURCES: Final = "origins"
UNITS: Final = "unit_originals"
SCHEMA: Final = "".join(
    f"CREATE TABLE IF NOT EXISTS {table} (path, knob, source TEXT, PRIMARY KEY (path, knob))"
    " WITHOUT ROWID;\n"
    for table in (SOURCES, UNITS)
)
_KNOBS: Final = {knob.value: knob for knob in Knob}

StoredKey = tuple[str | bytes, str]
"""A target as the journal stores it."""


class Origins:
    """One such table in an open journal, a text for some rows.

    Every method raises sqlite3.Error; the caller's transaction.
    """

    def __init__(self, db: sqlite3.Connection, table: str = SOURCES) -> None:
        self._db = db
        self._table = table
        tables = "SELECT count(*) FROM sqlite_master WHERE name = ?"
        self._has_table = bool(db.execute(tables, (table,)).fetchone()[0])
        self._is_empty = not self._has_table or not self._count()

    def all(self) -> Iterator[tuple[Target, str]]:
        """Each text by target."""
        if self._is_empty:
            return
        for path, knob, source in self._db.execute(f"SELECT path, knob, source FROM {self._table}"):
            if knob in _KNOBS:
                text = os.fsdecode(path) if isinstance(path, bytes) else str(path)
                yield (CgroupPath(text), _KNOBS[knob]), str(source)

    def put(self, rows: Iterable[tuple[StoredKey, str]]) -> None:
        """Keep the texts; "" needs no entry: a source of "" is the file itself."""
        known = [(*key, source) for key, source in rows if source]
        if not self._is_empty:
            self.drop(key for key, source in rows if not source)
        if known:
            self._db.executemany(f"INSERT OR REPLACE INTO {self._table} VALUES (?, ?, ?)", known)
            self._is_empty = False

    def drop(self, keys: Iterable[StoredKey]) -> None:
        """Forget the texts of rows that left."""
        if not self._is_empty:
            delete = f"DELETE FROM {self._table} WHERE path = ? AND knob = ?"
            self._db.executemany(delete, list(keys))

    def prune(self) -> None:
        """Forget what belongs to no row: another version dropped it, or another boot."""
        if not self._is_empty:
            rows = "SELECT path, knob FROM rows"
            self._db.execute(f"DELETE FROM {self._table} WHERE (path, knob) NOT IN ({rows})")
            self._is_empty = not self._count()

    def _count(self) -> int:
        (count,) = self._db.execute(f"SELECT count(*) FROM {self._table}").fetchone()
        return int(count)
