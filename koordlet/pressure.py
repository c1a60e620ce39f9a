"""PSI triggers on latency-sensitive cgroups: the kernel's call for an early tick."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from koordlet.eventloop import EventLoop
from koordlet.host.cgroup import Cgroups
from koordlet.host.psi import PsiResource
from koordlet.host.psitrigger import Trigger, open_best
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import Workloads
from koordlet.model.readings import Missing
from koordlet.protocol.qos import KubeQos
from koordlet.treewatch import scan
from koordlet.units import NS_PER_US

MAX_TRIGGERS = 32  # each is a kernel timer; tiers come first, so nothing is left unwatched
EXPLAINED_BY_THROTTLING = 0.5  # a stall that is mostly the pod's own limit is not interference

WALK_EVERY = 8  # events; a limit of a newer container explains nothing until the next walk


@dataclass(slots=True)
class _Armed:
    trigger: Trigger
    stall_us: int
    throttled_ns: int
    below: tuple[CgroupPath, ...]
    events: int = 0


class PressureWatch:
    """Keeps one trigger per latency-sensitive cgroup and says when one of them fired in earnest."""

    def __init__(
        self, cgroups: Cgroups, loop: EventLoop, fired: Callable[[CgroupPath], None]
    ) -> None:
        self._cgroups = cgroups
        self._loop = loop
        self._fired = fired
        self._armed: dict[CgroupPath, _Armed] = {}
        self._refused: set[CgroupPath] = set()

    def follow(self, wanted: Iterable[CgroupPath]) -> None:
        """Have triggers on exactly ``wanted``; a cgroup that takes none is tried once."""
        target = set(wanted)
        for path in set(self._armed) - target:
            self._disarm(path)
        self._refused &= target
        for path in target - set(self._armed) - self._refused:
            self._arm(path)

    def _arm(self, path: CgroupPath) -> None:
        file_path = self._cgroups.psi_path(path, PsiResource.CPU)
        opened = file_path if isinstance(file_path, Missing) else open_best(file_path)
        if isinstance(opened, Missing):
            self._refused.add(path)
            return
        below = self._walk(path)
        self._armed[path] = _Armed(opened, self._stall_us(path), self._throttled_ns(below), below)
        self._loop.watch(opened.fd, select.POLLPRI, lambda events: self._on_event(path, events))

    def _disarm(self, path: CgroupPath) -> None:
        armed = self._armed.pop(path)
        self._loop.forget(armed.trigger.fd)
        armed.trigger.close()

    def _on_event(self, path: CgroupPath, events: int) -> None:
        if events & (select.POLLERR | select.POLLNVAL):  # the cgroup is gone
            self._disarm(path)
            return
        armed = self._armed[path]
        stall_us, throttled_ns = self._stall_us(path), self._throttled_ns(armed.below)
        stalled_ns = (stall_us - armed.stall_us) * NS_PER_US
        throttled = throttled_ns - armed.throttled_ns
        armed.stall_us, armed.throttled_ns = stall_us, throttled_ns
        if stalled_ns > 0 and throttled < EXPLAINED_BY_THROTTLING * stalled_ns:
            self._fired(path)
        armed.events += 1
        if armed.events % WALK_EVERY == 0:
            armed.below = self._walk(path)
            armed.throttled_ns = self._throttled_ns(armed.below)

    def _stall_us(self, path: CgroupPath) -> int:
        psi = self._cgroups.psi(path, PsiResource.CPU)
        return psi.some.total_us if not isinstance(psi, Missing) and psi.some else 0

    def _throttled_ns(self, below: tuple[CgroupPath, ...]) -> int:
        stats = [self._cgroups.cpu_stat(path) for path in below]
        return sum(stat.throttled_ns or 0 for stat in stats if not isinstance(stat, Missing))

    def _walk(self, path: CgroupPath) -> tuple[CgroupPath, ...]:
        """``path`` and all below it, as far as they are there."""
        return (
            path,
            *(cg for children in scan(self._cgroups, (path,)).values() for cg in children),
        )

    def close(self) -> None:
        for path in list(self._armed):
            self._disarm(path)


def latency_sensitive_cgroups(workloads: Workloads) -> tuple[CgroupPath, ...]:
    """The topmost cgroups of marked latency-sensitive work: the burstable tier where it holds a
    marked pod, each marked Guaranteed pod, each such host application. At most MAX_TRIGGERS.
    """
    found: list[CgroupPath] = []
    layout = workloads.layout
    sensitive = [
        pod for pod in workloads.known_pods() if pod.marked and pod.qos.is_latency_sensitive
    ]
    if not isinstance(layout, Missing) and any(p.kube_qos is KubeQos.BURSTABLE for p in sensitive):
        found.append(layout.burstable)
    found.extend(
        app.cgroup
        for app in workloads.apps
        if app.qos.is_latency_sensitive and not isinstance(app.cgroup, Missing)
    )
    found.extend(
        pod.cgroup
        for pod in sensitive
        if pod.kube_qos is not KubeQos.BURSTABLE and not isinstance(pod.cgroup, Missing)
    )
    return tuple(found[:MAX_TRIGGERS])
