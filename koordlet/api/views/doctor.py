"""What works on this host, what does not, why, and the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypedDict

from koordlet.api.views.common import ProblemData, Unknown, problems_data, unknown
from koordlet.api.views.sources import SourceData, sources_data
from koordlet.model.capabilities import NEW_CONTAINERS, Capabilities, Capability
from koordlet.model.knobs import Knob
from koordlet.model.readings import Missing
from koordlet.protocol.nodeslo import CpuSuppressPolicy, NodeSlo
from koordlet.protocol.problem import Problem, Severity
from koordlet.qosmanager.names import BE_PRIORITY, CPU_SUPPRESS
from koordlet.report import NodeView, SourceState


class CapabilityData(TypedDict):
    """One thing that this host can do, or not.

    ``proof``: ``unproven`` (the file is there, nobody has written it), ``proven`` (written in a
    scratch cgroup), ``absent``, ``refused``. ``needed_by`` are the strategies of the NodeSLO in
    force that cannot do without it.
    """

    name: str
    kind: Literal["knob", "host"]
    works: bool
    proof: Literal["unproven", "proven", "absent", "refused"]
    why: str
    remedy: str
    detail: str
    needed_by: list[str]


class DoctorData(TypedDict):
    """``cgroup_versions`` is 1 or 2 by controller. ``missing_needed`` are the capabilities that
    the NodeSLO in force needs and this host does not have; empty is well.
    """

    answered_by: Literal["daemon", "one-shot"]
    version: str
    cgroup_root: str
    cgroup_versions: dict[str, int] | Unknown
    capabilities: list[CapabilityData] | Unknown
    missing_needed: list[str]
    warnings: list[ProblemData]
    sources: list[SourceData]


def doctor_data(
    view: NodeView, *, answered_by: Literal["daemon", "one-shot"] = "daemon"
) -> DoctorData:
    """Every probed capability and what follows from it."""
    found = view.capabilities
    why = unknown(found) if isinstance(found, Missing) else None
    capabilities = capabilities_data(view)
    return {
        "answered_by": answered_by,
        "version": view.version,
        "cgroup_root": view.cgroup_root,
        "cgroup_versions": why or _versions(found),
        "capabilities": why or capabilities,
        "missing_needed": [
            entry["name"] for entry in capabilities if entry["needed_by"] and not entry["works"]
        ],
        "warnings": problems_data(doctor_warnings(view)),
        "sources": sources_data(view),
    }


def capabilities_data(view: NodeView) -> list[CapabilityData]:
    """Knobs in the order of the table, then the host's other abilities by name."""
    found = view.capabilities
    if isinstance(found, Missing):
        return []
    needed = needed_knobs(view.slo.slo) if not isinstance(view.slo, Missing) else {}
    knobs = [knob for knob in Knob if knob in found.knobs or knob in needed]
    return [
        *(
            _capability(found.knob(knob), "knob", knob.value, needed.get(knob, ()))
            for knob in knobs
        ),
        *(_capability(found.others[name], "host", name, ()) for name in sorted(found.others)),
    ]


def needed_knobs(slo: NodeSlo) -> Mapping[Knob, tuple[str, ...]]:
    """The knobs that the NodeSLO cannot do without, and the strategies that write them."""
    needed: dict[Knob, tuple[str, ...]] = {}
    if slo.qos.be.cpu_qos.enable:
        needed[Knob.CPU_SHARES] = (BE_PRIORITY,)
        if slo.qos.be.cpu_qos.sched_idle:
            needed[Knob.CPU_IDLE] = (BE_PRIORITY,)
    if slo.threshold.enable:
        quota = slo.threshold.cpu_suppress_policy is CpuSuppressPolicy.CFS_QUOTA
        needed[Knob.CPU_QUOTA if quota else Knob.CPUSET_CPUS] = (CPU_SUPPRESS,)
    return needed


def doctor_warnings(view: NodeView) -> tuple[Problem, ...]:
    """Limits of this host together with the NodeSLO in force that no probe can show."""
    return (*_quota_and_new_containers(view), *_resize_with_old_kubelets(view))


def _quota_and_new_containers(view: NodeView) -> tuple[Problem, ...]:
    """What the probe says of new containers under a lowered tier, where the NodeSLO lowers it."""
    if isinstance(view.capabilities, Missing) or isinstance(view.slo, Missing):
        return ()
    threshold = view.slo.slo.threshold
    if threshold.cpu_suppress_policy is not CpuSuppressPolicy.CFS_QUOTA or not threshold.enable:
        return ()
    able = view.capabilities.others.get(NEW_CONTAINERS)
    if able is None or able.usable:
        return ()
    return (
        Problem(
            NEW_CONTAINERS,
            "cpuSuppressPolicy: cfsQuota",
            able.why,
            limit="running containers are taken care of",
            remedy=able.remedy,
            severity=Severity.WARNING,
        ),
    )


def _resize_with_old_kubelets(view: NodeView) -> tuple[Problem, ...]:
    """kubernetes #130598: such a kubelet takes the runtime's values for the state of a resize."""
    if not any(s.name == "kubelet" and s.state is not SourceState.OFF for s in view.sources):
        return ()
    return (
        Problem(
            "kubelet-resize",
            "kubelet",
            "a kubelet older than 1.33 compares the runtime's values with its own: values changed"
            " by koordlet keep an in-place resize of that pod going",
            limit="kubernetes issue 130598",
            remedy="kubelet 1.33 or newer, or the gate InPlacePodVerticalScaling off",
            severity=Severity.INFO,
        ),
    )


def _versions(found: Capabilities | Missing) -> dict[str, int]:
    return {} if isinstance(found, Missing) else dict(sorted(found.cgroup_versions.items()))


def _capability(
    capability: Capability, kind: Literal["knob", "host"], name: str, needed_by: tuple[str, ...]
) -> CapabilityData:
    return {
        "name": name,
        "kind": kind,
        "works": capability.usable,
        "proof": capability.proof.value,
        "why": capability.why,
        "remedy": capability.remedy,
        "detail": capability.detail,
        "needed_by": list(needed_by),
    }
