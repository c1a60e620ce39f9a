"""Times and durations as a person writes them."""

from __future__ import annotations

import re
from datetime import datetime

_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d{1,9})([smhdw])", re.ASCII)
_WHOLE = re.compile(r"(?:\d{1,9}[smhdw])+", re.ASCII)


class TimeError(ValueError):
    """A text that is no time or no duration; says which forms are."""


def parse_duration(text: str) -> float:
    """Seconds of ``90s``, ``30m``, ``1h30m``, ``2d``, ``1w``; more than none. Raises TimeError."""
    wanted = text.strip().lower()
    if not _WHOLE.fullmatch(wanted):
        raise TimeError(f"{text!r} is no duration; use e.g. 90s, 30m, 1h30m, 2d")
    seconds = sum(int(count) * _UNITS_S[unit] for count, unit in _PART.findall(wanted))
    if seconds == 0:
        raise TimeError(f"{text!r} is no time at all; use at least 1s")
    return float(seconds)


def parse_time(text: str, *, now_wall_s: float) -> float:
    """Seconds since the epoch of ``10m`` (ago), ``now``, seconds, or a date with a time.

    A date without a zone is local time; a time alone (``14:30``) is today's. Raises TimeError.
    """
    wanted = text.strip()
    if wanted.lower() == "now":
        return now_wall_s
    if _WHOLE.fullmatch(wanted.lower()):
        return now_wall_s - parse_duration(wanted)
    if re.fullmatch(r"\d+(\.\d+)?", wanted, re.ASCII):
        return float(wanted)
    if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", wanted, re.ASCII):
        today = datetime.fromtimestamp(now_wall_s).date().isoformat()
        wanted = f"{today}T{wanted.rjust(len(wanted) + (wanted.index(':') == 1), '0')}"
    try:
        return datetime.fromisoformat(wanted).timestamp()
    except (ValueError, OverflowError, OSError):
        raise TimeError(
            f"{text!r} is no time; use e.g. 10m (ago), 14:30, 2026-01-31T14:30 or seconds since"
            " the epoch"
        ) from None
