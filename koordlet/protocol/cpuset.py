"""CPU lists as the kernel, the kubelet and Koordinator write them, e.g. ``0-2,5``."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_CPU_ID = 65_535
"""Far above any kernel's CONFIG_NR_CPUS; bounds what ``0-4000000000`` may cost us."""

_MAX_TEXT = 65_536
_ITEM = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


class CpuSetError(ValueError):
    """A text that is no CPU list; the message names the limit and the remedy."""


def parse_cpuset(text: str) -> frozenset[int]:
    """The CPU ids in ``text``; an empty text is the empty set (case CS-02), a newline is dropped.

    Items may overlap and come in any order. Raises CpuSetError for anything else than ids and
    ascending ranges parted by commas, and for ids above MAX_CPU_ID.
    """
    if len(text) > _MAX_TEXT:
        raise CpuSetError(
            f"CPU list of {len(text)} characters; limit: {_MAX_TEXT};"
            " remedy: write ranges, e.g. 0-3"
        )
    trimmed = text.strip(" \t\n")
    if not trimmed:
        return frozenset()
    cpus: set[int] = set()
    for item in trimmed.split(","):
        cpus.update(_parse_item(item, text))
    return frozenset(cpus)


def _parse_item(item: str, text: str) -> range:
    match = _ITEM.fullmatch(item.strip(" "))
    if match is None:
        raise CpuSetError(
            f"CPU list {text[:200]!r}: {item[:40]!r} is neither an id nor a range;"
            " remedy: write e.g. 0-3,8"
        )
    first = int(match[1])
    last = int(match[2]) if match[2] is not None else first
    if last < first:
        raise CpuSetError(
            f"CPU list {text[:200]!r}: range {item!r} runs backwards; remedy: write {last}-{first}"
        )
    if last > MAX_CPU_ID:
        raise CpuSetError(
            f"CPU list {text[:200]!r}: id {last} is too large; limit: {MAX_CPU_ID};"
            " remedy: use ids from /sys/devices/system/cpu/online"
        )
    return range(first, last + 1)


def format_cpuset(cpus: Iterable[int]) -> str:
    """The kernel's own form: ascending, runs joined (``0-2,5``); ``""`` for the empty set."""
    runs: list[tuple[int, int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], cpu)
        else:
            runs.append((cpu, cpu))
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
