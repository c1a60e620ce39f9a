"""Which cgroups a strategy for BE work may govern, from workloads and the tree below BE roots."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from koordlet.model.paths import CgroupPath
from koordlet.model.pods import BeRoot, ContainerState, KubeLayout, Workloads
from koordlet.model.readings import Missing

Tree = Mapping[CgroupPath, tuple[CgroupPath, ...]]


def descendants(root: CgroupPath, tree: Tree) -> Iterator[CgroupPath]:
    """Every directory below ``root``, parents before their children.

    No recursion: work inside a BE container decides how deep its cgroups go.
    """
    waiting = list(reversed(tree.get(root, ())))
    while waiting:
        path = waiting.pop()
        yield path
        waiting.extend(reversed(tree.get(path, ())))


def covering(path: CgroupPath, places: Container[CgroupPath]) -> CgroupPath | None:
    """The nearest of ``places`` at or above ``path``, by walking up: places may be many."""
    while path:
        if path in places:
            return path
        path = path.parent
    return None


def writable(roots: tuple[BeRoot, ...]) -> tuple[BeRoot, ...]:
    """The BE roots whose files may be written."""
    return tuple(root for root in roots if root.writable)


def kube_tier(workloads: Workloads) -> CgroupPath | None:
    """The kubelet's BestEffort tier, or None where there is no kubelet tree."""
    layout = workloads.layout
    return None if isinstance(layout, Missing) else layout.besteffort


def tiers(layout: KubeLayout | Missing) -> frozenset[CgroupPath]:
    """The directories whose settings the kubelet itself writes."""
    if isinstance(layout, Missing):
        return frozenset()
    return frozenset({layout.kubepods, layout.burstable, layout.besteffort})


def unwritable_cgroups(workloads: Workloads) -> dict[CgroupPath, str]:
    """Cgroups of host applications that can only be observed, with the application and why."""
    return {
        app.cgroup: f"host application {app.name}: {app.unwritable}"
        for app in workloads.apps
        if app.unwritable and not isinstance(app.cgroup, Missing)
    }


def running_containers(workloads: Workloads) -> dict[CgroupPath, str]:
    """Ids of running containers that a source knows, by their cgroup."""
    return {
        container.cgroup: container.id
        for pod in workloads.known_pods()
        for container in pod.containers
        if container.id
        and container.record.state is ContainerState.RUNNING
        and not isinstance(container.cgroup, Missing)
    }
