"""Reads the counters of one cgroup, at any level, and puts the values that follow from them."""

from __future__ import annotations

import errno
from typing import NamedTuple

from koordlet.host.cgroup import Cgroups
from koordlet.host.counters import CpuStat, IoStat, MemoryStat
from koordlet.host.psi import Psi, PsiResource
from koordlet.metrics.collectors.cadence import (
    DETAIL_EVERY_S,
    MIN_WINDOW_S,
    QUIET_EVERY_S,
)
from koordlet.metrics.collectors.sink import Sink
from koordlet.metrics.readings import Group, Values
from koordlet.metrics.series import CounterRing
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.units import NS_PER_S, ns_to_cores

PERCENT = 100.0
_CPU, _DETAIL = int(Group.CPU), int(Group.DETAIL)
_GONE = (errno.ENOENT, errno.ENODEV)
_CPU_SAMPLES = 4
_CPU_GAP_S = 3 * QUIET_EVERY_S
_DETAIL_GAP_S = 3 * DETAIL_EVERY_S
_PERIODS_PER_S = 1_000.0 * 1_024  # shortest cfs period 1 ms, summed over child cgroups
_BYTES_PER_S = 1e13
_IOS_PER_S = 1e9
_DETAIL_CEILINGS = (_PERIODS_PER_S, _PERIODS_PER_S) + 2 * (_BYTES_PER_S,) + 2 * (_IOS_PER_S,)
_PRESSURES = (PsiResource.CPU, PsiResource.MEMORY, PsiResource.IO)


class Moved(NamedTuple):
    """A quiet parent's use changed after ``after_s``, and has been ``parent_cores`` since."""

    after_s: float
    parent_cores: float


class CgroupMeter:
    """The counters of one cgroup since it was first seen. A cgroup made anew at the same path is
    noticed by its absence or by counters that went back, and starts a new baseline.
    """

    __slots__ = ("_cpu", "_detail", "cgroup", "cores", "cpu_at_s", "index")

    def __init__(self, index: int, cgroup: CgroupPath, online_cpus: int) -> None:
        self.index = index
        self.cgroup = cgroup
        self.cores: float | None = None
        self.cpu_at_s = float("-inf")  # when the CPU counter was last read, if in vain
        self._cpu = CounterRing(_CPU_SAMPLES, (online_cpus * float(NS_PER_S),), _CPU_GAP_S)
        self._detail = CounterRing(2, _DETAIL_CEILINGS, _DETAIL_GAP_S)

    def sample_cpu(
        self, cgroups: Cgroups, sink: Sink, now_s: float, moved: Moved | None = None
    ) -> None:
        """Read the CPU counter and put the rate since the last sample, or since the use moved."""
        before, before_s = self.cores, self.cpu_at_s
        self.cpu_at_s = now_s
        used_ns = cgroups.cpu_usage_ns(self.cgroup)
        if isinstance(used_ns, Missing):
            self._cpu.push(now_s, (None,))
            if used_ns.errno in _GONE:
                self._cpu.rebase(0)
            self.cores = None
            sink.put(self.index, _CPU, (None, None))
            return
        self._cpu.push(now_s, (used_ns,))
        rate_ns = self._cpu.rate(0, MIN_WINDOW_S)
        if rate_ns is None:
            self.cores = None
        elif moved is None or before is None or moved.after_s <= before_s:
            self.cores = round(rate_ns / NS_PER_S, 6)
        else:
            self.cores = self._cores_since(moved, now_s, before, before_s)
        sink.put(self.index, _CPU, (self.cores, round(used_ns / NS_PER_S, 6)))

    def _cores_since(
        self, moved: Moved, now_s: float, before: float, before_s: float
    ) -> float | None:
        """The rate since use moved: all that was gained less what the rate before makes of the
        quiet time. An estimate, at most the parent's own rate; the next sample, a second later,
        is exact.
        """
        gained_cores_s = ns_to_cores(self._cpu.gained(0, 1), 1.0)
        recent_cores_s = gained_cores_s - before * (moved.after_s - before_s)
        recent_cores = recent_cores_s / (now_s - moved.after_s)
        return round(min(max(0.0, recent_cores), moved.parent_cores), 6)

    def sample_detail(self, cgroups: Cgroups, sink: Sink, now_s: float) -> None:
        """Read memory, throttling, pressure and IO."""
        stat = cgroups.cpu_stat(self.cgroup)
        io = cgroups.io(self.cgroup)
        periods, throttled, throttled_s = _throttling(stat)
        io_totals = _io_totals(io)
        self._detail.push(now_s, (periods, throttled, *io_totals))
        values = (
            *_memory(cgroups.memory(self.cgroup)),
            self._throttled_ratio(),
            throttled_s,
            *(
                ratio
                for resource in _PRESSURES
                for ratio in pressure(cgroups.psi(self.cgroup, resource))
            ),
            *(self._io_rate(column) for column in range(2, 6)),
            *io_totals,
        )
        sink.put(self.index, _DETAIL, values)

    def _throttled_ratio(self) -> float | None:
        """Throttled share of the cfs periods since the last sample; 0 where none elapsed."""
        periods = self._detail.rate(0, MIN_WINDOW_S)
        throttled = self._detail.rate(1, MIN_WINDOW_S)
        if periods is None or throttled is None:
            return None
        return round(min(1.0, throttled / periods), 4) if periods > 0.0 else 0.0

    def _io_rate(self, column: int) -> float | None:
        rate = self._detail.rate(column, MIN_WINDOW_S)
        return None if rate is None else round(rate, 1)


def pressure(psi: Psi | Missing) -> tuple[float | None, float | None]:
    """Share of the last 10 s in which some, and all, tasks stalled; 0..1."""
    if isinstance(psi, Missing):
        return None, None
    some, full = psi.some, psi.full
    return (
        None if some is None else round(some.avg10 / PERCENT, 4),
        None if full is None else round(full.avg10 / PERCENT, 4),
    )


def _throttling(stat: CpuStat | Missing) -> tuple[float | None, float | None, float | None]:
    if isinstance(stat, Missing):
        return None, None, None
    throttled_ns = stat.throttled_ns
    seconds = None if throttled_ns is None else round(throttled_ns / NS_PER_S, 6)
    return stat.nr_periods, stat.nr_throttled, seconds


def _memory(memory: MemoryStat | Missing) -> Values:
    if isinstance(memory, Missing):
        return None, None, None
    return memory.usage_bytes, memory.working_set_bytes, memory.anon_bytes


def _io_totals(io: IoStat | Missing) -> Values:
    if isinstance(io, Missing):
        return None, None, None, None
    total = io.total
    return total.read_bytes, total.write_bytes, total.read_ios, total.write_ios
