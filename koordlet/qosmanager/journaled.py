"""Values of journal rows: the texts that a quota or cpuset file held, as values.

A row keeps the text as the file read. Both spellings of "no limit" are accepted wherever the row
came from, so nothing here needs to know the cgroup version.
"""

from __future__ import annotations

from koordlet.model.readings import Missing
from koordlet.protocol.cpuset import CpuSetError, parse_cpuset

_UNLIMITED = frozenset({"-1", "max"})


def quota_us(text: str) -> int | Missing | None:
    """The quota in a row's text (``-1``, ``max``, ``50000``, ``50000 100000``); None: unlimited."""
    first = text.split(maxsplit=1)[0] if text.strip() else ""
    if first in _UNLIMITED:
        return None
    if not first.isascii() or not first.isdigit():
        return Missing(f"the journal holds {text!r}, which is no quota")
    return int(first)


def cpus(text: str) -> frozenset[int] | Missing:
    """The CPUs in a row's text; the empty set is "inherit"."""
    try:
        return parse_cpuset(text)
    except CpuSetError as error:
        return Missing(str(error))
