"""Reads the counters of one cgroup, at any level, and puts the values that follow from them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from koordlet.host.cgroup import Cgroups
from koordlet.host.counters import CpuStat, IoStat, MemoryStat
from koordlet.host.psi import Psi, PsiResource
from koordlet.metrics.collectors.cadence import (
    ABSENT_FOR_S,
    DETAIL_EVERY_S,
    JITTER_S,
    QUIET_EVERY_S,
)
from koordlet.metrics.collectors.sink import Sink
from koordlet.metrics.readings import Group, Values
from koordlet.metrics.series import step_rate
from koordlet.model.paths import CgroupPath
from koordlet.model.readings import Missing
from koordlet.units import NS_PER_S, NS_PER_US, US_PER_S

PERCENT = 100.0
_CPU, _DETAIL = int(Group.CPU), int(Group.DETAIL)
CPU_GAP_S = 3 * QUIET_EVERY_S
DETAIL_GAP_S = 3 * DETAIL_EVERY_S
"""After a longer silence (suspend, overrun) there is no rate: it would mix two times."""
_NEVER_S = float("-inf")
_PERIODS_PER_S = 1_000.0 * 1_024  # shortest cfs period 1 ms, summed over child cgroups
_BYTES_PER_S = 1e13
_IOS_PER_S = 1e9
_CEILINGS = (_PERIODS_PER_S, _PERIODS_PER_S) + 2 * (_BYTES_PER_S,) + 2 * (_IOS_PER_S,)
_NO_COUNTS: Values = 6 * (None,)
_ABSENT = Missing("this cgroup had no such file a short while ago")
_OPTIONAL = 5  # io, memory, three pressure files
_PRESSURES = (PsiResource.CPU, PsiResource.MEMORY, PsiResource.IO)
_MISSES = 2  # a new container's first look may come before its first process

T = TypeVar("T")


class Moved(NamedTuple):
    """A quiet parent's use changed after ``after_s``, and has been ``parent_cores`` since."""

    after_s: float
    parent_cores: float


class CgroupMeter:
    """The counters of one cgroup as they were last read. A cgroup made anew at the same path is
    noticed by its absence or by counters that went back, and starts a new baseline.
    """

    __slots__ = (
        "_counts",
        "_counts_at_s",
        "_look_again_s",
        "_missed",
        "_most_ns_per_s",
        "_used_ns",
        "cgroup",
        "cores",
        "cpu_at_s",
        "index",
    )

    def __init__(self, index: int, cgroup: CgroupPath, online_cpus: int) -> None:
        self.index = index
        self.cgroup = cgroup
        self.cores: float | None = None
        self.cpu_at_s = _NEVER_S  # when the CPU counter was last read, if in vain
        self._used_ns: int | None = None
        self._most_ns_per_s = online_cpus * float(NS_PER_S)
        self._counts: Values = _NO_COUNTS
        self._counts_at_s = _NEVER_S
        self._missed = [0] * _OPTIONAL
        self._look_again_s = [_NEVER_S] * _OPTIONAL

    def sample_cpu(
        self, cgroups: Cgroups, sink: Sink, now_s: float, moved: Moved | None = None
    ) -> None:
        """Read the CPU counter and put the rate since the last sample, or since the use moved."""
        used_ns = cgroups.cpu_usage_ns(self.cgroup)
        elapsed_s = now_s - self.cpu_at_s
        self.cpu_at_s = now_s
        if isinstance(used_ns, Missing):
            self._used_ns = self.cores = None
            sink.put(self.index, _CPU, (None, None))
            return
        before_ns, self._used_ns = self._used_ns, used_ns
        rate = None
        if elapsed_s <= CPU_GAP_S:
            rate = step_rate(before_ns, used_ns, elapsed_s, self._most_ns_per_s)
        if rate is None:
            self.cores = None
        elif moved is None or self.cores is None or moved.after_s <= now_s - elapsed_s:
            self.cores = _seconds(rate)
        else:
            self.cores = _cores_since(moved, now_s, self.cores, elapsed_s, rate * elapsed_s)
        sink.put(self.index, _CPU, (self.cores, _seconds(used_ns)))

    def sample_detail(self, cgroups: Cgroups, sink: Sink, now_s: float) -> None:
        """Read memory, throttling, pressure and IO."""
        periods, throttled, throttled_s = _throttling(cgroups.cpu_stat(self.cgroup))
        io_totals = _io_totals(self._unless_absent(0, now_s, cgroups.io))
        memory = self._unless_absent(1, now_s, cgroups.memory)
        psi = [
            self._unless_absent(number, now_s, partial(cgroups.psi, resource=resource))
            for number, resource in enumerate(_PRESSURES, start=2)
        ]
        period_rate, throttled_rate, *io_rates = self._rates(
            (periods, throttled, *io_totals), now_s
        )
        values = (
            *_memory(memory),
            _throttled_ratio(period_rate, throttled_rate),
            throttled_s,
            *(ratio for each in psi for ratio in pressure(each)),
            *io_rates,
            *io_totals,
        )
        sink.put(self.index, _DETAIL, values)

    def _unless_absent(
        self, number: int, now_s: float, read: Callable[[CgroupPath], T | Missing]
    ) -> T | Missing:
        """Read what not every cgroup has: one without a controller, or a kernel without PSI, costs
        a failed open once a minute and not each time (cases V2-05, OPS-01).
        """
        missed = self._missed[number]
        if missed >= _MISSES and now_s < self._look_again_s[number]:
            return _ABSENT
        value = read(self.cgroup)
        if isinstance(value, Missing):
            self._missed[number] = missed + 1
            self._look_again_s[number] = now_s + ABSENT_FOR_S - JITTER_S
        elif missed:
            self._missed[number] = 0
        return value

    def _rates(self, counts: Values, now_s: float) -> Values:
        before, self._counts = self._counts, counts
        elapsed_s = now_s - self._counts_at_s
        self._counts_at_s = now_s
        if elapsed_s > DETAIL_GAP_S:
            return _NO_COUNTS
        return tuple(map(step_rate, before, counts, len(counts) * (elapsed_s,), _CEILINGS))


def _cores_since(
    moved: Moved, now_s: float, quiet_cores: float, elapsed_s: float, gained_ns: float
) -> float:
    """The rate since use moved: all that was gained less what the rate before makes of the quiet
    time. An estimate, at most the parent's own rate; the next sample, a second later, is exact.
    """
    recent_s = now_s - moved.after_s
    recent_ns = gained_ns - quiet_cores * (elapsed_s - recent_s) * NS_PER_S
    return _seconds(min(max(0.0, recent_ns) / recent_s, moved.parent_cores * NS_PER_S))


def _throttled_ratio(periods: float | None, throttled: float | None) -> float | None:
    """Throttled share of the cfs periods between two samples; 0 where none elapsed."""
    if periods is None or throttled is None:
        return None
    return min(1.0, throttled / periods) if periods > 0.0 else 0.0


def pressure(psi: Psi | Missing) -> tuple[float | None, float | None]:
    """Share of the last 10 s in which some, and all, tasks stalled; 0..1."""
    if isinstance(psi, Missing):
        return None, None
    some, full = psi.some, psi.full
    return (
        None if some is None else some.avg10 / PERCENT,
        None if full is None else full.avg10 / PERCENT,
    )


def _throttling(stat: CpuStat | Missing) -> tuple[float | None, float | None, float | None]:
    if isinstance(stat, Missing):
        return None, None, None
    throttled_ns = stat.throttled_ns
    seconds = None if throttled_ns is None else _seconds(throttled_ns)
    return stat.nr_periods, stat.nr_throttled, seconds


def _seconds(ns: float) -> float:
    """Nanoseconds as seconds, cut to microseconds: round() takes five times as long."""
    return ns // NS_PER_US / US_PER_S


def _memory(memory: MemoryStat | Missing) -> Values:
    if isinstance(memory, Missing):
        return None, None, None
    return memory.usage_bytes, memory.working_set_bytes, memory.anon_bytes


def _io_totals(io: IoStat | Missing) -> Values:
    if isinstance(io, Missing):
        return None, None, None, None
    total = io.total
    return total.read_bytes, total.write_bytes, total.read_ios, total.write_ios
