"""Files that tell root what to do: only such that nobody else can write (hazard H27)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

MAX_BYTES = 1 << 20


class UntrustedError(Exception):
    """Somebody else could have written the file; the text says how and what to do."""


def read_trusted(path: Path) -> bytes:
    """What the regular file ``path`` holds, at most MAX_BYTES.

    Raises OSError where it cannot be read, UntrustedError where it must not be believed.
    """
    # Opening a FIFO for reading would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        fault = fault_of(os.fstat(descriptor))
        if fault:
            raise UntrustedError(f"{path}: {fault}")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise UntrustedError(f"{path}: more than {MAX_BYTES} bytes; remedy: name the right file")
    return content


def fault_of(found: os.stat_result) -> str:
    """Why a file or directory with this status is not to be believed; empty where it is."""
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        return "not a regular file"
    if found.st_uid not in (0, os.geteuid()):
        return f"owned by uid {found.st_uid}; remedy: chown root"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(found.st_mode)
        return f"mode {mode:04o} lets others write it; remedy: chmod go-w"
    return ""
