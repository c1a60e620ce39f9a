"""All kernel text comes in and goes out here: rooted, on kept fds, with one tap for recording.

Measured on a kernel 6.18: a pread on a kept fd takes 0.7-1.7 us, open/read/close 6-12 us. So the
files that are read most often keep their fd, within a budget; the rest is opened each time
relative to the kept fd of its mount.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from koordlet.host.beneath import Opener
from koordlet.host.keptfiles import PAGE_BYTES, KeptFile, KeptFiles
from koordlet.model.readings import Missing

Tap = Callable[[str, bytes | Missing], None]

FD_SHARE_PERCENT = 60
FD_BUDGET_MAX = 8_192
FD_OTHERS = 72  # pressure triggers, mounts, journal, sockets, pipes, files open for a moment
_LONG_READ = 65_536
_SURELY_WHOLE = 1_024
"""A cgroup file that answers with less has told all: the kernel stops early only where the next
record does not fit into a page, and no listing file has records of 3 KiB."""


class WriteRefusedError(PermissionError):
    """A write outside what this process may manage; the kernel was never asked (hazard H27)."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(errno.EPERM, why, path)


class Files(Protocol):
    """Host files by absolute path. The real one is ``Tree``; tests have one in memory.

    One thread uses one instance.
    """

    def read(self, path: str) -> bytes | Missing:
        """The whole content now, or why there is none; ``Missing.errno`` is the kernel's answer."""
        ...

    def write(self, path: str, text: str) -> None:
        """Write ``text`` in one write(2) to an existing cgroup file below a managed directory.

        Raises OSError with the kernel's errno, WriteRefusedError where the path is not managed,
        ValueError for an empty text, which the kernel would never see.
        """
        ...

    def list(self, path: str) -> tuple[str, ...] | Missing:
        """Names of the directories directly in ``path``, sorted."""
        ...

    def identity(self, path: str) -> tuple[int, int] | Missing:
        """``(st_dev, st_ino)``; a cgroup recreated at the same path has another one."""
        ...

    def mode(self, path: str) -> int | Missing:
        """``st_mode``, type and permission bits."""
        ...

    def exists(self, path: str) -> bool:
        """Whether something is there now."""
        ...

    def attribute(self, path: str, name: str) -> bytes | Missing:
        """An extended attribute of a file or directory."""
        ...

    def make_dir(self, path: str) -> None:
        """Create one directory below a managed directory. Raises as ``write`` does."""
        ...

    def remove_dir(self, path: str) -> None:
        """Remove one empty directory below a managed directory. Raises as ``write`` does."""
        ...

    def drop(self, prefix: str) -> None:
        """Forget whatever is kept for ``prefix`` and all below it: its cgroup has left."""
        ...


@dataclass(frozen=True, slots=True)
class Confinement:
    """One probed mount: cgroup files are opened beneath ``mount``, written only below ``managed``.

    ``managed`` is the mount point itself or a directory in it.
    """

    mount: str
    managed: str


def raise_fd_limit() -> int:
    """Lift RLIMIT_NOFILE's soft limit to the hard one, and return that."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def fd_budget(hard_limit: int) -> int:
    """How many fds may be kept under ``hard_limit`` (hazard H29); FD_OTHERS are never spent."""
    if hard_limit == resource.RLIM_INFINITY:
        return FD_BUDGET_MAX
    share = min(hard_limit * FD_SHARE_PERCENT // 100, hard_limit - FD_OTHERS)
    return max(0, min(share, FD_BUDGET_MAX))


class Tree:
    """The host's real files.

    ``budget`` bounds the kept file fds; when more files are read than fit, those read most often
    in the last round keep theirs. ``tap`` sees every answer of ``read``. ``reads`` and ``opens``
    count calls and open(2)s.
    """

    def __init__(
        self, budget: int, *, tap: Tap | None = None, opener: Opener | None = None
    ) -> None:
        self.tap = tap
        self.reads = 0
        self.opens = 0
        self._opener = opener or Opener()
        self._mounts: dict[str, int] = {}  # mount point -> fd, innermost first
        self._managed: dict[str, str] = {}
        self._keep_below: tuple[str, ...] = ()
        self._kept = KeptFiles(budget)

    @property
    def kept(self) -> int:
        """Number of file fds held now."""
        return len(self._kept)

    def confine(
        self, confinements: Iterable[Confinement], *, keep_below: tuple[str, ...] = ()
    ) -> None:
        """Name the cgroup mounts; until then nothing can be written and no fd is kept.

        ``keep_below`` are further directories whose files keep an fd: those of procfs and sysfs,
        never of a disk, where a file replaced by a rename would be read stale for ever.
        Raises OSError where a mount point cannot be opened.
        """
        self.close()
        self._keep_below = tuple(prefix.rstrip("/") + "/" for prefix in keep_below)
        for confinement in sorted(confinements, key=lambda each: -len(each.mount)):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            self._mounts[confinement.mount] = os.open(confinement.mount, flags)
            self._managed[confinement.mount] = confinement.managed

    def close(self) -> None:
        """Close every fd and forget the mounts."""
        self._kept.clear()
        for fd in self._mounts.values():
            os.close(fd)
        self._mounts.clear()
        self._managed.clear()

    def read(self, path: str) -> bytes | Missing:
        self.reads += 1
        kept = self._kept.get(path)
        answer: bytes | Missing
        if kept is None:
            answer = self._read_afresh(path)
        else:
            try:
                answer = os.pread(kept.fd, kept.size, 0)
            except OSError as error:
                answer = self._read_again(path, error)
            else:
                kept.hits += 1
                if len(answer) >= kept.whole_below:
                    answer = self._read_on(path, kept, answer)
        if self.tap is not None:
            self.tap(path, answer)
        return answer

    def write(self, path: str, text: str) -> None:
        if not text:
            raise ValueError(f"{path}: an empty write never reaches the kernel; write a newline")
        mount = self._managed_mount(path, path.rpartition("/")[0])
        self.opens += 1
        fd = self._opener.open(self._mounts[mount], path[len(mount) + 1 :], os.O_WRONLY)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)

    def list(self, path: str) -> tuple[str, ...] | Missing:
        try:
            fd = self._open(path, self._mount_of(path), os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            return _missing(path, error)
        try:
            with os.scandir(fd) as entries:
                return tuple(sorted(e.name for e in entries if e.is_dir(follow_symlinks=False)))
        except OSError as error:
            return _missing(path, error)
        finally:
            os.close(fd)

    def identity(self, path: str) -> tuple[int, int] | Missing:
        try:
            status = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - called for each cgroup
        except OSError as error:
            return _missing(path, error)
        return status.st_dev, status.st_ino

    def mode(self, path: str) -> int | Missing:
        try:
            return os.stat(path, follow_symlinks=False).st_mode  # noqa: PTH116 - as above
        except OSError as error:
            return _missing(path, error)

    def exists(self, path: str) -> bool:
        return not isinstance(self.mode(path), Missing)

    def attribute(self, path: str, name: str) -> bytes | Missing:
        try:
            return os.getxattr(path, name, follow_symlinks=False)
        except OSError as error:
            return _missing(path, error)

    def make_dir(self, path: str) -> None:
        parent, name = self._open_managed_parent(path)
        try:
            os.mkdir(name, dir_fd=parent)
        finally:
            os.close(parent)

    def remove_dir(self, path: str) -> None:
        self.drop(path)
        parent, name = self._open_managed_parent(path)
        try:
            os.rmdir(name, dir_fd=parent)
        finally:
            os.close(parent)

    def drop(self, prefix: str) -> None:
        self._kept.drop(prefix)

    # -- reading -----------------------------------------------------------------------------

    def _read_afresh(self, path: str) -> bytes | Missing:
        mount = self._mount_of(path)
        try:
            fd = self._open(path, mount, os.O_RDONLY)
        except OSError as error:
            return _missing(path, error)
        is_cgroup = bool(mount)
        kept = KeptFile(fd, _SURELY_WHOLE if is_cgroup else 1)
        try:
            first = os.pread(fd, kept.size, 0)
            answer = self._read_rest(kept, first) if len(first) >= kept.whole_below else first
        except OSError as error:
            os.close(fd)
            return _missing(path, error)
        may_keep = is_cgroup or path.startswith(self._keep_below)
        if may_keep and self._kept.has_room(path, self.reads):
            self._kept.add(path, kept)
        else:
            os.close(fd)
        return answer

    def _read_again(self, path: str, error: OSError) -> bytes | Missing:
        """A kept fd failed: after ENODEV the cgroup is gone or was made anew, so look once."""
        self._kept.forget(path)
        return self._read_afresh(path) if error.errno == errno.ENODEV else _missing(path, error)

    def _read_on(self, path: str, kept: KeptFile, first: bytes) -> bytes | Missing:
        try:
            return self._read_rest(kept, first)
        except OSError as error:
            return self._read_again(path, error)

    def _read_rest(self, kept: KeptFile, first: bytes) -> bytes:
        parts = [first]
        length = len(first)
        while parts[-1]:
            parts.append(os.pread(kept.fd, _LONG_READ, length))
            length += len(parts[-1])
        if length >= kept.size:
            kept.size = (length // PAGE_BYTES + 1) * PAGE_BYTES
        return b"".join(parts)

    def _open(self, path: str, mount: str, flags: int) -> int:
        self.opens += 1
        if not mount:
            return os.open(path, flags | os.O_CLOEXEC)
        return self._opener.open(self._mounts[mount], path[len(mount) + 1 :] or ".", flags)

    def _mount_of(self, path: str) -> str:
        """The innermost probed mount that holds ``path``, or ``""``."""
        inside = path + "/"
        for mount in self._mounts:
            if inside.startswith(mount + "/"):
                return mount
        return ""

    # -- what may be written --------------------------------------------------------------------

    def _managed_mount(self, path: str, directory: str) -> str:
        """The mount of ``path``, whose cgroup ``directory`` lies strictly below the managed root.

        Raises WriteRefusedError: the managed root itself belongs to somebody else.
        """
        mount = self._mount_of(path)
        if not mount:
            raise WriteRefusedError(path, "lies in no probed cgroup mount; nothing was written")
        if any(part in ("", ".", "..") for part in path[1:].split("/")):
            raise WriteRefusedError(path, "is not a plain path; nothing was written")
        if not directory.startswith(self._managed[mount] + "/"):
            raise WriteRefusedError(
                path, f"is not below the managed root {self._managed[mount]}; nothing was written"
            )
        return mount

    def _open_managed_parent(self, path: str) -> tuple[int, str]:
        mount = self._managed_mount(path, path)
        parent, _, name = path.rpartition("/")
        self.opens += 1
        flags = os.O_RDONLY | os.O_DIRECTORY
        return self._opener.open(self._mounts[mount], parent[len(mount) + 1 :] or ".", flags), name


def _missing(path: str, error: OSError) -> Missing:
    number = error.errno or 0
    return Missing(f"{path}: {os.strerror(number)}", number)
