"""Pods and their containers: pods' CPU each second, containers' as often as it tells something.

Network IO of a container is not measured: that needs its network namespace entered, or a program
in the kernel. Pause containers are never read.
"""

from __future__ import annotations

from collections.abc import Container as Holds

from koordlet.host.cgroup import Cgroups
from koordlet.metrics.collectors.cadence import (
    CPU_EVERY_S,
    DETAIL_EVERY_S,
    QUIET_EVERY_S,
    Phases,
    is_due,
    next_due,
)
from koordlet.metrics.collectors.meter import CgroupMeter, Moved
from koordlet.metrics.collectors.sink import Sink
from koordlet.metrics.readings import EntityKey, Group, Level
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import Container, ContainerState, Pod
from koordlet.model.readings import Missing

MOVED_SHARE = 0.10
MOVED_MIN_CORES, MOVED_MAX_CORES = 0.005, 0.02
"""A pod's use moved by more than 10 % or more than 0.02 cores; below 0.005 it is noise."""
YOUNG_S = 3.0
"""A container of a new name is measured once it has lasted so long: what ends before shows in its
pod's numbers, and leaves no series of two values behind. One that was restarted, and those that
are there when koordlet starts, are measured at once.
"""
_NEVER_S = float("-inf")
_FIRST_DETAILS = 8  # pods whose details are read at once in one tick, beyond those that are due


_Measurable = dict[str, tuple[Container, CgroupPath]]


class _PodEntry:
    __slots__ = (
        "cgroup",
        "containers",
        "cores",
        "cpu_at_s",
        "detail_due_s",
        "hot_until_s",
        "index",
        "meter",
        "names",
        "phase",
        "pod",
        "quiet_due_s",
        "reference_cores",
        "young",
    )

    def __init__(self, index: int, pod: Pod, phase: float) -> None:
        self.index = index
        self.pod = pod
        self.phase = phase
        self.cgroup: CgroupPath | Missing = Missing("not looked up yet")
        self.meter: CgroupMeter | None = None
        self.containers: dict[str, CgroupMeter] = {}  # by container id
        self.names: frozenset[str] = frozenset()  # of those containers
        self.young: dict[str, float] = {}  # by id, since when: too young to be measured
        self.cores: float | None = None
        self.cpu_at_s = _NEVER_S
        self.reference_cores: float | None = None  # when its containers were last read
        self.hot_until_s = _NEVER_S
        self.quiet_due_s = _NEVER_S
        self.detail_due_s = _NEVER_S


class PodCollector:
    """Follows the pods of each tick; ``online_cpus`` bounds what a counter can gain."""

    def __init__(self, cgroups: Cgroups, sink: Sink, *, online_cpus: int) -> None:
        self._cgroups = cgroups
        self._sink = sink
        self._online_cpus = online_cpus
        self._phases = Phases()
        self._entries: dict[str, _PodEntry] = {}
        self._followed: tuple[Pod, ...] | None = None
        self._has_pods = False  # had some once

    def collect(self, now_s: float, pods: tuple[Pod, ...], active: Holds[str]) -> None:
        """Sample what is due. ``active`` holds the uids of pods that a strategy acts on."""
        if pods is not self._followed:
            self._follow(pods, now_s)
            self._followed = pods
        spare_details = _FIRST_DETAILS + len(self._entries) // 10
        for entry in self._entries.values():
            if entry.young:
                self._update_containers(entry, now_s)
            if is_due(now_s, entry.cpu_at_s + CPU_EVERY_S):
                self._sample_cpu(entry, now_s, is_active=entry.pod.uid in active)
            if not is_due(now_s, entry.detail_due_s):
                continue
            if entry.detail_due_s == _NEVER_S:
                if spare_details == 0:
                    continue
                spare_details -= 1
            self._sample_detail(entry, now_s)

    # -- who is there ---------------------------------------------------------------------------

    def _follow(self, pods: tuple[Pod, ...], now_s: float) -> None:
        present = {pod.uid for pod in pods}
        for uid in [uid for uid in self._entries if uid not in present]:
            self._leave(self._entries.pop(uid))
        for pod in pods:
            entry = self._entries.get(pod.uid)
            if entry is None:
                index = self._sink.enter(_pod_key(pod))
                entry = self._entries[pod.uid] = _PodEntry(index, pod, self._phases.take())
            elif entry.pod is pod:
                continue
            self._update(entry, pod, now_s)
        self._has_pods = self._has_pods or bool(pods)

    def _update(self, entry: _PodEntry, pod: Pod, now_s: float) -> None:
        entry.pod = pod
        self._sink.rekey(entry.index, _pod_key(pod))
        if entry.cgroup != pod.cgroup:
            entry.cgroup = pod.cgroup
            entry.meter = None
            self._sink.void(entry.index)
            if not isinstance(pod.cgroup, Missing):
                entry.meter = CgroupMeter(entry.index, pod.cgroup, self._online_cpus)
        self._update_containers(entry, now_s)

    def _update_containers(self, entry: _PodEntry, now_s: float) -> None:
        pod = entry.pod
        wanted = _measurable(pod)
        entry.young = self._too_young(entry, wanted, now_s)
        for container_id, meter in list(entry.containers.items()):
            if container_id not in wanted or meter.cgroup != wanted[container_id][1]:
                self._leave_container(entry.containers.pop(container_id))
        for container_id, (container, cgroup) in wanted.items():
            if container_id in entry.young:
                continue
            key = _container_key(pod, container)
            known = entry.containers.get(container_id)
            if known is not None:
                self._sink.rekey(known.index, key)
                continue
            index = self._sink.enter(key)
            entry.containers[container_id] = CgroupMeter(index, cgroup, self._online_cpus)
            entry.reference_cores = None  # as if the pod's use had moved: look at once, and again
            entry.detail_due_s = _NEVER_S
        measured = (wanted[container_id][0].name for container_id in entry.containers)
        entry.names = frozenset(measured)

    def _too_young(self, entry: _PodEntry, wanted: _Measurable, now_s: float) -> dict[str, float]:
        if not self._has_pods:
            return {}
        newcomers = {
            container_id: entry.young.get(container_id, now_s)
            for container_id, (container, _) in wanted.items()
            if container_id not in entry.containers and container.name not in entry.names
        }
        return {
            container_id: since_s
            for container_id, since_s in newcomers.items()
            if not is_due(now_s, since_s + YOUNG_S)
        }

    def _leave(self, entry: _PodEntry) -> None:
        for meter in entry.containers.values():
            self._leave_container(meter)
        self._sink.leave(entry.index)
        if entry.meter is not None:
            self._cgroups.forget(entry.meter.cgroup)

    def _leave_container(self, meter: CgroupMeter) -> None:
        self._sink.leave(meter.index)
        self._cgroups.forget(meter.cgroup)

    # -- what it uses ---------------------------------------------------------------------------

    def _sample_cpu(self, entry: _PodEntry, now_s: float, *, is_active: bool) -> None:
        before_s, entry.cpu_at_s = entry.cpu_at_s, now_s
        if entry.meter is None:
            self._sample_containers(entry, now_s, None)
            self._put_sum(entry)
            return
        entry.meter.sample_cpu(self._cgroups, self._sink, now_s)
        cores = entry.cores = entry.meter.cores
        moved = None
        if cores is not None and _has_moved(entry.reference_cores, cores):
            moved = Moved(before_s, cores)
            entry.hot_until_s = now_s + QUIET_EVERY_S
        if is_active or now_s <= entry.hot_until_s or is_due(now_s, entry.quiet_due_s):
            self._sample_containers(entry, now_s, moved)

    def _sample_containers(self, entry: _PodEntry, now_s: float, moved: Moved | None) -> None:
        for meter in entry.containers.values():
            meter.sample_cpu(self._cgroups, self._sink, now_s, moved)
        entry.reference_cores = entry.cores
        entry.quiet_due_s = next_due(now_s, QUIET_EVERY_S, entry.phase)

    def _put_sum(self, entry: _PodEntry) -> None:
        """A pod whose own cgroup was not found: the sum of its containers' rates."""
        rates = [meter.cores for meter in entry.containers.values()]
        known = [rate for rate in rates if rate is not None]
        entry.cores = sum(known) if known and len(known) == len(rates) else None
        self._sink.put(entry.index, Group.CPU, (entry.cores, None))

    def _sample_detail(self, entry: _PodEntry, now_s: float) -> None:
        if entry.meter is not None:
            entry.meter.sample_detail(self._cgroups, self._sink, now_s)
        for meter in entry.containers.values():
            meter.sample_detail(self._cgroups, self._sink, now_s)
        entry.detail_due_s = next_due(now_s, DETAIL_EVERY_S, entry.phase)


def _has_moved(reference_cores: float | None, cores: float) -> bool:
    if reference_cores is None:
        return True
    step = min(max(MOVED_SHARE * reference_cores, MOVED_MIN_CORES), MOVED_MAX_CORES)
    return abs(cores - reference_cores) > step


def _measurable(pod: Pod) -> _Measurable:
    """By id the containers that have a cgroup; of several of one name only the newest attempt,
    since its labels would be theirs too.
    """
    newest: dict[str, tuple[Container, CgroupPath]] = {}
    for container in sorted(pod.containers, key=lambda container: container.record.attempt):
        if container.record.state is not ContainerState.EXITED and not isinstance(
            container.cgroup, Missing
        ):
            newest[container.name] = (container, container.cgroup)
    return {container.id: (container, cgroup) for container, cgroup in newest.values()}


def _pod_key(pod: Pod) -> EntityKey:
    return EntityKey(
        Level.POD,
        namespace=pod.record.namespace,
        pod=pod.record.name,
        uid=pod.record.api_uid or pod.uid,
        qos=pod.qos,
        priority_class=pod.priority_class,
    )


def _container_key(pod: Pod, container: Container) -> EntityKey:
    return EntityKey(
        Level.CONTAINER,
        namespace=pod.record.namespace,
        pod=pod.record.name,
        uid=pod.record.api_uid or pod.uid,
        container=container.name,
        container_id=container.id,
        qos=pod.qos,
        priority_class=pod.priority_class,
    )
