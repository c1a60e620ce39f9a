"""Opening files strictly beneath a directory: no symlink, no `..`, no other mount (H27)."""

from __future__ import annotations

import ctypes
import errno
import os

OPENAT2_SYSCALL = 437  # the same number on every 64-bit architecture
RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
_RESOLVE = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV
_RACE_RETRIES = 8  # openat2 answers EAGAIN while a rename goes on elsewhere


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_HOW_BYTES = ctypes.sizeof(_OpenHow)


class Opener:
    """Opens relative paths below directory fds; ``native`` tells whether openat2 does it.

    Where the kernel (before 5.6) or a seccomp filter refuses openat2, each component is opened
    with O_NOFOLLOW and its device compared instead.
    """

    def __init__(self, *, native: bool | None = None) -> None:
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.argtypes = (
            ctypes.c_long,
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.POINTER(_OpenHow),
            ctypes.c_size_t,
        )
        self._syscall.restype = ctypes.c_long
        self._hows: dict[int, _OpenHow] = {}  # by flags; made once, opening is frequent
        self.native = self._probe() if native is None else native

    def open(self, dir_fd: int, relative: str, flags: int) -> int:
        """Open ``relative`` beneath ``dir_fd``; O_CLOEXEC is added.

        Raises OSError: EXDEV for an escape or another mount, ELOOP for a symlink, and whatever the
        file itself answers.
        """
        if self.native:
            return self._openat2(dir_fd, relative, flags | os.O_CLOEXEC)
        return _open_by_component(dir_fd, relative, flags | os.O_CLOEXEC)

    def _probe(self) -> bool:
        anchor = os.open("/", os.O_PATH | os.O_CLOEXEC)
        try:
            os.close(self._openat2(anchor, ".", os.O_PATH | os.O_CLOEXEC))
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
                return False
            raise
        else:
            return True
        finally:
            os.close(anchor)

    def _openat2(self, dir_fd: int, relative: str, flags: int) -> int:
        how = self._hows.get(flags)
        if how is None:
            how = self._hows[flags] = _OpenHow(flags, 0, _RESOLVE)
        encoded = os.fsencode(relative)
        number = errno.EAGAIN
        for _ in range(_RACE_RETRIES):
            fd = self._syscall(OPENAT2_SYSCALL, dir_fd, encoded, how, _HOW_BYTES)
            if fd >= 0:
                return int(fd)
            number = ctypes.get_errno()
            if number not in (errno.EAGAIN, errno.EINTR):
                break
        raise OSError(number, os.strerror(number), relative)


def _open_by_component(dir_fd: int, relative: str, flags: int) -> int:
    *parents, name = relative.split("/")
    device = os.fstat(dir_fd).st_dev
    at = os.dup(dir_fd)
    try:
        for part in parents:
            step = _open_one(at, part, os.O_PATH | os.O_DIRECTORY, device, relative)
            os.close(at)
            at = step
        return _open_one(at, name, flags, device, relative)
    finally:
        os.close(at)


def _open_one(at: int, part: str, flags: int, device: int, relative: str) -> int:
    if part == "..":
        raise OSError(errno.EXDEV, "climbs out of its directory", relative)
    fd = os.open(part, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    if os.fstat(fd).st_dev != device:
        os.close(fd)
        raise OSError(errno.EXDEV, "crosses into another mount", relative)
    return fd
