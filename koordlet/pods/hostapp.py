"""Declared host applications: one list out of files and NodeSLO, and where their cgroups lie."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from koordlet.host.unitnames import is_unit
from koordlet.model.paths import ROOT, CgroupPath, CgroupPathError
from koordlet.model.pods import KubeLayout, Resources
from koordlet.model.readings import Missing
from koordlet.pods.requests import NOTHING
from koordlet.protocol.nodeslo import HostApplicationSpec, HostCgroupBase, HostCgroupPath
from koordlet.protocol.problem import Problem
from koordlet.protocol.qos import PriorityClass, Qos, priority_class_of

LATENCY_SENSITIVE_DIR = "host-latency-sensitive"
BEST_EFFORT_DIR = "host-best-effort"
NODESLO_ORIGIN = "nodeslo"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,126}")
_UNIT_KINDS = (".service", ".scope", ".slice")


@dataclass(frozen=True, slots=True)
class HostAppRecord:
    """One application as it is declared. Without ``cgroup_path`` and ``systemd_unit`` it lies in
    ``host-best-effort/<name>`` (BE) or ``host-latency-sensitive/<name>`` (the other classes).
    """

    name: str
    qos: Qos | None = None
    priority: int | None = None
    priority_class: PriorityClass = PriorityClass.NONE
    cgroup_path: HostCgroupPath | None = None
    systemd_unit: str = ""
    requests: Resources = NOTHING
    limits: Resources = NOTHING
    workload: str = ""
    declared_in: str = ""


def is_app_name(text: str) -> bool:
    """True for a text that may name an application, and so a directory."""
    return _NAME.fullmatch(text) is not None


def is_unit_name(text: str) -> bool:
    """True for the name of a systemd unit that work runs in."""
    return is_unit(text) and text.endswith(_UNIT_KINDS)


def merge_apps(
    records: Iterable[HostAppRecord], nodeslo_apps: Iterable[HostApplicationSpec] = ()
) -> tuple[tuple[HostAppRecord, ...], tuple[Problem, ...]]:
    """One list by name, sorted: the NodeSLO wins for QoS and priority, the file for the rest.

    An application whose QoS nobody tells is left out with a problem. Merging twice changes
    nothing.
    """
    by_name = {record.name: record for record in records}
    problems: list[Problem] = []
    for spec in nodeslo_apps:
        if not is_app_name(spec.name):
            problems.append(_bad_name(spec.name))
            continue
        known = by_name.get(spec.name)
        by_name[spec.name] = _from_nodeslo(spec) if known is None else _overlaid(known, spec)
    for record in by_name.values():
        if record.qos is None:
            problems.append(_no_qos(record))
    usable = (record for record in by_name.values() if record.qos is not None)
    return tuple(sorted(usable, key=lambda record: record.name)), tuple(problems)


def _from_nodeslo(spec: HostApplicationSpec) -> HostAppRecord:
    return HostAppRecord(
        name=spec.name,
        qos=spec.qos,
        priority_class=spec.priority_class,
        cgroup_path=spec.cgroup_path,
        declared_in=NODESLO_ORIGIN,
    )


def _overlaid(record: HostAppRecord, spec: HostApplicationSpec) -> HostAppRecord:
    merged = replace(record, qos=spec.qos or record.qos)
    if spec.priority_class is PriorityClass.NONE:
        return merged
    agrees = (
        record.priority is not None and priority_class_of(record.priority) is spec.priority_class
    )
    return replace(
        merged,
        priority_class=spec.priority_class,
        priority=record.priority if agrees else None,
    )


def _bad_name(name: str) -> Problem:
    return Problem(
        code="hostapp-name",
        where=f"host application {name!r} of the NodeSLO",
        what="left out: its name cannot be a directory's name",
        limit="letters, digits, '.', '_' and '-', at most 127",
        remedy="rename it",
    )


def _no_qos(record: HostAppRecord) -> Problem:
    return Problem(
        code="hostapp-qos",
        where=f"host application {record.name} ({record.declared_in})",
        what="left out: no QoS class is declared",
        limit="LSE, LSR, LS, BE or SYSTEM",
        remedy="add qos",
    )


def declared_cgroup(record: HostAppRecord, layout: KubeLayout | Missing) -> CgroupPath | Missing:
    """The cgroup that ``record`` names; Missing for the managed root, for a kubelet's tier, and
    where its base does not exist. Not for ``systemd_unit`` entries: those are found in the tree.
    """
    if record.cgroup_path is None:
        parent = BEST_EFFORT_DIR if record.qos is Qos.BE else LATENCY_SENSITIVE_DIR
        return CgroupPath(f"{parent}/{record.name}")
    base = _base(record.cgroup_path.base, layout)
    if isinstance(base, Missing):
        return base
    parts = (base, record.cgroup_path.parent_dir.strip("/"), record.cgroup_path.relative_path)
    try:
        path = CgroupPath.parse("/".join(part.strip("/") for part in parts if part.strip("/")))
    except CgroupPathError as error:
        return Missing(str(error))
    if path == ROOT:
        return Missing("the declared cgroup is the managed root itself: all work is in it")
    if not isinstance(layout, Missing) and layout.besteffort.is_below(path):
        return Missing(f"the declared cgroup {path} holds the kubelet's tiers")
    if not isinstance(layout, Missing) and path in (layout.besteffort, layout.burstable):
        return Missing(f"the declared cgroup {path} is one of the kubelet's tiers")
    return path


def _base(base: HostCgroupBase, layout: KubeLayout | Missing) -> CgroupPath | Missing:
    if base is HostCgroupBase.CGROUP_ROOT:
        return ROOT
    if isinstance(layout, Missing):
        return Missing(f"its base {base.value} does not exist: {layout.why}")
    return {
        HostCgroupBase.KUBEPODS: layout.kubepods,
        HostCgroupBase.KUBEPODS_BURSTABLE: layout.burstable,
        HostCgroupBase.KUBEPODS_BESTEFFORT: layout.besteffort,
    }[base]


def find_overlaps(
    claims: Mapping[str, CgroupPath], origins: Mapping[str, str]
) -> tuple[Problem, ...]:
    """One problem for each two applications of which one's cgroup is, or lies in, the other's.

    ``claims`` and ``origins`` (where each was declared) are by application name.
    """
    return tuple(_overlap(pair, claims, origins) for pair in overlapping(claims))


def overlapping(claims: Mapping[str, CgroupPath]) -> Iterator[tuple[str, str]]:
    """The pairs of names whose cgroups are the same or nested, the inner or later one second."""
    ordered = sorted(claims.items(), key=lambda claim: (claim[1], claim[0]))
    for (outer, outer_path), (inner, inner_path) in combinations(ordered, 2):
        if inner_path.is_at_or_below(outer_path):
            yield outer, inner


def _overlap(
    pair: tuple[str, str], claims: Mapping[str, CgroupPath], origins: Mapping[str, str]
) -> Problem:
    outer, inner = pair
    how = "is also" if claims[inner] == claims[outer] else "lies in"
    return Problem(
        code="hostapp-overlap",
        where=f"host application {inner} ({origins.get(inner, '')})",
        what=(
            f"its cgroup {claims[inner]} {how} that of {outer} ({origins.get(outer, '')});"
            " neither is managed"
        ),
        limit="one application for each cgroup, none nested",
        remedy="correct the cgroup of one of the two",
    )
