"""What we may have written and what was there before: the undo data, safe from SIGKILL.

SQLite in WAL mode on a tmpfs with synchronous=OFF (hazard H15): the kernel keeps the pages of a
killed process, and nothing here outlives a boot, since cgroups do not either. That holds for
values in the runtime's spec too: containerd and CRI-O keep a spec only as long as its container.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from koordlet.model.actions import Target
from koordlet.model.knobs import Channel, Knob
from koordlet.model.paths import CgroupPath, CgroupPathError
from koordlet.protocol.problem import Problem, Severity
from koordlet.resexecutor import origins, unitrows
from koordlet.resexecutor.origins import Origins
from koordlet.setaside import set_aside

NAME: Final = "journal.db"
SCHEMA_VERSION: Final = 1
_BUSY_MS: Final = 100
_MEMORY_FILE_SYSTEMS: Final = frozenset({0x01021994, 0x858458F6})  # tmpfs, ramfs
_SHM: Final = Path("/dev/shm")

_ROW_COLUMNS: Final = (
    "boot_id, mount, path, knob, inode, channel, container_id, original, may_write,"
    " last_written, owner, side_effect, created_wall_s"
)
_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS rows ({_ROW_COLUMNS}, PRIMARY KEY (path, knob)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


class JournalError(Exception):
    """The journal cannot be read or written; the message says what, where and the remedy."""


@dataclass(frozen=True, slots=True)
class Row:
    """One file that we changed or are about to change.

    ``mount`` names the hierarchy (``cpu@/sys/fs/cgroup/cpu``), ``path`` the cgroup below the
    managed root, ``inode`` its directory there. Texts are canonical as the kernel shows them.
    ``may_write`` is every text that the file may hold by our doing: intermediates, and what the
    kernel leaves there when a related file is written (hazard H2). ``source`` says where the
    original comes from; "" is the file itself, before our first write. ``properties`` are those
    of a systemd unit behind its value (hazard H6).
    """

    mount: str
    path: CgroupPath
    knob: Knob
    inode: int
    original: str
    may_write: frozenset[str]
    last_written: str
    owner: str
    channel: Channel = Channel.FILE
    container_id: str = ""
    side_effect: bool = False
    created_wall_s: float = 0.0
    source: str = ""
    properties: tuple[unitrows.Original, ...] = ()

    @property
    def key(self) -> Target:
        return (self.path, self.knob)


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that names something we do not know; it is reported and never acted on (H27)."""

    path: str
    knob: str
    why: str


@dataclass(frozen=True, slots=True)
class Opened:
    """An open journal and what was found wrong or left over on the way."""

    journal: Journal
    problems: tuple[Problem, ...]


def journal_path(run_dir: Path, *, shm: Path = _SHM) -> Path:
    """Where the journal of ``run_dir`` lives: there if it is a tmpfs, else below ``/dev/shm``.

    Where neither is one it stays in ``run_dir``: a slow journal is better than none.
    """
    if _in_memory(run_dir) or not _in_memory(shm):
        return run_dir / NAME
    digest = hashlib.sha256(os.fsencode(run_dir.resolve())).hexdigest()[:16]
    return shm / "koordlet" / digest / NAME


def _in_memory(path: Path) -> bool:
    """statfs(2) on the nearest directory that exists; its first field is the type."""
    while not path.exists() and path != path.parent:
        path = path.parent
    answer = (ctypes.c_long * 32)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(path), ctypes.byref(answer)) != 0:
        return False
    return int(answer[0]) in _MEMORY_FILE_SYSTEMS


def prepare_directory(directory: Path) -> None:
    """Make ``directory`` 0700, and its parent too where that is missing.

    Raises JournalError where it, or the parent below a world-writable directory, is not ours
    alone: a journal says what root writes (hazard H27).
    """
    above = directory.parent
    for each in (above, directory):
        try:
            with contextlib.suppress(FileExistsError):
                each.mkdir(mode=0o700, parents=each is above)
            found = each.lstat()
        except OSError as error:
            raise JournalError(f"{each}: journal directory: {error.strerror}") from error
        private = found.st_uid == os.geteuid() and not found.st_mode & 0o022
        shared = each is above and bool(found.st_mode & stat.S_ISVTX)  # /dev/shm, /tmp
        if not stat.S_ISDIR(found.st_mode) or not (private or shared):
            raise JournalError(
                f"{each}: journal directory: owned by uid {found.st_uid}, mode"
                f" {stat.S_IMODE(found.st_mode):04o}; limit: a directory of uid {os.geteuid()}"
                " that nobody else may write; remedy: remove it"
            )


class Journal:
    """The open journal; one process writes it, one thread uses it.

    Every method raises JournalError where the file does not take or give what it should.
    """

    def __init__(self, db: sqlite3.Connection, path: Path, boot_id: str) -> None:
        self._db = db
        self._boot_id = boot_id
        self._origins = Origins(db)
        self._units = Origins(db, origins.UNITS)
        self.path = path

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        boot_id: str,
        managed_root: str,
        pid: int | None = None,
        runtime: str = "",
    ) -> Opened:
        """Open for writing; make the file where it is missing. ``pid`` is the daemon's core,
        ``runtime`` the endpoint of the container runtime that keeps specs; "" leaves it as it was.

        Rows of another boot are dropped. A file that is no journal is moved aside and reported.
        Raises JournalError for rows of another managed root or a newer schema: those must be
        rolled back first, with the program that wrote them.
        """
        prepare_directory(path.parent)
        problems: list[Problem] = []
        try:
            db = _connect(path)
        except sqlite3.OperationalError as error:
            raise _failure(path, "open", error) from error
        except sqlite3.DatabaseError as error:
            problems.append(_moved_aside(path, error))
            db = _connect_again(path)
        except OSError as error:
            raise _failure(path, "open", error) from error
        try:
            journal = cls(db, path, boot_id)
            problems += journal._take_over(managed_root, pid, runtime)
        except sqlite3.Error as error:
            db.close()
            raise _failure(path, "open", error) from error
        except JournalError:
            db.close()
            raise
        return Opened(journal, tuple(problems))

    @classmethod
    def read_only(cls, path: Path, *, boot_id: str) -> Journal:
        """Open an existing journal to look at it; nothing is changed."""
        uri = f"file:{path.absolute().as_posix().replace('?', '%3f').replace('#', '%23')}?mode=ro"
        try:
            db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_BUSY_MS / 1000)
            db.text_factory = _any_text
            db.execute("SELECT count(*) FROM rows").fetchone()
            return cls(db, path, boot_id)
        except sqlite3.Error as error:
            raise _failure(path, "read", error) from error

    def rows(self) -> tuple[tuple[Row, ...], tuple[BadRow, ...]]:
        """All rows of this boot, parents before children, and those that cannot be trusted."""
        good: list[Row] = []
        bad: list[BadRow] = []
        with self._guarded("read"):
            found = self._db.execute(
                f"SELECT {_ROW_COLUMNS} FROM rows WHERE boot_id = ?", (self._boot_id,)
            ).fetchall()
            sources, units = dict(self._origins.all()), dict(self._units.all())
        for values in found:
            try:
                row = _row_of(values)
                properties = unitrows.from_text(units.get(row.key, ""))
                source = sources.get(row.key, "")
                good.append(replace(row, source=source, properties=properties))
            except (ValueError, TypeError, CgroupPathError) as error:
                bad.append(BadRow(str(values[2]), str(values[3]), str(error)))
        good.sort(key=lambda row: (row.path.depth, row.path, row.knob.value))
        return tuple(good), tuple(bad)

    def begin(self, rows: Iterable[Row]) -> None:
        """Commit ``rows`` in one transaction and mark the journal as in the middle of a plan."""
        with self._guarded("write"), self._transaction():
            self._put(rows)
            self._set_meta({"clean": "0"})

    def update(self, rows: Iterable[Row], closed: Iterable[Target]) -> None:
        """Commit changed or further rows and drop the ``closed`` ones, in a plan or between."""
        with self._guarded("write"), self._transaction():
            self._put(rows)
            self._drop(closed)

    def finish(self, rows: Iterable[Row], closed: Iterable[Target]) -> None:
        """Commit what became of a plan and mark the journal clean."""
        with self._guarded("write"), self._transaction():
            self._put(rows)
            self._drop(closed)
            self._set_meta({"clean": "1"})

    def meta(self) -> dict[str, str]:
        """Facts beside the rows: ``managed_root``, ``pid`` of the daemon's core, ``runtime``,
        ``clean`` (``0`` in the middle of a plan), ``schema``.
        """
        with self._guarded("read"):
            return dict(self._db.execute("SELECT name, value FROM meta").fetchall())

    def close(self) -> None:
        """Close the file. Rows stay."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    def _take_over(self, managed_root: str, pid: int | None, runtime: str) -> list[Problem]:
        meta = dict(self._db.execute("SELECT name, value FROM meta").fetchall())
        schema = meta.get("schema", str(SCHEMA_VERSION))
        if schema != str(SCHEMA_VERSION):
            raise JournalError(
                f"{self.path}: schema {schema}; limit: {SCHEMA_VERSION}; remedy: roll back with"
                " the newer koordletctl that wrote it"
            )
        void = 0
        with self._transaction():
            void = self._db.execute(
                "DELETE FROM rows WHERE boot_id != ?", (self._boot_id,)
            ).rowcount
            self._origins.prune()
            self._units.prune()
        (live,) = self._db.execute("SELECT count(*) FROM rows").fetchone()
        before = meta.get("managed_root", managed_root)
        if live and before != managed_root:
            raise JournalError(
                f"{self.path}: holds {live} values below cgroup root {before}, not"
                f" {managed_root}; remedy: koordletctl rollback first"
            )
        with self._transaction():
            facts = {"schema": str(SCHEMA_VERSION), "managed_root": managed_root}
            facts |= {} if pid is None else {"pid": str(pid)}
            facts |= {"runtime": runtime} if runtime else {}
            self._set_meta(facts | ({} if live else {"clean": "1"}))
        return [_void_rows(self.path, void)] if void else []

    def _put(self, rows: Iterable[Row]) -> None:
        marks = ",".join("?" * 13)
        put = tuple(rows)
        self._db.executemany(
            f"INSERT OR REPLACE INTO rows ({_ROW_COLUMNS}) VALUES ({marks})",
            [_values_of(row, self._boot_id) for row in put],
        )
        self._origins.put([(_stored_key(row.key), row.source) for row in put])
        texts = [(_stored_key(row.key), unitrows.to_text(row.properties)) for row in put]
        self._units.put(texts)

    def _drop(self, closed: Iterable[Target]) -> None:
        keys = [_stored_key(key) for key in closed]
        self._db.executemany("DELETE FROM rows WHERE path = ? AND knob = ?", keys)
        self._origins.drop(keys)
        self._units.drop(keys)

    def _set_meta(self, facts: Mapping[str, str]) -> None:
        self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(facts.items()))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _failure(self.path, what, error) from error


def _any_text(raw: bytes) -> str:
    """Text that is no UTF-8 spoils its own row, not the reading of all others."""
    return raw.decode(errors="surrogateescape")


def _connect(path: Path) -> sqlite3.Connection:
    """Open, check and set up; raises sqlite3.DatabaseError for what is no sound database."""
    db = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_MS / 1000)
    db.text_factory = _any_text
    try:
        path.chmod(0o600)
        db.execute("PRAGMA journal_mode=WAL").fetchone()
        db.execute("PRAGMA synchronous=OFF")
        db.execute("PRAGMA cache_size=-256")  # KiB; the file lies in memory anyway
        (verdict,) = db.execute("PRAGMA quick_check").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        db.executescript(_SCHEMA + origins.SCHEMA)
        db.execute(f"SELECT {_ROW_COLUMNS} FROM rows LIMIT 1").fetchall()
    except BaseException:
        db.close()
        raise
    return db


def _connect_again(path: Path) -> sqlite3.Connection:
    try:
        return _connect(path)
    except (sqlite3.Error, OSError) as error:
        raise _failure(path, "open", error) from error


def _moved_aside(path: Path, error: sqlite3.Error) -> Problem:
    try:
        aside = set_aside(path)
    except OSError as fault:
        raise _failure(path, "move aside", fault) from error
    return Problem(
        "journal-damaged",
        str(path),
        f"not a sound journal ({error}); moved to {aside}",
        limit="the originals in it are lost: values written before stay in force",
        remedy="compare the cgroup files below the managed root with what their owners want",
    )


def _void_rows(path: Path, count: int) -> Problem:
    return Problem(
        "journal-other-boot",
        str(path),
        f"{count} rows of an earlier boot dropped: the cgroups that they name are gone",
        severity=Severity.INFO,
    )


def _failure(path: Path, what: str, error: Exception) -> JournalError:
    return JournalError(
        f"{path}: journal: cannot {what}: {error}; nothing new is written until it works;"
        " remedy: free space on its file system, or stop whoever holds it"
    )


def _stored(path: str) -> str | bytes:
    """A path as SQLite takes it: whoever makes a cgroup may give it a name that is no UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return os.fsencode(path)
    return str(path)


def _stored_key(key: Target) -> tuple[str | bytes, str]:
    return (_stored(key[0]), key[1].value)


def _values_of(row: Row, boot_id: str) -> tuple[str | bytes | int | float, ...]:
    return (
        boot_id,
        row.mount,
        _stored(row.path),
        row.knob.value,
        row.inode,
        row.channel.value,
        row.container_id,
        row.original,
        json.dumps(sorted(row.may_write)),
        row.last_written,
        row.owner,
        int(row.side_effect),
        row.created_wall_s,
    )


def _row_of(values: tuple[object, ...]) -> Row:
    texts = [os.fsdecode(each) if isinstance(each, bytes) else str(each) for each in values]
    path = CgroupPath.parse(texts[2])
    if path != texts[2]:
        raise ValueError(f"path {texts[2]!r} is not in its plain form")
    may_write = json.loads(texts[8])
    if not isinstance(may_write, list):
        raise ValueError("may_write is not a list")
    return Row(
        mount=texts[1],
        path=path,
        knob=Knob(texts[3]),
        inode=int(texts[4]),
        channel=Channel(texts[5]),
        container_id=texts[6],
        original=texts[7],
        may_write=frozenset(str(text) for text in may_write),
        last_written=texts[9],
        owner=texts[10],
        side_effect=texts[11] == "1",
        created_wall_s=float(texts[12]),
    )
