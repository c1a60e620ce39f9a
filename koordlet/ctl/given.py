"""What people write on the command line, as the API wants it."""

from __future__ import annotations

import os
import time

from koordlet.ctl.output import bad_input
from koordlet.ctl.times import TimeError, parse_duration, parse_time


def real_path(text: str) -> str:
    """A path as the kernel's mounts know it: v1 controllers are often symlinked."""
    kind, colon, path = text.partition(":")
    if colon and kind == "file" and path.startswith("/"):
        return f"file:{os.path.realpath(path)}"
    return os.path.realpath(text) if text.startswith("/") else text


def moment_text(text: str | None, option: str) -> str | None:
    """A time of ``option`` as seconds since the epoch."""
    if text is None:
        return None
    try:
        return repr(parse_time(text, now_wall_s=time.time()))
    except TimeError as error:
        raise bad_input(option, str(error), "a time in the past") from None


def duration_s(text: str, option: str, limit: str) -> float:
    """A duration of ``option`` in seconds."""
    try:
        return parse_duration(text)
    except TimeError as error:
        raise bad_input(option, str(error), limit) from None
