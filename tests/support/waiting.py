"""Waiting for what a real kernel or another process does in its own time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

POLL_S = 0.01
# How many times longer than on a real CPU things may take; the emulated ones of guests set it.
PATIENCE = float(os.environ.get("KOORDTEST_PATIENCE", "1"))


def until(done: Callable[[], object], within_s: float, what: str = "") -> float:
    """Wait until ``done()`` is true; the seconds that took. TimeoutError names ``what``."""
    within_s *= PATIENCE
    started_s = time.monotonic()
    while not done():
        if time.monotonic() - started_s > within_s:
            raise TimeoutError(f"not within {within_s} s: {what or done}")
        time.sleep(POLL_S)
    return time.monotonic() - started_s
