"""Cgroups that are known by a name, tiers and host applications: CPU each second, the rest every
ten.
"""

from __future__ import annotations

from collections.abc import Iterable

from koordlet.host.cgroup import Cgroups
from koordlet.metrics.collectors.cadence import (
    CPU_EVERY_S,
    DETAIL_EVERY_S,
    Phases,
    is_due,
    next_due,
)
from koordlet.metrics.collectors.meter import CgroupMeter
from koordlet.metrics.collectors.sink import Sink
from koordlet.metrics.readings import EntityKey
from koordlet.model.paths import CgroupPath


class _Entry:
    __slots__ = ("detail_due_s", "meter", "phase")

    def __init__(self, meter: CgroupMeter, phase: float) -> None:
        self.meter = meter
        self.phase = phase
        self.detail_due_s = float("-inf")


class NamedCollector:
    """Follows a few cgroups, each told by its key; ``online_cpus`` bounds what a counter gains."""

    def __init__(self, cgroups: Cgroups, sink: Sink, *, online_cpus: int) -> None:
        self._cgroups = cgroups
        self._sink = sink
        self._online_cpus = online_cpus
        self._phases = Phases()
        self._entries: dict[str, _Entry] = {}

    def collect(self, now_s: float, wanted: Iterable[tuple[EntityKey, CgroupPath]]) -> None:
        """Sample what is due of ``wanted``; whatever is not in it has left."""
        by_name = {key.name: (key, cgroup) for key, cgroup in wanted}
        for name, entry in list(self._entries.items()):
            if name not in by_name or entry.meter.cgroup != by_name[name][1]:
                del self._entries[name]
                self._sink.leave(entry.meter.index)
                self._cgroups.forget(entry.meter.cgroup)
        for name, (key, cgroup) in by_name.items():
            self._sample(self._entry(name, key, cgroup), now_s)

    def _entry(self, name: str, key: EntityKey, cgroup: CgroupPath) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            meter = CgroupMeter(self._sink.enter(key), cgroup, self._online_cpus)
            entry = self._entries[name] = _Entry(meter, self._phases.take())
        self._sink.rekey(entry.meter.index, key)
        return entry

    def _sample(self, entry: _Entry, now_s: float) -> None:
        if is_due(now_s, entry.meter.cpu_at_s + CPU_EVERY_S):
            entry.meter.sample_cpu(self._cgroups, self._sink, now_s)
        if is_due(now_s, entry.detail_due_s):
            entry.meter.sample_detail(self._cgroups, self._sink, now_s)
            entry.detail_due_s = next_due(now_s, DETAIL_EVERY_S, entry.phase)
