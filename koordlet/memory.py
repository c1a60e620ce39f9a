"""Small and steady memory of long-lived processes, by glibc's malloc; elsewhere nothing is done."""

from __future__ import annotations

import ctypes
import gc

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # <malloc.h>
LARGE_BYTES = 128 << 10
COLLECT_ALL_EVERY_S = 60.0
"""How often a long-lived process calls ``give_back``."""


def keep_small() -> None:
    """Set malloc up, before a fork for all that follow.

    One arena: glibc gives each thread one of its own, and what a thread once needed there is
    never given back; Python's threads allocate one at a time anyway. Large blocks stay mapped
    one by one: glibc raises that limit by itself, and then keeps the largest buffer ever used.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, LARGE_BYTES)


def give_back() -> None:
    """Collect all garbage and give free pages back to the kernel; takes tens of milliseconds."""
    gc.collect()
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
