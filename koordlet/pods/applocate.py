"""Where declared host applications lie in the cgroup tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from koordlet.host.cgroup import Cgroups
from koordlet.host.unitnames import unit_of_directory
from koordlet.model.knobs import Knob
from koordlet.model.paths import ROOT, CgroupPath
from koordlet.model.pods import AppBackend, HostApp, KubeLayout
from koordlet.model.readings import Missing
from koordlet.pods.hostapp import (
    HostAppRecord,
    declared_cgroup,
    find_overlaps,
    merge_apps,
    overlapping,
)
from koordlet.protocol.problem import Problem
from koordlet.protocol.qos import PriorityClass, Qos, priority_class_from_qos

_UNIT_CONTROLLERS = ("cpu", "memory", "pids")
UNIT_DEPTH = 4
"""A unit is looked for this many slices deep, e.g. user.slice/user-1000.slice."""


def locate_apps(
    cgroups: Cgroups,
    layout: KubeLayout | Missing,
    records: Iterable[HostAppRecord],
) -> tuple[tuple[HostApp, ...], tuple[Problem, ...]]:
    """Every declared application with its cgroup, sorted by name, and what is wrong with some.

    Two applications whose cgroups are the same or nested are both Missing. The cgroup of a systemd
    unit gets the unit backend however it was declared (hazard H6).
    """
    merged, problems = merge_apps(records)
    wanted = {record.systemd_unit for record in merged if record.systemd_unit}
    units = _find_units(cgroups, wanted) if wanted else {}
    apps = {record.name: _locate(cgroups, layout, record, units) for record in merged}
    claims = {name: app.cgroup for name, app in apps.items() if isinstance(app.cgroup, CgroupPath)}
    origins = {name: app.declared_in for name, app in apps.items()}
    for outer, inner in overlapping(claims):
        for name in (outer, inner):
            why = Missing(f"claimed by {outer} and {inner}: {claims[outer]}, {claims[inner]}")
            apps[name] = replace(apps[name], cgroup=why)
    return tuple(apps.values()), (*problems, *find_overlaps(claims, origins))


def _locate(
    cgroups: Cgroups,
    layout: KubeLayout | Missing,
    record: HostAppRecord,
    units: Mapping[str, CgroupPath],
) -> HostApp:
    cgroup: CgroupPath | Missing
    if record.systemd_unit:
        cgroup = units.get(record.systemd_unit, Missing(f"no cgroup of {record.systemd_unit}"))
    else:
        cgroup = _existing(cgroups, declared_cgroup(record, layout))
    qos = record.qos or Qos.LS
    band = record.priority_class
    unit, unwritable = _owner(cgroups, record, cgroup)
    return HostApp(
        name=record.name,
        qos=qos,
        priority=record.priority,
        priority_class=priority_class_from_qos(qos) if band is PriorityClass.NONE else band,
        cgroup=cgroup,
        backend=AppBackend.SYSTEMD_UNIT if unit else AppBackend.FILE,
        requests=record.requests,
        limits=record.limits,
        workload=record.workload,
        declared_in=record.declared_in,
        systemd_unit=unit,
        unwritable=unwritable,
    )


def _existing(cgroups: Cgroups, path: CgroupPath | Missing) -> CgroupPath | Missing:
    if isinstance(path, Missing):
        return path
    identity = cgroups.identity(path, Knob.CPU_SHARES)
    if isinstance(identity, Missing):
        return Missing(f"cgroup {path} does not exist: {identity.why}", identity.errno)
    return path


def _owner(
    cgroups: Cgroups, record: HostAppRecord, cgroup: CgroupPath | Missing
) -> tuple[str, str]:
    """The unit whose cgroup this is, ``""`` for none; and why nothing can be written there.

    What lies below a unit's cgroup is systemd's, too, unless it has been delegated.
    """
    place = None if isinstance(cgroup, Missing) else cgroups.place(cgroup)
    if record.systemd_unit:
        return record.systemd_unit, cgroups.no_systemd
    if place is None:
        return "", ""
    if place.is_own:
        return place.unit, ""
    is_free = cgroups.is_delegated(place)
    why = f"it lies in {place.unit}, and systemd has not delegated what is in there (Delegate=yes)"
    return "", "" if is_free else why


def _find_units(cgroups: Cgroups, wanted: set[str]) -> dict[str, CgroupPath]:
    """Directories named as these units. On cgroup v1 a unit is only in the hierarchies that its
    settings need, so each is looked through.
    """
    found: dict[str, CgroupPath] = {}
    for controller in _UNIT_CONTROLLERS:
        absent = wanted - found.keys()
        if absent:
            found.update(_find_units_in(cgroups, controller, absent))
    return found


def _find_units_in(cgroups: Cgroups, controller: str, wanted: set[str]) -> dict[str, CgroupPath]:
    """Looked for in slices only, the shallowest first."""
    found: dict[str, CgroupPath] = {}
    level = [ROOT]
    for _ in range(UNIT_DEPTH + 1):
        below: list[CgroupPath] = []
        for parent in level:
            children = cgroups.children(parent, controller)
            below.extend(() if isinstance(children, Missing) else children)
        for child in below:
            unit = unit_of_directory(child.name)
            if unit in wanted:
                found.setdefault(unit, child)
        level = [child for child in below if child.name.endswith(".slice")]
        if not level or found.keys() == wanted:
            break
    return found
