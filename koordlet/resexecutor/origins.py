"""Where the originals of journal rows come from that were not read from their file (hazard H14).

A table of its own beside the rows: versions that do not know of it can take the journal over.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Final

from koordlet.model.actions import Target
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS origins (path, knob, source TEXT, PRIMARY KEY (path, knob))
WITHOUT ROWID;
"""
_KNOBS: Final = {knob.value: knob for knob in Knob}

StoredKey = tuple[str | bytes, str]
"""A target as the journal stores it."""


class Origins:
    """The table in an open journal. Every method raises sqlite3.Error; the caller's transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        tables = "SELECT count(*) FROM sqlite_master WHERE name = 'origins'"
        self._has_table = bool(db.execute(tables).fetchone()[0])
        self._is_empty = not self._has_table or not self._count()

    def all(self) -> Iterator[tuple[Target, str]]:
        """Each source by target."""
        if self._is_empty:
            return
        for path, knob, source in self._db.execute("SELECT path, knob, source FROM origins"):
            if knob in _KNOBS:
                text = os.fsdecode(path) if isinstance(path, bytes) else str(path)
                yield (CgroupPath(text), _KNOBS[knob]), str(source)

    def put(self, rows: Iterable[tuple[StoredKey, str]]) -> None:
        """Keep the sources; "" is the file itself, and needs no entry."""
        known = [(*key, source) for key, source in rows if source]
        if not self._is_empty:
            self.drop(key for key, source in rows if not source)
        if known:
            self._db.executemany("INSERT OR REPLACE INTO origins VALUES (?, ?, ?)", known)
            self._is_empty = False

    def drop(self, keys: Iterable[StoredKey]) -> None:
        """Forget the sources of rows that left."""
        if not self._is_empty:
            self._db.executemany("DELETE FROM origins WHERE path = ? AND knob = ?", list(keys))

    def prune(self) -> None:
        """Forget what belongs to no row: another version dropped it, or another boot."""
        if not self._is_empty:
            rows = "SELECT path, knob FROM rows"
            self._db.execute(f"DELETE FROM origins WHERE (path, knob) NOT IN ({rows})")
            self._is_empty = not self._count()

    def _count(self) -> int:
        (count,) = self._db.execute("SELECT count(*) FROM origins").fetchone()
        return int(count)
