"""Which cgroups another agent may have changed, and what each of them is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from koordlet.model.paths import CgroupPath
from koordlet.model.pods import AppBackend, Container, HostApp, KubeLayout, Pod, Workloads
from koordlet.model.readings import Missing
from koordlet.protocol.qos import KubeQos

Children = Callable[[CgroupPath], tuple[CgroupPath, ...]]


class Level(Enum):
    """What a directory is."""

    KUBEPODS = "kubepods"
    TIER = "tier"
    POD = "pod"
    CONTAINER = "container"
    SANDBOX = "sandbox"  # a pod's pause container
    NESTED = "nested"  # made inside a container or an application
    APP = "host application"
    STRANGER = "unknown"  # below kubepods, but of no pod that any source tells of


@dataclass(frozen=True, slots=True)
class Place:
    """One cgroup. ``kube_qos`` is that of its tier, ``pod`` and ``container`` whose it is."""

    path: CgroupPath
    level: Level
    name: str
    kube_qos: KubeQos | None = None
    pod: Pod | None = None
    container: Container | None = None


def places(workloads: Workloads, children: Children) -> Iterator[Place]:
    """Everything below kubepods and below applications that own their files, parents first."""
    layout = workloads.layout
    if not isinstance(layout, Missing):
        known = _known(workloads, layout)
        yield from _walk(Place(layout.kubepods, Level.KUBEPODS, "kubepods"), known, children)
    for app in workloads.apps:
        if not isinstance(app.cgroup, Missing) and app.backend is AppBackend.FILE:
            yield from _walk(_app(app, app.cgroup), {}, children)


def _app(app: HostApp, cgroup: CgroupPath) -> Place:
    return Place(cgroup, Level.APP, f"host application {app.name}")


def _walk(top: Place, known: dict[CgroupPath, Place], children: Children) -> Iterator[Place]:
    waiting = [top]
    while waiting:
        place = waiting.pop()
        yield place
        below = [known.get(path) or _unnamed(path, place) for path in children(place.path)]
        waiting.extend(reversed(below))


def _unnamed(path: CgroupPath, parent: Place) -> Place:
    """A directory that no source names: of its container, or of nobody."""
    inside = (Level.CONTAINER, Level.SANDBOX, Level.NESTED, Level.APP)
    if parent.level in inside:
        return Place(path, Level.NESTED, f"inside {parent.name}", parent.kube_qos, parent.pod)
    return Place(path, Level.STRANGER, "no known pod", parent.kube_qos)


def _known(workloads: Workloads, layout: KubeLayout) -> dict[CgroupPath, Place]:
    tiers = {layout.burstable: KubeQos.BURSTABLE, layout.besteffort: KubeQos.BEST_EFFORT}
    known = {path: Place(path, Level.TIER, f"tier {qos.value}", qos) for path, qos in tiers.items()}
    for pod in workloads.known_pods():
        if isinstance(pod.cgroup, Missing):
            continue
        qos = tiers.get(pod.cgroup.parent, KubeQos.GUARANTEED)
        known[pod.cgroup] = Place(pod.cgroup, Level.POD, f"pod {pod.full_name}", qos, pod)
        for container in pod.containers:
            if not isinstance(container.cgroup, Missing):
                name = f"container {pod.full_name} {container.name}"
                known[container.cgroup] = Place(
                    container.cgroup, Level.CONTAINER, name, qos, pod, container
                )
        for sandbox in pod.sandboxes:
            name = f"sandbox of {pod.full_name}"
            known[sandbox] = Place(sandbox, Level.SANDBOX, name, qos, pod)
    return known
