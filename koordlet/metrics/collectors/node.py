"""The node: CPU, memory and pressure each second; disks, interfaces and system memory every ten.

Network IO is that of the node's interfaces; per container it is not measured.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from koordlet.host.cgroup import Cgroups
from koordlet.host.counters import MemoryStat
from koordlet.host.mounts import Roots
from koordlet.host.procfs import Meminfo, diskstats, meminfo, net_dev, node_cpu
from koordlet.host.psi import PsiResource, node_psi
from koordlet.metrics.collectors.cadence import (
    CPU_EVERY_S,
    DETAIL_EVERY_S,
    is_due,
    next_due,
)
from koordlet.metrics.collectors.device import DeviceMeters, disks, interfaces
from koordlet.metrics.collectors.meter import pressure
from koordlet.metrics.collectors.sink import Sink
from koordlet.metrics.readings import EntityKey, Group, Level, Values
from koordlet.metrics.series import step_rate
from koordlet.model.paths import ROOT, CgroupPath
from koordlet.model.pods import Workloads
from koordlet.model.readings import Missing
from koordlet.snapshot import CpuUse

USER_HZ = 100  # clock ticks of procfs a second; the kernel shows 100 to programs whatever its own
_GAP_S = 5.0
_NONE3: Values = (None, None, None)
_PHASE = 0.3
_GONE = (errno.ENOENT, errno.ENODEV)


class NodeCollector:
    """The node as a whole. ``online_cpus`` bounds what a counter can gain."""

    def __init__(self, cgroups: Cgroups, roots: Roots, sink: Sink, *, online_cpus: int) -> None:
        self._cgroups = cgroups
        self._files = cgroups.files
        self._roots = roots
        self._sink = sink
        self._index = sink.enter(EntityKey(Level.NODE))
        self._most_ticks_per_s = online_cpus * float(USER_HZ)
        self._ticks: Values = _NONE3
        self._ticks_at_s = float("-inf")
        self._disks = DeviceMeters(Level.DISK, Group.DISK, sink)
        self._interfaces = DeviceMeters(Level.INTERFACE, Group.INTERFACE, sink)
        self._due_s = self._detail_due_s = float("-inf")

    def collect(self, now_s: float, workloads: Workloads, cpu: CpuUse | Missing) -> None:
        """Sample what is due; ``cpu`` is what the 5 Hz sampler says."""
        if is_due(now_s, self._due_s):
            self._due_s = now_s + CPU_EVERY_S
            self._sample_cpu(now_s, cpu)
            self._sample_memory(meminfo(self._files, self._roots))
            self._sample_pressure()
        if is_due(now_s, self._detail_due_s):
            self._detail_due_s = next_due(now_s, DETAIL_EVERY_S, _PHASE)
            self._sample_devices(now_s)
            self._sample_system_memory(workloads)

    def _sample_cpu(self, now_s: float, cpu: CpuUse | Missing) -> None:
        self._sink.put(self._index, Group.NODE_SHARES, _shares(cpu))
        stat = node_cpu(self._files, self._roots)
        if isinstance(stat, Missing):
            self._ticks = _NONE3
            self._sink.put(self._index, Group.NODE_CPU, 7 * (None,))
            return
        rates = self._tick_rates((stat.busy, stat.iowait, stat.steal), now_s)
        cores = (None if rate is None else rate / USER_HZ for rate in rates)
        counts = (stat.busy, stat.iowait, stat.steal, stat.idle)
        seconds = (count / USER_HZ for count in counts)
        self._sink.put(self._index, Group.NODE_CPU, (*cores, *seconds))

    def _tick_rates(self, ticks: Values, now_s: float) -> Values:
        before, self._ticks = self._ticks, ticks
        elapsed_s = now_s - self._ticks_at_s
        self._ticks_at_s = now_s
        if elapsed_s > _GAP_S:
            return _NONE3
        most = self._most_ticks_per_s
        return tuple(
            step_rate(old, new, elapsed_s, most) for old, new in zip(before, ticks, strict=True)
        )

    def _sample_memory(self, memory: Meminfo | Missing) -> None:
        if isinstance(memory, Missing):
            self._sink.put(self._index, Group.NODE_MEMORY, 6 * (None,))
            return
        values = (memory.total_bytes, memory.available_bytes, memory.used_bytes)
        self._sink.put(self._index, Group.NODE_MEMORY, (*values, *_definitions(memory)))

    def _sample_pressure(self) -> None:
        found = (
            pressure(node_psi(self._files, self._roots, resource))
            for resource in (PsiResource.CPU, PsiResource.MEMORY, PsiResource.IO)
        )
        ratios = tuple(ratio for pair in found for ratio in pair)
        self._sink.put(self._index, Group.NODE_PRESSURE, ratios)

    def _sample_devices(self, now_s: float) -> None:
        counters = diskstats(self._files, self._roots)
        self._disks.sample(now_s, disks(self._files, self._roots, counters))
        traffic = net_dev(self._files, self._roots)
        self._interfaces.sample(now_s, interfaces(self._files, self._roots, traffic))

    def _sample_system_memory(self, workloads: Workloads) -> None:
        """Node less workloads, from readings of the same tick; never below 0."""
        node = meminfo(self._files, self._roots)
        parts = [self._cgroups.memory(cgroup) for cgroup in _outermost(workloads)]
        values = _NONE3 if isinstance(node, Missing) else _rest(_definitions(node), parts)
        self._sink.put(self._index, Group.SYSTEM_MEMORY, values)


def _shares(cpu: CpuUse | Missing) -> Values:
    if isinstance(cpu, Missing):
        return 4 * (None,)
    return (
        round(cpu.nonbe_pods_cores, 6),
        round(cpu.nonbe_apps_cores, 6),
        round(cpu.system_cores, 6),
        round(sum(cpu.be_roots_cores.values()), 6),
    )


def _definitions(memory: Meminfo) -> Values:
    """Usage, working set and usage without page cache, as for a cgroup."""
    usage = memory.total_bytes - memory.free_bytes
    inactive, anon = memory.inactive_file_bytes, memory.anon_bytes
    return (
        usage,
        None if inactive is None else max(usage - inactive, 0),
        None if anon is None else min(anon, usage),
    )


def _outermost(workloads: Workloads) -> list[CgroupPath]:
    """Disjoint cgroups that together hold all workloads."""
    paths = [app.cgroup for app in workloads.apps if not isinstance(app.cgroup, Missing)]
    if not isinstance(workloads.layout, Missing):
        paths.append(workloads.layout.kubepods)
    found: list[CgroupPath] = []
    for path in sorted(set(paths)):
        if path != ROOT and not any(path.is_below(other) for other in found):
            found.append(path)
    return found


def _rest(node: Values, parts: Sequence[MemoryStat | Missing]) -> Values:
    taken = [0, 0, 0]
    for part in parts:
        if isinstance(part, Missing):
            if part.errno in _GONE:
                continue
            return _NONE3
        taken[0] += part.usage_bytes
        taken[1] += part.working_set_bytes
        taken[2] += part.anon_bytes
    return tuple(
        None if whole is None else max(whole - share, 0)
        for whole, share in zip(node, taken, strict=True)
    )
