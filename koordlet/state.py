"""What must outlive a restart: a versioned key-value store in the state directory.

Written by the front, never by the tick thread (hazard H15).
"""

from __future__ import annotations

import json
import sqlite3
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from koordlet.model.actions import Mode
from koordlet.protocol.problem import Problem
from koordlet.setaside import set_aside
from koordlet.standing import ALL, ModeOrder, Standing

VERSION = 1
_STANDING = "standing"


class StateStore:
    """``state.db``: one JSON document per key; a document of another version is ignored.

    A file that is no database any more is moved aside; ``lost`` then says so. Where the disk takes
    or gives no file, documents are kept in memory: ``unstored`` says so, and ``lost`` too if there
    was one that cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self.lost: Problem | None = None
        self.unstored: Problem | None = None
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                self._db = _opened(path)
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError as error:
                self.lost = _moved_aside(path, error)
                self._db = _opened(path)
        except (sqlite3.OperationalError, OSError) as error:
            self._db = _opened(":memory:")
            self.unstored = _unstored(path, error)
            if _holds_something(path):
                self.lost = self.unstored

    def put(self, key: str, document: Any) -> None:
        """Store ``document`` durably before returning; raises sqlite3.Error when it cannot."""
        with self._lock:
            self._db.execute(
                "INSERT OR REPLACE INTO state VALUES (?, ?, ?)",
                (key, VERSION, json.dumps(document)),
            )

    def get(self, key: str) -> Any | None:
        """The document of ``key``, or None."""
        with self._lock:
            row = self._db.execute(
                "SELECT document FROM state WHERE key = ? AND version = ?", (key, VERSION)
            ).fetchone()
        return None if row is None else json.loads(row[0])

    def close(self) -> None:
        with self._lock:
            self._db.close()


def _opened(path: Path | str) -> sqlite3.Connection:
    """Without WAL: that needs room for two more files before the first can be read."""
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode=DELETE")
        db.execute("PRAGMA cache_size=-64")  # KiB; one row at a time needs no more
        db.execute(
            "CREATE TABLE IF NOT EXISTS state"
            " (key TEXT PRIMARY KEY, version INTEGER NOT NULL, document TEXT NOT NULL)"
        )
    except sqlite3.Error:
        db.close()
        raise
    return db


def _holds_something(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _unstored(path: Path, error: Exception) -> Problem:
    return Problem(
        code="state-not-stored",
        where=str(path),
        what=f"cannot be used: {error}; orders are kept in memory, until this process ends",
        remedy="make room on its file system, then restart koordlet",
    )


def _moved_aside(path: Path, error: sqlite3.DatabaseError) -> Problem:
    kept = set_aside(path)
    return Problem(
        code="state-damaged",
        where=str(path),
        what=f"it is no database ({error}); kept as {kept}. The operator's orders in it are lost,"
        " so nothing is enforced",
        remedy="koordletctl resume, then give the orders again",
    )


def save_standing(store: StateStore, standing: Standing) -> None:
    """Persist the operator's orders."""
    modes = [asdict(order) | {"mode": order.mode.value} for order in standing.modes]
    store.put(_STANDING, {"modes": modes, "released": list(standing.released)})


def load_standing(store: StateStore) -> Standing:
    """The persisted orders, or none. Where they were lost an order to stand back may have been
    among them, so everything is released until somebody resumes.
    """
    if store.lost is not None:
        standing = Standing().with_release(ALL)
        save_standing(store, standing)
        return standing
    document = store.get(_STANDING)
    if document is None:
        return Standing()
    orders = tuple(
        ModeOrder(entry["strategy"], Mode(entry["mode"]), entry["until_wall_s"])
        for entry in document["modes"]
    )
    return Standing(orders, tuple(document["released"]))
