"""Workloads: pods, containers and host applications as the tick sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from koordlet.model.paths import ROOT, CgroupPath
from koordlet.model.readings import Missing
from koordlet.protocol.qos import KubeQos, PriorityClass, Qos, QosSource, ValueSource


class ContainerState(Enum):
    """CRI's container states."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Resources:
    """Requests or limits: CPU in milli-cores, memory in bytes; ``None`` is "not set"."""

    cpu_milli: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests and limits in native resources alone: what the kubelet makes cgroup values of."""

    requests: Resources = Resources()
    limits: Resources = Resources()


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """One container as a source tells it (CRI or the kubelet); ``id`` has no runtime scheme.

    ``native`` is None where no kubelet told it, or where a resize is under way.
    """

    id: str
    name: str
    attempt: int
    state: ContainerState
    requests: Resources = Resources()
    limits: Resources = Resources()
    resources_source: ValueSource = ValueSource.UNKNOWN
    spec_quota_us: int | None = None  # what the runtime's spec holds; None is unlimited or unknown
    spec_period_us: int | None = None
    native: Asked | None = None


@dataclass(frozen=True, slots=True)
class PodRecord:
    """One pod as the sources tell it, before its cgroup is found and its QoS decided.

    ``uid`` is the one that cgroup paths use (for a static pod its config hash, case POD-01);
    ``api_uid`` is metadata.uid. ``sandbox_ids`` are the pause containers' ids, newest last.
    ``native`` sums up the containers as the kubelet does, overhead included.
    """

    uid: str
    api_uid: str
    namespace: str
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    runtime_handler: str = ""
    sandbox_ids: tuple[str, ...] = ()
    containers: tuple[ContainerRecord, ...] = ()
    priority: int | None = None
    priority_source: ValueSource = ValueSource.UNKNOWN
    kube_qos: KubeQos | None = None  # None where no source tells it; the cgroup tier then does
    requests: Resources = Resources()
    limits: Resources = Resources()
    resources_source: ValueSource = ValueSource.UNKNOWN
    cgroup_parent: str = ""  # absolute, as the runtime's verbose status tells it; "" unknown
    owner: str = ""
    terminating: bool = False
    running: bool = True
    native: Asked | None = None


@dataclass(frozen=True, slots=True)
class Container:
    """A container whose cgroup was looked up; ``cgroup`` is Missing where no spelling exists."""

    record: ContainerRecord
    cgroup: CgroupPath | Missing

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def name(self) -> str:
        return self.record.name


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod with its cgroup and its effective QoS.

    ``marked`` is true for an explicit ``koordinator.sh/qosClass`` label with a valid value.
    ``refused`` says why a claimed QoS was not accepted (hazard H26), else ``""``.
    """

    record: PodRecord
    cgroup: CgroupPath | Missing
    kube_qos: KubeQos | None
    qos: Qos
    qos_source: QosSource
    marked: bool
    refused: str
    priority: int | None
    priority_class: PriorityClass
    priority_source: ValueSource
    containers: tuple[Container, ...]
    sandboxes: tuple[CgroupPath, ...] = ()  # cgroups of pause containers that exist

    @property
    def uid(self) -> str:
        return self.record.uid

    @property
    def full_name(self) -> str:
        """``namespace/name``."""
        return f"{self.record.namespace}/{self.record.name}"


class AppBackend(Enum):
    """Who owns a host application's cgroup files."""

    FILE = "file"
    SYSTEMD_UNIT = "systemd-unit"  # written only through systemd (hazard H6)


@dataclass(frozen=True, slots=True)
class HostApp:
    """A declared host application; ``cgroup`` is Missing where unit or directory is not there.

    ``unwritable`` says why it can only be observed, else ``""``.
    """

    name: str
    qos: Qos
    priority: int | None
    priority_class: PriorityClass
    cgroup: CgroupPath | Missing
    backend: AppBackend
    requests: Resources = Resources()
    limits: Resources = Resources()
    workload: str = ""
    declared_in: str = ""  # the file, or "nodeslo"
    systemd_unit: str = ""
    unwritable: str = ""


class CgroupDriver(Enum):
    """Which spelling the kubelet gives its cgroups."""

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


@dataclass(frozen=True, slots=True)
class KubeLayout:
    """Where the kubelet's tiers lie below the managed root."""

    driver: CgroupDriver
    kubepods: CgroupPath
    burstable: CgroupPath
    besteffort: CgroupPath


@dataclass(frozen=True, slots=True)
class BeRoot:
    """A topmost cgroup that holds only BE work, and who claims it (``tier`` or an app's name).

    ``unwritable`` says why it can only be observed, else ``""``.
    """

    path: CgroupPath
    claimed_by: str
    unwritable: str = ""

    @property
    def writable(self) -> bool:
        return not self.unwritable


@dataclass(frozen=True, slots=True)
class Workloads:
    """All workloads at one instant. ``pods`` is Missing until a source has answered once."""

    pods: tuple[Pod, ...] | Missing
    pods_age_s: float
    apps: tuple[HostApp, ...]
    layout: KubeLayout | Missing

    def known_pods(self) -> tuple[Pod, ...]:
        """The pods, or none where no source has answered yet."""
        return () if isinstance(self.pods, Missing) else self.pods


def be_roots(workloads: Workloads) -> tuple[BeRoot, ...]:
    """The BE roots that may be governed: the kube BestEffort tier if it holds a BE pod that is
    marked as such (one whose claim was refused marks nothing), and the cgroup of each declared BE
    application. Sorted by path; nested roots fold into the outer one.
    """
    roots: list[BeRoot] = []
    layout = workloads.layout
    if not isinstance(layout, Missing) and any(
        pod.marked
        and not pod.refused
        and pod.qos is Qos.BE
        and not isinstance(pod.cgroup, Missing)
        and pod.cgroup.is_below(layout.besteffort)
        for pod in workloads.known_pods()
    ):
        roots.append(BeRoot(layout.besteffort, claimed_by="tier"))
    for app in workloads.apps:
        if app.qos is Qos.BE and not isinstance(app.cgroup, Missing) and app.cgroup != ROOT:
            roots.append(BeRoot(app.cgroup, app.name, app.unwritable))
    roots.sort(key=lambda root: root.path)
    outer: list[BeRoot] = []
    for root in roots:
        if not any(root.path.is_at_or_below(other.path) for other in outer):
            outer.append(root)
    return tuple(outer)
