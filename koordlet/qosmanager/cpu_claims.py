"""CPUs that latency-sensitive work holds: shared with BE by rule, or out of its reach (H22)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from koordlet.model.actions import Target
from koordlet.model.knobs import Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import Workloads
from koordlet.model.readings import Missing
from koordlet.model.topology import CpuManagerPolicy
from koordlet.protocol.qos import Qos
from koordlet.protocol.resourcestatus import resource_status_cpus
from koordlet.qosmanager.strategy import NeedsContext
from koordlet.snapshot import Snapshot

_HOLDERS = frozenset({Qos.LSE, Qos.LSR})


@dataclass(frozen=True, slots=True)
class CpuClaims:
    """``lsr_pods``: the CPUs of each LSR workload, which BE may share. ``excluded``: those that BE
    may not touch: reserved, exclusive by the kubelet, of LSE, and of LSR where that is exclusive.
    """

    lsr_pods: tuple[frozenset[int], ...]
    excluded: frozenset[int]


def claim_needs(context: NeedsContext) -> Iterator[Target]:
    """The cpusets of LSE and LSR workloads, and of the tree that they lie in."""
    if context.node.cpu_manager is CpuManagerPolicy.STATIC:
        return
    if not isinstance(context.workloads.layout, Missing):
        yield (context.workloads.layout.kubepods, Knob.CPUSET_CPUS)
    for _, _, paths in _holders(context.workloads):
        for path in paths:
            yield (path, Knob.CPUSET_CPUS)


def cpu_claims(snapshot: Snapshot, *, lsr_exclusive: bool) -> CpuClaims:
    """Who holds which CPUs: by resource-status, else by a cpuset narrower than all of them."""
    lsr: list[frozenset[int]] = []
    excluded = snapshot.node.reserved_cpus | snapshot.node.exclusive_cpus
    for qos, annotated, paths in _holders(snapshot.workloads):
        cpus = annotated or _narrowed_cpus(snapshot, paths)
        if qos is Qos.LSE or lsr_exclusive:
            excluded |= cpus
        elif cpus:
            lsr.append(cpus)
    return CpuClaims(tuple(lsr), excluded)


def _holders(
    workloads: Workloads,
) -> Iterator[tuple[Qos, frozenset[int], tuple[CgroupPath, ...]]]:
    """Each LSE or LSR workload: its class, annotated CPUs, and the cgroups that may tell others.

    Sandboxes are left out: they show all CPUs whatever the pod has (case CS-16).
    """
    for pod in workloads.known_pods():
        if pod.qos in _HOLDERS:
            paths = tuple(c.cgroup for c in pod.containers if not isinstance(c.cgroup, Missing))
            yield pod.qos, resource_status_cpus(pod.record.annotations), paths
    for app in workloads.apps:
        if app.qos in _HOLDERS and not isinstance(app.cgroup, Missing):
            yield app.qos, frozenset(), (app.cgroup,)


def _narrowed_cpus(snapshot: Snapshot, paths: tuple[CgroupPath, ...]) -> frozenset[int]:
    """CPUs of cgroups that somebody narrowed below what everybody has.

    Under the kubelet's static policy a narrow cpuset is only the shared pool; the exclusive CPUs
    are known from its state there.
    """
    if snapshot.node.cpu_manager is CpuManagerPolicy.STATIC:
        return frozenset()
    common = snapshot.node.topology.online
    layout = snapshot.workloads.layout
    if not isinstance(layout, Missing):
        tree = snapshot.value((layout.kubepods, Knob.CPUSET_CPUS))
        if isinstance(tree, frozenset) and tree:
            common &= tree
    held: frozenset[int] = frozenset()
    for path in paths:
        cpus = snapshot.value((path, Knob.CPUSET_CPUS))
        if isinstance(cpus, frozenset) and cpus and not cpus >= common:
            held |= cpus
    return held
