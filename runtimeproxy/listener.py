"""The socket that clients connect to: inherited, or made without stealing one (hazard H19)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from pathlib import Path

from koordlet.protocol.problem import Problem, RefusedError

FIRST_PASSED_FD = 3
_BACKLOG = 1024
_FIRST_MODE = 0o600


class Listener:
    """A listening unix socket. ``inherited``: it outlives us, and clients wait in its queue."""

    def __init__(
        self, sock: socket.socket, path: Path, *, inherited: bool, lock_fd: int | None = None
    ) -> None:
        self.socket = sock
        self.path = path
        self.inherited = inherited
        self._lock_fd = lock_fd
        self._inode = _inode(path)

    def copy_rights(self, of: Path) -> str:
        """Give the socket mode and owner of the runtime's; why not, or empty."""
        try:
            theirs = of.stat()
            os.chown(self.path, theirs.st_uid, theirs.st_gid)
            self.path.chmod(stat.S_IMODE(theirs.st_mode))
        except OSError as error:
            return str(error)
        return ""

    def close(self) -> None:
        """Stop listening. Our own path goes, an inherited one stays."""
        self.socket.close()
        if not self.inherited and self._lock_fd is not None and _inode(self.path) == self._inode:
            self.path.unlink(missing_ok=True)
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


def _inode(path: Path) -> int:
    try:
        return path.lstat().st_ino
    except OSError:
        return 0


def inherited(environ: dict[str, str], pid: int) -> Listener | None:
    """The socket that systemd passed to this process, or None. Its variables are taken away."""
    passed = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_PID", "")
    environ.pop("LISTEN_FDNAMES", None)
    if passed != ("1", str(pid)):
        if passed[0] not in ("", "0") and passed[1] == str(pid):
            raise _refused("LISTEN_FDS", f"{passed[0]} sockets were passed", "one socket", "")
        return None
    sock = socket.socket(fileno=FIRST_PASSED_FD)
    os.set_inheritable(FIRST_PASSED_FD, False)
    if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM:
        raise _refused("LISTEN_FDS", "what was passed is no unix stream socket", "one socket", "")
    sock.setblocking(False)
    return Listener(sock, Path(os.fsdecode(sock.getsockname())), inherited=True)


def bind(path: Path) -> Listener:
    """A socket of our own at ``path``. Raises RefusedError where somebody serves there.

    It is made under another name and then renamed, so the path always leads to a socket that
    answers or to none; the lock keeps two of us from doing so at once.
    """
    lock_fd = _lock(path)
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, lock_fd)
        _require_free(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        undo.callback(sock.close)
        temporary = path.parent / f".{os.getpid()}.sock"
        try:
            temporary.unlink(missing_ok=True)
            sock.bind(str(temporary))
            temporary.chmod(_FIRST_MODE)
            sock.listen(_BACKLOG)
            temporary.rename(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise _refused(str(path), f"cannot listen: {error}", "", "name another path") from error
        undo.pop_all()
    return Listener(sock, path, inherited=False, lock_fd=lock_fd)


def _lock(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        lock_fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _refused(str(path), f"cannot be locked: {error}", "", "run as root") from error
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock_fd)
        raise _in_use(path) from None
    return lock_fd


def _require_free(path: Path) -> None:
    """A dead socket may be replaced; one that is served, or anything else, may not."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise _refused(str(path), "there is something else than a socket", "", "remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        code = probe.connect_ex(str(path))
    if code in (0, errno.EAGAIN):
        raise _in_use(path)


def _in_use(path: Path) -> RefusedError:
    return _refused(str(path), "another process serves this socket", "one", "stop it first")


def _refused(where: str, what: str, limit: str, remedy: str) -> RefusedError:
    return RefusedError((Problem("socket-refused", where, what, limit, remedy),))
