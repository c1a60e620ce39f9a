"""The few counters that decide suppression, sampled at 5 Hz from one instant (hazard H28).

Node, kubepods tree, BE roots and host applications: about ten files, read back to back. System use
is node less workloads over the same two instants, so a pod that ends in between does not show up
as system use (the "mixed samples" of koordinator #1427).
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from koordlet.host.cgroup import Cgroups
from koordlet.host.mounts import Hierarchies
from koordlet.metrics.series import CounterRing
from koordlet.model.paths import ROOT, CgroupPath
from koordlet.model.pods import BeRoot, HostApp, KubeLayout
from koordlet.model.readings import Missing
from koordlet.snapshot import CpuUse, RootDemand
from koordlet.units import NS_PER_S, ns_to_cores

GAP_S = 5.0
STALE_S = 2.0
SURGE_WINDOW_S = 0.15
DEMAND_WINDOW_S = 10.0
THROTTLE_EVERY_S = 0.9  # 1 Hz, whatever the jitter of the tick
_CPU_SAMPLES = 128  # more than DEMAND_WINDOW_S at 5 Hz, early ticks included
_THROTTLE_SAMPLES = 16
_PERIODS_PER_S = 1_000.0 * 1_024  # shortest cfs period 1 ms, summed over child cgroups
_GONE = (errno.ENOENT, errno.ENODEV)


@dataclass(frozen=True, slots=True)
class _Roles:
    """Which cgroup counts as what. The paths of all three are disjoint or nested, never equal.

    ``watched`` may become a BE root at any time, and is sampled so that it then has a past: else
    what it used before would count as use of non-BE pods in the first decision about it.
    """

    kubepods: CgroupPath | None = None
    be_roots: tuple[CgroupPath, ...] = ()
    apps: tuple[CgroupPath, ...] = ()
    watched: CgroupPath | None = None

    def all(self) -> tuple[CgroupPath, ...]:
        """All paths, what lies in another one before it."""
        single = [path for path in (self.watched, self.kubepods) if path is not None]
        return tuple(dict.fromkeys((*self.be_roots, *self.apps, *single)))


def _roles(
    layout: KubeLayout | Missing, be_roots: Sequence[BeRoot], apps: Sequence[HostApp]
) -> _Roles:
    """Governed BE roots first; of the rest kubepods; applications neither in one nor in another."""
    roots = tuple(root.path for root in be_roots)
    taken = list(roots)
    kubepods = None if isinstance(layout, Missing) else layout.kubepods
    if kubepods is not None and not _is_in(kubepods, taken):
        taken.append(kubepods)
    else:
        kubepods = None
    outermost: list[CgroupPath] = []
    for path in sorted(app.cgroup for app in apps if not isinstance(app.cgroup, Missing)):
        if path != ROOT and not _is_in(path, taken):
            outermost.append(path)
            taken.append(path)
    watched = None if isinstance(layout, Missing) else layout.besteffort
    return _Roles(kubepods, roots, tuple(outermost), watched)


def _is_in(path: CgroupPath, others: Iterable[CgroupPath]) -> bool:
    return any(path.is_at_or_below(other) for other in others)


def _whole_host(hierarchies: Hierarchies) -> Hierarchies:
    """The same hierarchies with the mount point itself as root: the node, whatever we manage."""
    unified = hierarchies.unified
    return Hierarchies(
        {name: replace(each, managed=each.mount) for name, each in hierarchies.v1.items()},
        None if unified is None else replace(unified, managed=unified.mount),
    )


class HotSampler:
    """CPU use of node, tiers, BE roots and host applications over the last seconds.

    ``online_cpus`` bounds what a counter can gain. On v2 the node's counter includes stolen time:
    system use is then overstated on an overcommitted hypervisor, in the safe direction.
    """

    def __init__(self, cgroups: Cgroups, *, online_cpus: int) -> None:
        self._cgroups = cgroups
        self._node_cgroups = Cgroups(cgroups.files, _whole_host(cgroups.hierarchies))
        self._ceiling_ns = online_cpus * float(NS_PER_S)
        self._roles = _Roles()
        self._node = self._cpu_ring()
        self._node_why: Missing | None = Missing("no sample was taken yet")
        self._rings: dict[CgroupPath, CounterRing] = {}
        self._unreadable: dict[CgroupPath, Missing] = {}
        self._throttling: dict[CgroupPath, CounterRing] = {}

    def _cpu_ring(self) -> CounterRing:
        return CounterRing(_CPU_SAMPLES, (self._ceiling_ns,), GAP_S)

    def set_roots(
        self, layout: KubeLayout | Missing, be_roots: Sequence[BeRoot], apps: Sequence[HostApp]
    ) -> None:
        """Say what to sample from now on. A newcomer counts from its next sample on; until then
        its use is part of whatever it lies in. Cheap when nothing changed.
        """
        roles = _roles(layout, be_roots, apps)
        if roles == self._roles:
            return
        self._roles = roles
        rings, throttling = self._rings, self._throttling
        self._rings = {
            path: rings[path] if path in rings else self._cpu_ring() for path in roles.all()
        }
        self._throttling = {
            path: throttling[path] if path in throttling else _throttle_ring()
            for path in roles.be_roots
        }
        self._unreadable = {
            path: why for path, why in self._unreadable.items() if path in self._rings
        }

    def sample(self, now_s: float) -> None:
        """Read all counters once, the node last: whatever holds another is read after it."""
        for path, ring in self._rings.items():
            self._sample_one(path, ring, now_s)
        used_ns = self._node_cgroups.cpu_usage_ns(ROOT)
        if isinstance(used_ns, Missing):
            self._node_why = used_ns
            self._node.push(now_s, (None,))
        else:
            self._node_why = None
            self._node.push(now_s, (used_ns,))
        for path, ring in self._throttling.items():
            if ring.newest_s is None or now_s - ring.newest_s >= THROTTLE_EVERY_S:
                self._sample_throttling(path, ring, now_s)

    def _sample_one(self, path: CgroupPath, ring: CounterRing, now_s: float) -> None:
        used_ns = self._cgroups.cpu_usage_ns(path)
        if not isinstance(used_ns, Missing):
            self._unreadable.pop(path, None)
            ring.push(now_s, (used_ns,))
            return
        ring.push(now_s, (None,))
        if used_ns.errno in _GONE:
            self._unreadable.pop(path, None)
            ring.rebase(0)
        else:
            self._unreadable[path] = used_ns

    def _sample_throttling(self, path: CgroupPath, ring: CounterRing, now_s: float) -> None:
        stat = self._cgroups.cpu_stat(path)
        if isinstance(stat, Missing):
            ring.push(now_s, (None, None))
        else:
            ring.push(now_s, (stat.nr_periods, stat.nr_throttled))

    def cpu_use(self, min_window_s: float, now_s: float) -> CpuUse | Missing:
        """Use over the shortest window of at least ``min_window_s`` seconds up to the newest
        sample. Missing before two valid samples, after a gap, with a stale newest sample, and
        where a counter that exists cannot be read.
        """
        if self._node_why is not None:
            return self._node_why
        newest_s = self._node.newest_s
        if newest_s is None:
            return Missing("no sample was taken yet")
        if now_s - newest_s > STALE_S:
            return Missing(f"the newest sample is {now_s - newest_s:.1f} s old")
        for why in self._unreadable.values():
            return why
        steps = self._node.steps_back(0, min_window_s)
        if steps is None:
            return Missing(f"samples do not reach back {min_window_s:g} s yet")
        return self._terms(steps)

    def surge(self, now_s: float) -> CpuUse | Missing:
        """Use over the last 5 Hz interval."""
        return self.cpu_use(SURGE_WINDOW_S, now_s)

    def _terms(self, steps: int) -> CpuUse:
        roles = self._roles
        gained = {path: ring.gained(0, steps) for path, ring in self._rings.items()}
        be_ns = {path: gained[path] for path in roles.be_roots}
        nonbe_pods_ns = _without(roles.kubepods, gained, roles.be_roots)
        inner = (*roles.be_roots, *(() if roles.kubepods is None else (roles.kubepods,)))
        nonbe_apps_ns = sum(_without(app, gained, inner) for app in roles.apps)
        node_ns = self._node.gained(0, steps)
        system_ns = max(0.0, node_ns - nonbe_pods_ns - nonbe_apps_ns - sum(be_ns.values()))
        window_s = self._node.age_s(steps)
        return CpuUse(
            window_s=window_s,
            node_cores=ns_to_cores(node_ns, window_s),
            nonbe_pods_cores=ns_to_cores(nonbe_pods_ns, window_s),
            nonbe_apps_cores=ns_to_cores(nonbe_apps_ns, window_s),
            system_cores=ns_to_cores(system_ns, window_s),
            be_roots_cores={path: ns_to_cores(ns, window_s) for path, ns in be_ns.items()},
        )

    def demand(self, now_s: float) -> Mapping[CgroupPath, RootDemand]:
        """Demand of each BE root over the last 10 s, or as long as it has been seen. A root without
        two samples of both its CPU time and its throttling is left out: nothing is known of it.
        """
        found: dict[CgroupPath, RootDemand] = {}
        for path in self._roles.be_roots:
            used_cores = self._used_cores(self._rings[path], now_s)
            throttled_ratio = _throttled_ratio(self._throttling[path])
            if used_cores is not None and throttled_ratio is not None:
                found[path] = RootDemand(used_cores, throttled_ratio)
        return found

    def _used_cores(self, ring: CounterRing, now_s: float) -> float | None:
        newest_s = ring.newest_s
        if newest_s is None or now_s - newest_s > STALE_S or len(ring) < 2:
            return None
        rate_ns = ring.rate_within(0, DEMAND_WINDOW_S)
        return None if rate_ns is None else ns_to_cores(rate_ns, 1.0)


def _throttle_ring() -> CounterRing:
    return CounterRing(_THROTTLE_SAMPLES, (_PERIODS_PER_S, _PERIODS_PER_S), GAP_S)


def _without(
    whole: CgroupPath | None, gained: Mapping[CgroupPath, float], parts: Sequence[CgroupPath]
) -> float:
    """Gain of ``whole`` less that of the ``parts`` strictly inside it, never negative."""
    if whole is None:
        return 0.0
    return max(0.0, gained[whole] - sum(gained[part] for part in parts if part.is_below(whole)))


def _throttled_ratio(ring: CounterRing) -> float | None:
    """Throttled share of the cfs periods in the ring's last 10 s; 0 where none elapsed."""
    periods = ring.rate_within(0, DEMAND_WINDOW_S)
    throttled = ring.rate_within(1, DEMAND_WINDOW_S)
    if periods is None or throttled is None:
        return None
    return min(1.0, throttled / periods) if periods > 0.0 else 0.0
