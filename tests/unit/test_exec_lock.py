"""One writer for each managed root."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from koordlet.resexecutor.lock import Busy, Lock, LockError, acquire, acquire_within

ROOT = (30, 7)


def take(directory: Path) -> Lock:
    lock = acquire(ROOT, lock_dir=directory)
    assert isinstance(lock, Lock)
    return lock


def test_H14_a_second_daemon_is_told_who_holds_the_root(tmp_path: Path) -> None:
    directory = tmp_path / "locks"
    lock = take(directory)
    assert lock.path == directory / "30-7"
    assert acquire(ROOT, lock_dir=directory) == Busy(os.getpid(), lock.path)
    other = acquire((30, 8), lock_dir=directory)
    assert isinstance(other, Lock)
    lock.release()
    take(directory).release()
    other.release()


def test_the_lock_does_not_survive_an_exec_but_a_fork(tmp_path: Path) -> None:
    directory = tmp_path / "locks"
    lock = take(directory)
    assert fcntl.fcntl(lock.fileno(), fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    code = (
        "import sys\nfrom pathlib import Path\nfrom koordlet.resexecutor.lock import acquire\n"
        f"print(acquire({ROOT}, lock_dir=Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", code, str(directory)]
    assert "Busy" in subprocess.check_output(command, text=True)
    ready, hold = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:  # the forked core outlives its supervisor, and keeps the lock
        os.write(ready[1], b"x")
        os.read(hold[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    lock.release()
    assert isinstance(acquire(ROOT, lock_dir=directory), Busy)
    os.write(hold[1], b"x")
    os.waitpid(pid, 0)
    take(directory).release()
    for fd in (*ready, *hold):
        os.close(fd)


def test_H11_a_rollback_waits_for_a_killed_writer(tmp_path: Path) -> None:
    directory = tmp_path / "locks"
    lock = take(directory)
    at_s = [0.0]

    def sleep(seconds: float) -> None:
        at_s[0] += seconds
        if at_s[0] > 1.0:
            lock.release()

    def waited(wait_s: float) -> Lock | Busy:
        return acquire_within(ROOT, wait_s, lock_dir=directory, now_s=lambda: at_s[0], sleep=sleep)

    assert isinstance(waited(0.5), Busy)
    got = waited(5.0)
    assert isinstance(got, Lock)
    got.release()


def test_a_loose_lock_directory_is_refused(tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o755)
    with pytest.raises(LockError, match="0755"):
        acquire(ROOT, lock_dir=loose)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(LockError, match="no plain directory"):
        acquire(ROOT, lock_dir=link)
    good = tmp_path / "good"
    take(good).release()
    (good / "30-7").unlink()
    (good / "30-7").symlink_to("/etc/passwd")
    with pytest.raises(LockError):
        acquire(ROOT, lock_dir=good)
