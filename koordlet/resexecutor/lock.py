"""One writer per managed cgroup root, whatever the run directories say (hazard H14)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LOCK_DIR = Path("/run/koordlet-locks")
WRITER_BUSY = "writer-busy"
"""Code of the problem that another process holds the lock."""

_POLL_S = 0.05


class LockError(OSError):
    """The lock directory or file cannot be trusted or made; nothing is written without it."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Another process holds the lock; ``pid`` is 0 where it left no number."""

    pid: int
    path: Path


class Lock:
    """The held lock. The kernel frees it when the last process that shares the fd is gone.

    The descriptor is close-on-exec and survives a fork, so a forked core keeps the lock when its
    supervisor dies.
    """

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self.path = path

    def fileno(self) -> int:
        return self._fd

    def sign(self, pid: int) -> None:
        """Write ``pid`` into the file, for whoever finds the lock taken."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{pid}\n".encode(), 0)

    def release(self) -> None:
        """Drop the lock in this process; other processes that share it keep it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def acquire(
    root_identity: tuple[int, int], *, lock_dir: Path = LOCK_DIR, pid: int | None = None
) -> Lock | Busy:
    """Take the lock of the managed root with ``root_identity`` (st_dev, st_ino), not waiting.

    Raises LockError where the directory is not ours alone (root-owned, 0700, no symlink).
    """
    _prepare(lock_dir)
    device, inode = root_identity
    path = lock_dir / f"{device}-{inode}"
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        raise LockError(error.errno, f"{path}: lock file: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = _pid_in(fd)
        os.close(fd)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return Busy(holder, path)
        raise LockError(error.errno, f"{path}: flock: {error.strerror}") from error
    lock = Lock(fd, path)
    lock.sign(os.getpid() if pid is None else pid)
    return lock


def acquire_within(
    root_identity: tuple[int, int],
    wait_s: float,
    *,
    lock_dir: Path = LOCK_DIR,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Lock | Busy:
    """As ``acquire``, waiting up to ``wait_s``: a killed writer stuck in the kernel still holds
    the lock until its last write returns (hazard H11).
    """
    deadline_s = now_s() + wait_s
    while True:
        taken = acquire(root_identity, lock_dir=lock_dir)
        if isinstance(taken, Lock) or now_s() >= deadline_s:
            return taken
        sleep(_POLL_S)


def _prepare(lock_dir: Path) -> None:
    with contextlib.suppress(FileExistsError):
        lock_dir.mkdir(mode=0o700, parents=True)
    found = lock_dir.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise LockError(errno.ENOTDIR, f"{lock_dir}: lock directory: is no plain directory")
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise LockError(
            errno.EPERM,
            f"{lock_dir}: lock directory: owned by uid {found.st_uid}, mode"
            f" {stat.S_IMODE(found.st_mode):04o}; limit: owned by uid {os.geteuid()}, 0700;"
            " remedy: remove it",
        )


def _pid_in(fd: int) -> int:
    text = os.pread(fd, 32, 0).split()
    return int(text[0]) if text and text[0].isdigit() else 0
