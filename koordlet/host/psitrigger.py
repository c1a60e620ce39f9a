"""Pressure triggers: the kernel wakes us when a stall exceeds a share of a window."""

from __future__ import annotations

import os
from dataclasses import dataclass

from koordlet.model.readings import Missing
from koordlet.units import US_PER_S

WINDOWS_US = (500_000, 1_000_000, 2_000_000)
"""Tried in this order. Without CAP_SYS_RESOURCE the kernel takes only multiples of 2 s."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """An armed trigger: poll ``fd`` for POLLPRI; POLLERR means that the cgroup has left.

    It lives as long as ``fd`` is open.
    """

    fd: int
    path: str
    stall_us: int
    window_us: int

    def close(self) -> None:
        """Disarm."""
        os.close(self.fd)


def open_trigger(path: str, stall_us: int, window_us: int) -> Trigger:
    """Arm a trigger on the ``some`` line of the pressure file at ``path``.

    Raises OSError: EINVAL for a window that the kernel does not allow, EBUSY or EOPNOTSUPP where it
    does no triggers here.
    """
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.write(fd, f"some {stall_us} {window_us}\0".encode())
    except OSError:
        os.close(fd)
        raise
    return Trigger(fd, path, stall_us, window_us)


def open_best(path: str, stall_percent: int = 20) -> Trigger | Missing:
    """Arm the trigger with the shortest window that this kernel allows; ``stall_percent`` of the
    window must be stalled. Missing says why there is none.
    """
    refused: list[str] = []
    number = 0
    for window_us in WINDOWS_US:
        try:
            return open_trigger(path, window_us * stall_percent // 100, window_us)
        except OSError as error:
            number = error.errno or 0
            refused.append(f"{window_us / US_PER_S:g} s: {error.strerror}")
    return Missing(f"{path}: no pressure trigger ({'; '.join(refused)})", number)
