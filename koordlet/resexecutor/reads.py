"""Kernel texts of one tick, each file read once, and the cgroup directories below one."""

from __future__ import annotations

from collections.abc import Iterator

from koordlet.host.cgroup import Cgroups
from koordlet.model.actions import Target
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing


class Reads:
    """What the files say at ``at(now_s)``; a file is read again only after ``forget``."""

    def __init__(self, cgroups: Cgroups) -> None:
        self._cgroups = cgroups
        self._raw: dict[Target, bytes | Missing] = {}
        self._now_s = float("-inf")

    def at(self, now_s: float) -> None:
        """Begin another instant: whatever was read before is old."""
        if now_s != self._now_s:
            self._raw.clear()
            self._now_s = now_s

    def raw(self, key: Target) -> bytes | Missing:
        """The file's text as it is."""
        found = self._raw.get(key)
        if found is None:
            found = self._raw[key] = self._cgroups.read_raw(*key)
        return found

    def text(self, key: Target) -> str | Missing:
        """The canonical text."""
        raw = self.raw(key)
        if isinstance(raw, Missing):
            return raw
        try:
            return self._cgroups.canonical(key[1], raw)
        except ValueError as error:
            return Missing(f"{self._cgroups.path_of(*key)}: {error}")

    def forget(self, key: Target) -> None:
        """The file was written: read it anew."""
        self._raw.pop(key, None)

    def forget_all(self) -> None:
        """Read everything anew."""
        self._raw.clear()

    def masked(self, key: Target) -> bool:
        """Whether the file shows a mask instead of its value: shares of an idle cgroup (H2)."""
        spec = self._cgroups.spec(key[1])
        if spec is None or spec.masked_by is None or self.text(key) != spec.masked_text:
            return False
        return self.text((key[0], spec.masked_by)) == "1"

    def is_there(self, key: Target) -> bool:
        """Whether the cgroup's directory exists now."""
        return not isinstance(self._cgroups.identity(*key), Missing)


def descendants(cgroups: Cgroups, top: CgroupPath, knob: Knob) -> Iterator[CgroupPath]:
    """All cgroups strictly below ``top`` in the hierarchy of ``knob``, parents first.

    A directory that vanishes on the way is left out.
    """
    spec = cgroups.spec(knob)
    if spec is None:
        return
    waiting = [top]
    while waiting:
        children = cgroups.children(waiting.pop(), spec.controller)
        if not isinstance(children, Missing):
            yield from children
            waiting += children
