"""A value from the host, or why there is none. Missing is never zero."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Missing:
    """No value, and why. ``errno`` is set where the kernel refused (else 0)."""

    why: str
    errno: int = 0

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"missing: {self.why}"
