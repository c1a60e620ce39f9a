"""Sandboxes and containers that the proxy knows, in memory and in a checkpoint on disk.

The checkpoint saves asking the runtime about each of them after a restart. It is never believed
against the runtime: what is wrong or missing in it comes back with the next reconciliation. So a
disk that fails costs time, not calls.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
from google.protobuf.message import DecodeError
from koordpb import cri_v1_pb2 as pb

from runtimeproxy.cri.records import Container, Sandbox

_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS sandboxes (
  id TEXT PRIMARY KEY, runtime_handler TEXT NOT NULL, config BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS containers (
  id TEXT PRIMARY KEY, sandbox_id TEXT NOT NULL, config BLOB NOT NULL
) WITHOUT ROWID;
"""
_BUSY_S = 0.25  # another process writes only while it drains


class Store:
    """``open`` reads the checkpoint; until then, and after ``close``, nothing is saved."""

    def __init__(self, path: Path) -> None:
        self.sandboxes: dict[str, Sandbox] = {}
        self.containers: dict[str, Container] = {}
        self.problem = ""
        self._path = path
        self._database: sqlite3.Connection | None = None
        self._log = structlog.get_logger().bind(part="store")

    def open(self) -> None:
        """Read what was saved. A file that is damaged is begun anew."""
        with self._tolerated():
            try:
                self._load()
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                self._log.warning("checkpoint begun anew", path=str(self._path), why=str(error))
                self.close()
                for suffix in ("", "-wal", "-shm"):
                    Path(f"{self._path}{suffix}").unlink(missing_ok=True)
                self._load()

    def close(self) -> None:
        """Let the file go; what is in memory stays."""
        if self._database is not None:
            self._database.close()
            self._database = None

    # -- changes -------------------------------------------------------------------------------

    def put_sandbox(self, sandbox: Sandbox) -> None:
        self.sandboxes[sandbox.id] = sandbox
        self._save(
            "INSERT OR REPLACE INTO sandboxes VALUES (?, ?, ?)",
            (sandbox.id, sandbox.runtime_handler, sandbox.config.SerializeToString()),
        )

    def put_container(self, container: Container) -> None:
        self.containers[container.id] = container
        self._save(
            "INSERT OR REPLACE INTO containers VALUES (?, ?, ?)",
            (container.id, container.sandbox_id, container.config.SerializeToString()),
        )

    def drop_sandbox(self, sandbox_id: str) -> None:
        """The sandbox is gone, and its containers with it."""
        self.sandboxes.pop(sandbox_id, None)
        self._save("DELETE FROM sandboxes WHERE id = ?", (sandbox_id,))
        for container in list(self.containers.values()):
            if container.sandbox_id == sandbox_id:
                self.drop_container(container.id)

    def drop_container(self, container_id: str) -> None:
        self.containers.pop(container_id, None)
        self._save("DELETE FROM containers WHERE id = ?", (container_id,))

    # -- the file ------------------------------------------------------------------------------

    def _load(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Environment variables hold secrets: nobody else may read them, not even for a moment.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        database = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
        self._database = database
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _SCHEMA_VERSION):
            raise sqlite3.DatabaseError(f"its version is {version}, not {_SCHEMA_VERSION}")
        database.executescript(_SCHEMA)
        database.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        try:
            self._read(database)
        except DecodeError as error:
            raise sqlite3.DatabaseError(f"a row is damaged: {error}") from error

    def _read(self, database: sqlite3.Connection) -> None:
        for id_, handler, config in database.execute("SELECT * FROM sandboxes"):
            self.sandboxes.setdefault(
                id_, Sandbox(id_, pb.PodSandboxConfig.FromString(config), handler)
            )
        for id_, sandbox_id, config in database.execute("SELECT * FROM containers"):
            self.containers.setdefault(
                id_, Container(id_, sandbox_id, pb.ContainerConfig.FromString(config))
            )

    def _save(self, statement: str, values: tuple[str | bytes, ...]) -> None:
        if self._database is not None:
            with self._tolerated():
                self._database.execute(statement, values)

    @contextmanager
    def _tolerated(self) -> Iterator[None]:
        """Faults of the disk are told, once for each kind, and cost only what is saved."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if str(error) != self.problem:
                self._log.warning("checkpoint not written", path=str(self._path), why=str(error))
            self.problem = str(error)
        else:
            self.problem = ""
