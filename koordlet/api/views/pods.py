"""Workloads: pods and host applications, what is known about each, and what is done to them."""

from __future__ import annotations

from typing import TypedDict

from koordlet.api.views.common import Unknown, number, unknown, value_data
from koordlet.api.views.picture import Picture, picture
from koordlet.api.views.settings import Setting, SettingState, file_of, owner_of, state_of
from koordlet.api.views.usage import UsageData, usage_data
from koordlet.metrics.readings import Level
from koordlet.model.actions import Target
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import Container, HostApp, Pod, Resources
from koordlet.model.readings import Missing
from koordlet.protocol.names import LABEL_QOS
from koordlet.protocol.qos import PriorityClass, ValueSource
from koordlet.report import NodeView


class ResourcesData(TypedDict):
    """Requests or limits; null is "not set", which for a limit is unlimited."""

    cpu_milli: int | Unknown | None
    memory_bytes: int | Unknown | None


class TouchData(TypedDict):
    """One kernel file of a workload that koordlet has to do with, in brief."""

    file: str | Unknown
    cgroup: str
    knob: str
    value: int | str | Unknown | None
    state: SettingState
    owner: str


class ContainerData(TypedDict):
    """One container; ``cgroup`` is below the managed root."""

    id: str
    name: str
    attempt: int
    state: str
    cgroup: str | Unknown
    requests: ResourcesData
    limits: ResourcesData
    resources_source: str
    usage: UsageData


class QosData(TypedDict):
    """How the effective QoS class came about.

    ``claim`` is the text of the label, null where there is none. ``refused`` says why a claim was
    not accepted, "" where it was.
    """

    effective: str
    source: str
    claim: str | None
    refused: str
    kube_qos: str | Unknown
    marked: bool


class PodData(TypedDict):
    """One pod. ``uid`` is the one in cgroup paths, ``api_uid`` metadata.uid: they differ for
    static pods. ``governed_by`` is the BE root that the pod lies in, null for none.
    """

    uid: str
    api_uid: str
    namespace: str
    name: str
    qos: QosData
    priority: int | Unknown
    priority_class: str | Unknown
    priority_source: str
    requests: ResourcesData
    limits: ResourcesData
    resources_source: str
    owner: str
    running: bool
    terminating: bool
    cgroup: str | Unknown
    governed_by: str | None
    usage: UsageData
    settings: list[TouchData]
    containers: list[ContainerData]


class AppData(TypedDict):
    """One declared host application; ``backend`` says by what its values are written."""

    name: str
    qos: str
    priority: int | Unknown
    priority_class: str
    cgroup: str | Unknown
    backend: str
    systemd_unit: str
    workload: str
    declared_in: str
    requests: ResourcesData
    limits: ResourcesData
    governed_by: str | None
    usage: UsageData
    settings: list[TouchData]


class TierData(TypedDict):
    """One of the kubelet's tiers; ``settings`` are those of the directory itself."""

    name: str
    cgroup: str
    usage: UsageData
    settings: list[TouchData]


class LayoutData(TypedDict):
    """Where the kubelet's tiers lie below the managed root."""

    driver: str
    kubepods: str
    burstable: str
    besteffort: str


class PodsData(TypedDict):
    """All workloads. ``pods`` is unknown before a source has answered once."""

    pods: list[PodData] | Unknown
    pods_age_s: float | Unknown
    host_applications: list[AppData] | Unknown
    layout: LayoutData | Unknown
    tiers: list[TierData] | Unknown


def pods_data(view: NodeView) -> PodsData:
    """Pods by namespace and name, then host applications by name."""
    workloads = view.workloads
    if isinstance(workloads, Missing):
        why = unknown(workloads)
        return {
            "pods": why,
            "pods_age_s": why,
            "host_applications": why,
            "layout": why,
            "tiers": why,
        }
    whole = picture(view)
    layout = workloads.layout
    pods = workloads.pods
    return {
        "pods": unknown(pods)
        if isinstance(pods, Missing)
        else [
            pod_data(whole, pod) for pod in sorted(pods, key=lambda pod: (pod.full_name, pod.uid))
        ],
        "pods_age_s": unknown(pods) if isinstance(pods, Missing) else number(workloads.pods_age_s),
        "host_applications": [
            app_data(whole, app) for app in sorted(workloads.apps, key=lambda app: app.name)
        ],
        "layout": unknown(layout)
        if isinstance(layout, Missing)
        else {
            "driver": layout.driver.value,
            "kubepods": layout.kubepods,
            "burstable": layout.burstable,
            "besteffort": layout.besteffort,
        },
        "tiers": unknown(layout)
        if isinstance(layout, Missing)
        else [
            tier_data(whole, "kubepods", layout.kubepods),
            tier_data(whole, "burstable", layout.burstable),
            tier_data(whole, "besteffort", layout.besteffort),
        ],
    }


def tier_data(whole: Picture, name: str, cgroup: CgroupPath) -> TierData:
    """The JSON form of one tier."""
    return {
        "name": name,
        "cgroup": cgroup,
        "usage": usage_data(whole.usages.of(Level.TIER, name)),
        "settings": [
            touch_data(whole.view, key, setting)
            for key, setting in whole.at_or_below(cgroup).items()
            if key[0] == cgroup and state_of(setting) != "past"
        ],
    }


def pod_data(whole: Picture, pod: Pod) -> PodData:
    """The JSON form of one pod."""
    record = pod.record
    return {
        "uid": pod.uid,
        "api_uid": record.api_uid,
        "namespace": record.namespace,
        "name": record.name,
        "qos": qos_data(pod),
        "priority": _priority(pod.priority),
        "priority_class": priority_class_text(pod.priority_class),
        "priority_source": pod.priority_source.value,
        "requests": resources_data(record.requests, record.resources_source),
        "limits": resources_data(record.limits, record.resources_source),
        "resources_source": record.resources_source.value,
        "owner": record.owner,
        "running": record.running,
        "terminating": record.terminating,
        "cgroup": _cgroup(pod.cgroup),
        "governed_by": governed_by(whole, pod.cgroup),
        "usage": usage_data(whole.usages.of(Level.POD, record.api_uid)),
        "settings": touches(whole, pod.cgroup),
        "containers": [container_data(whole, container) for container in pod.containers],
    }


def container_data(whole: Picture, container: Container) -> ContainerData:
    """The JSON form of one container."""
    record = container.record
    return {
        "id": record.id,
        "name": record.name,
        "attempt": record.attempt,
        "state": record.state.value,
        "cgroup": _cgroup(container.cgroup),
        "requests": resources_data(record.requests, record.resources_source),
        "limits": resources_data(record.limits, record.resources_source),
        "resources_source": record.resources_source.value,
        "usage": usage_data(whole.usages.of(Level.CONTAINER, record.id)),
    }


def app_data(whole: Picture, app: HostApp) -> AppData:
    """The JSON form of one host application."""
    return {
        "name": app.name,
        "qos": app.qos.value,
        "priority": _priority(app.priority),
        "priority_class": priority_class_text(app.priority_class),
        "cgroup": _cgroup(app.cgroup),
        "backend": app.backend.value,
        "systemd_unit": app.systemd_unit,
        "workload": app.workload,
        "declared_in": app.declared_in,
        "requests": resources_data(app.requests, ValueSource.DECLARED),
        "limits": resources_data(app.limits, ValueSource.DECLARED),
        "governed_by": governed_by(whole, app.cgroup),
        "usage": usage_data(whole.usages.of(Level.APP, app.name)),
        "settings": touches(whole, app.cgroup),
    }


def qos_data(pod: Pod) -> QosData:
    """The QoS decision of one pod."""
    return {
        "effective": pod.qos.value,
        "source": pod.qos_source.value,
        "claim": pod.record.labels.get(LABEL_QOS),
        "refused": pod.refused,
        "kube_qos": pod.kube_qos.value if pod.kube_qos else unknown("no source and no tier tells"),
        "marked": pod.marked,
    }


def resources_data(resources: Resources, source: ValueSource) -> ResourcesData:
    """Requests or limits; unknown (not null) where no source told them."""
    if source is ValueSource.UNKNOWN and resources == Resources():
        why = unknown("no source tells it")
        return {"cpu_milli": why, "memory_bytes": why}
    return {"cpu_milli": resources.cpu_milli, "memory_bytes": resources.memory_bytes}


def priority_class_text(priority_class: PriorityClass) -> str:
    """The class's name; ``none`` for a priority outside every band."""
    return priority_class.value or "none"


def governed_by(whole: Picture, cgroup: CgroupPath | Missing) -> str | None:
    """The BE root at or above ``cgroup``, None where there is none."""
    if isinstance(cgroup, Missing):
        return None
    roots = (root.path for root in whole.be_roots if cgroup.is_at_or_below(root.path))
    return next(roots, None)


def touches(whole: Picture, cgroup: CgroupPath | Missing) -> list[TouchData]:
    """What koordlet has to do with, at or below a workload's cgroup."""
    return [
        touch_data(whole.view, key, setting)
        for key, setting in whole.at_or_below(cgroup).items()
        if state_of(setting) != "past"
    ]


def touch_data(view: NodeView, key: Target, setting: Setting) -> TouchData:
    """The brief form of one setting."""
    wanted = setting.write or setting.would
    return {
        "file": file_of(view, key),
        "cgroup": key[0],
        "knob": key[1].value,
        "value": value_data(wanted.value) if wanted else unknown("no value is wanted here now"),
        "state": state_of(setting),
        "owner": owner_of(setting),
    }


def _cgroup(cgroup: CgroupPath | Missing) -> str | Unknown:
    return unknown(cgroup) if isinstance(cgroup, Missing) else str(cgroup)


def _priority(priority: int | None) -> int | Unknown:
    return unknown("no source tells it") if priority is None else priority
