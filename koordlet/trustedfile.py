"""Reading files that tell root what to do: only such that nobody else can write (hazard H27)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from koordlet.protocol.problem import Problem, RefusedError

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def read_trusted(path: Path, max_bytes: int) -> str:
    """The text of ``path``, a regular file of root's (or our own) that no other user may write.

    Symbolic links are followed, since that is how Kubernetes mounts configuration; it is the file
    behind them that counts. Raises FileNotFoundError, and RefusedError for everything else: not a
    regular file, not ours, writable by others, more than ``max_bytes``, no UTF-8, not readable.
    """
    try:
        # Opening a FIFO for reading waits for a writer; a device may do anything.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        _check(path, os.fstat(descriptor), max_bytes)
        content = _read(descriptor, max_bytes + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(descriptor)
    if len(content) > max_bytes:
        raise _too_large(path, max_bytes)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refused(
            "file-no-text", path, f"byte {error.start} is no UTF-8", "UTF-8", "save it as UTF-8"
        ) from None


def _check(path: Path, found: os.stat_result, max_bytes: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _refused(
            "file-not-regular", path, "not a regular file", "a regular file", "name another file"
        )
    if found.st_uid not in (0, os.geteuid()):
        raise _refused(
            "file-untrusted",
            path,
            f"owned by uid {found.st_uid}",
            "owned by root",
            f"chown root {path}",
        )
    if found.st_mode & _OTHERS_MAY_WRITE:
        raise _refused(
            "file-untrusted",
            path,
            f"mode {stat.S_IMODE(found.st_mode):04o} lets others write it",
            "writable by its owner only",
            f"chmod go-w {path}",
        )
    if found.st_size > max_bytes:
        raise _too_large(path, max_bytes)


def _read(descriptor: int, limit: int) -> bytes:
    parts: list[bytes] = []
    while limit > 0 and (part := os.read(descriptor, limit)):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def _too_large(path: Path, max_bytes: int) -> RefusedError:
    return _refused(
        "file-too-large", path, "too large", f"{max_bytes} bytes", "name the right file"
    )


def _unreadable(path: Path, error: OSError) -> RefusedError:
    what = f"cannot be read: {error.strerror}"
    return _refused("file-unreadable", path, what, "", "make it readable for root")


def _refused(code: str, path: Path, what: str, limit: str, remedy: str) -> RefusedError:
    return RefusedError((Problem(code, str(path), what, limit, remedy),))
